"""Run or resume an experiment with commands, `driver.py STORAGE fit|restore KIND`; a test kills it."""

import sys
from pathlib import Path

from muster import tune
from muster.tune.schedulers import PopulationBasedTraining

TRAINER = str(Path(__file__).with_name("trainer.py"))
storage, action, kind = sys.argv[1:]
line = f"{sys.executable} {TRAINER} --way lines --x {{x}} --steps 6 --pause 0.3 --out {{trial_dir}}"
command = tune.command(
    f"{line} --checkpoint {{checkpoint}} {{resume:--resume}}", env={"MUSTER_TEST_TREE": storage}
)
population = PopulationBasedTraining(
    time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"x": [1.0, 2.0, 3.0]}
)
if action == "fit":
    tuner = tune.Tuner(
        command,
        param_space={"x": tune.grid_search([1.0, 2.0])},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", scheduler=population if kind == "pbt" else None
        ),
        run_config=tune.RunConfig(name="e", storage_path=storage, verbose=0),
    )
else:
    tuner = tune.Tuner.restore(f"{storage}/e")
results = tuner.fit()
for result in results:
    frame = result.metrics_dataframe
    print(result.error, *frame["training_iteration"], *frame["loss"])  # noqa: T201 - read by the test

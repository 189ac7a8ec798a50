"""Uses Ray Tune as transformers' Trainer.hyperparameter_search does."""

import functools
import importlib.util
import json
import os
import tempfile

assert importlib.util.find_spec("ray") is not None
assert importlib.util.find_spec("ray.tune") is not None
import ray
import ray.tune
import ray.tune.schedulers
from ray.tune import Checkpoint


class Trainer:
    def __init__(self):
        self.objective = None

    def train(self, trial):
        checkpoint = ray.tune.get_checkpoint()
        start = 0
        if checkpoint:
            with checkpoint.as_directory() as folder:
                start = int(open(os.path.join(folder, "step")).read())
        for step in range(start, 4):
            self.objective = (trial["lr"] - 0.01) ** 2 + 1 / (step + 1)
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "step"), "w") as stream:
                    stream.write(str(step + 1))
                ray.tune.report(
                    {"objective": self.objective, "epoch": step, "done": step == 3},
                    checkpoint=Checkpoint.from_directory(folder),
                )


def run(trainer, n_trials, direction, **kwargs):
    def _objective(trial, local_trainer):
        local_trainer.train(trial)
        if local_trainer.objective is None:
            raise RuntimeError("no objective")

    trainable = ray.tune.with_parameters(_objective, local_trainer=trainer)

    @functools.wraps(trainable)
    def dynamic(*args, **kw):
        return trainable(*args, **kw)

    if hasattr(trainable, "__mixins__"):
        dynamic.__mixins__ = trainable.__mixins__
    scheduler = kwargs["scheduler"]
    kinds = (
        ray.tune.schedulers.ASHAScheduler,
        ray.tune.schedulers.MedianStoppingRule,
        ray.tune.schedulers.HyperBandForBOHB,
        ray.tune.schedulers.PopulationBasedTraining,
    )
    assert isinstance(scheduler, kinds)
    analysis = ray.tune.run(
        dynamic,
        config={"lr": ray.tune.loguniform(1e-4, 1e-1)},
        num_samples=n_trials,
        resources_per_trial={"cpu": 1},
        progress_reporter=ray.tune.CLIReporter(metric_columns=["objective"]),
        **kwargs,
    )
    best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope="last")
    return best.trial_id, best.last_result["objective"], best.config


best = run(
    Trainer(),
    3,
    "minimize",
    scheduler=ray.tune.schedulers.ASHAScheduler(metric="objective", mode="min", time_attr="epoch"),
    storage_path=os.path.join(os.getcwd(), "results"),
    verbose=0,
)
print(json.dumps({"best": best[1], "lr": best[2]["lr"]}))

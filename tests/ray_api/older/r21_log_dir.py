"""Ray 2.1: Result.log_dir and local_dir."""

import os

from ray import air, tune
from ray.air import session


def train(config):
    session.report({"loss": config["x"], "trial": session.get_trial_id()})


results = tune.Tuner(
    train,
    param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(num_samples=2),
    run_config=air.RunConfig(local_dir=os.path.join(os.getcwd(), "r21"), name="x", verbose=0),
).fit()
for result in results:
    assert (result.log_dir / "result.json").exists()
assert os.path.isdir(os.path.join(os.getcwd(), "r21", "x"))

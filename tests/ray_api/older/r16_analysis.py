"""Ray 1.6: Analysis of a directory, stats, trial.logdir."""

import os

from ray import tune
from ray.tune import Analysis


def train(config):
    tune.report(score=config["x"])


found = tune.run(train, name="exp", local_dir=os.getcwd(), config={"x": tune.grid_search([1, 3])}, verbose=0)
assert found.stats()["timestamp"]
analysis = Analysis(os.path.join(os.getcwd(), "exp"), default_metric="score", default_mode="max")
assert analysis.best_config["x"] == 3
assert all(os.path.isdir(trial.logdir) for trial in found.trials)

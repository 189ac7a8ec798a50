"""Ray 1.2: tune.suggest.optuna, points_to_evaluate, best_logdir."""

import os

from ray import tune
from ray.tune.suggest.optuna import OptunaSearch


def train(config):
    tune.report(score=-((config["x"] - 2) ** 2))


analysis = tune.run(
    train,
    metric="score",
    mode="max",
    search_alg=OptunaSearch(points_to_evaluate=[{"x": 2.0}]),
    num_samples=3,
    config={"x": tune.uniform(0, 5)},
    verbose=0,
)
assert analysis.best_config == {"x": 2.0}
assert os.path.isdir(analysis.best_logdir)
assert os.path.isdir(analysis.get_best_logdir(metric="score", mode="max"))

"""Optuna optimises two metrics at once (docs: multi-objective optimisation with OptunaSearch)."""

import logging

from ray import tune
from ray.tune.search.optuna import OptunaSearch


def train(config):
    tune.report({"loss": config["x"] ** 2, "gain": config["x"] * config["n"]})


def main(storage):
    logging.getLogger("optuna").setLevel(logging.ERROR)
    search = OptunaSearch(metric=["loss", "gain"], mode=["min", "max"], seed=5)
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 2), "n": tune.randint(1, 4)},
        tune_config=tune.TuneConfig(
            search_alg=search, num_samples=4, max_concurrent_trials=1, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="two", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config, result.metrics["gain"]] for result in results]

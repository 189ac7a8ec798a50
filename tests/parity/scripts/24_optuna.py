"""Optuna with a seed searches Tune's domains (docs: OptunaSearch)."""

import logging

from ray import tune
from ray.tune.search.optuna import OptunaSearch


def train(config):
    for step in range(2):
        tune.report({"loss": (config["x"] - 2) ** 2 + config["n"] / (step + 1)})


def main(storage):
    logging.getLogger("optuna").setLevel(logging.ERROR)
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(-5, 5), "n": tune.randint(1, 9), "act": tune.choice(["relu", "tanh"])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=OptunaSearch(seed=17),
            num_samples=5,
            max_concurrent_trials=1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="optuna", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config, result.metrics["loss"]] for result in results]

"""Optuna with a sampler of one's own and intermediate results (docs: OptunaSearch(sampler=))."""

import logging

import optuna
from ray import tune
from ray.tune.search.optuna import OptunaSearch


def train(config):
    for step in range(3):
        tune.report({"loss": (config["x"] - 2) ** 2 + config["y"] - step})


def main(storage):
    logging.getLogger("optuna").setLevel(logging.ERROR)
    values = {}
    samplers = {
        "random": optuna.samplers.RandomSampler(seed=1),
        "tpe": optuna.samplers.TPESampler(seed=2, n_startup_trials=2),
        "grid": optuna.samplers.GridSampler({"x": [0.0, 4.0], "y": [1.0]}, seed=3),
    }
    for name, sampler in samplers.items():
        results = tune.Tuner(
            train,
            param_space={"x": tune.uniform(0, 4), "y": tune.quniform(0, 1, 0.5)},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                search_alg=OptunaSearch(sampler=sampler),
                num_samples=2 if name == "grid" else 4,
                max_concurrent_trials=1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(name=name, storage_path=storage, verbose=0),
        ).fit()
        values[name] = [result.config for result in results]
    return values

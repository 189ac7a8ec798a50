"""A conditional space as a function of an Optuna trial (docs: conditional search spaces with Optuna)."""

import logging

from optuna.samplers import RandomSampler
from ray import tune
from ray.tune.search.optuna import OptunaSearch


def space(trial):
    if trial.suggest_categorical("kind", ["linear", "tree"]) == "tree":
        trial.suggest_int("depth", 1, 10)
    trial.suggest_float("lr", 1e-3, 1, log=True)
    return {"fixed": 7}


def train(config):
    tune.report({"loss": config["lr"] + config.get("depth", 0) + config["fixed"]})


def main(storage):
    logging.getLogger("optuna").setLevel(logging.ERROR)
    search = OptunaSearch(space, sampler=RandomSampler(seed=3), metric="loss", mode="min")
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=search, num_samples=4, max_concurrent_trials=1, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="by_run", storage_path=storage, verbose=0),
    ).fit()
    return [result.config for result in results]

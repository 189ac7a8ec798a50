"""A searcher is saved, restored into another object and continues (docs: saving and restoring searchers)."""

import logging
import os

import optuna
from ray import tune
from ray.tune.search.optuna import OptunaSearch


def train(config):
    tune.report({"loss": (config["x"] - 1) ** 2})


def _searcher():
    space = {"x": optuna.distributions.FloatDistribution(0, 9)}
    return OptunaSearch(space, metric="loss", mode="min", seed=8)


def _run(storage, name, search):
    return tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=search,
            num_samples=2,
            max_concurrent_trials=1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name=name, storage_path=storage, verbose=0),
    ).fit()


def main(storage):
    logging.getLogger("optuna").setLevel(logging.ERROR)
    first = _searcher()
    one = _run(storage, "one", first)
    path = os.path.join(storage, "searcher.pkl")
    first.save(path)
    second = _searcher()
    second.restore(path)
    os.remove(path)
    two = _run(storage, "two", second)
    return [result.config["x"] for results in (one, two) for result in results]

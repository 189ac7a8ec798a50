"""Nevergrad's (1+1) with a seeded stream, first from a known point (docs: NevergradSearch)."""

import nevergrad
import numpy
from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.nevergrad import NevergradSearch

NEEDS = ("nevergrad",)


def train(config):
    tune.report({"loss": (config["x"] - 3) ** 2 + config["y"]})


def main(storage):
    numpy.random.seed(7)
    search = NevergradSearch(
        optimizer=nevergrad.optimizers.OnePlusOne,
        optimizer_kwargs={"budget": 10},
        metric="loss",
        mode="min",
        points_to_evaluate=[{"x": 1.0, "y": 0.5, "n": 2}],
    )
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 20), "y": tune.uniform(0, 1), "n": tune.randint(1, 5)},
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(search, max_concurrent=1), num_samples=5, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="nevergrad", storage_path=storage, verbose=0),
    ).fit()
    return [[round(value, 6) for value in result.config.values()] for result in results]

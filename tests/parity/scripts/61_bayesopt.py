"""Bayesian optimisation with a random state (docs: BayesOptSearch)."""

from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.bayesopt import BayesOptSearch


def train(config):
    tune.report({"loss": (config["x"] - 3) ** 2 + config["y"]})


def main(storage):
    search = BayesOptSearch(metric="loss", mode="min", random_state=3, random_search_steps=2)
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 20), "y": tune.uniform(-1, 1)},
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(search, max_concurrent=1), num_samples=4, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="bayesopt", storage_path=storage, verbose=0),
    ).fit()
    return [[round(value, 6) for value in result.config.values()] for result in results]

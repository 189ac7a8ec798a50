"""Points whose values are known are told to the searcher and not run again (docs: evaluated_rewards)."""

import logging

from ray import tune
from ray.tune.search.optuna import OptunaSearch


def train(config):
    tune.report({"loss": config["a"] + config["b"]})


def main(storage):
    logging.getLogger("optuna").setLevel(logging.ERROR)
    space = {"a": tune.uniform(6, 8), "b": tune.uniform(10, 20)}
    search = OptunaSearch(
        seed=2,
        points_to_evaluate=[{"a": 6.5, "b": 11}, {"a": 7.5, "b": 15}],
        evaluated_rewards=[17.5, 22.5],
    )
    results = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=search,
            num_samples=3,
            max_concurrent_trials=1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="evaluated", storage_path=storage, verbose=0),
    ).fit()
    return [result.config for result in results]

"""Conditional values with sample_from (docs: how to use custom and conditional search spaces)."""

from ray import tune
from ray.tune.search import BasicVariantGenerator


def train(config):
    tune.report({"score": config["beta"]})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={
            "alpha": tune.grid_search([1, 2]),
            "beta": tune.sample_from(lambda config: config["alpha"] * 100),
            "size": {
                "hidden": tune.randint(8, 16),
                "out": tune.sample_from(lambda spec: spec.config.alpha + 1),
            },
        },
        tune_config=tune.TuneConfig(
            search_alg=BasicVariantGenerator(random_state=5, max_concurrent=1), reuse_actors=True
        ),
        run_config=tune.RunConfig(name="sample_from", storage_path=storage, verbose=0),
    ).fit()
    return [result.config for result in results]

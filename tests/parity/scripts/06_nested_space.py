"""Domains inside dictionaries, lists and tuples (docs: using search spaces)."""

from ray import tune
from ray.tune.search import BasicVariantGenerator


def train(config):
    tune.report(
        {"units": sum(config["layers"]), "lr": config["optimizer"]["lr"], "pair": list(config["pair"])}
    )


def main(storage):
    space = {
        "optimizer": {"name": tune.choice(["sgd", "adam"]), "lr": tune.loguniform(1e-3, 1)},
        "layers": [tune.randint(1, 5), tune.randint(5, 9)],
        "pair": (tune.grid_search([1, 2]), "fixed"),
    }
    results = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(
            search_alg=BasicVariantGenerator(random_state=3, max_concurrent=1), reuse_actors=True
        ),
        run_config=tune.RunConfig(name="nested", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config, result.metrics["units"]] for result in results]

"""A conditional space in HyperOpt's own words (docs: running Tune experiments with HyperOpt)."""

from hyperopt import hp
from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.hyperopt import HyperOptSearch

NEEDS = ("hyperopt",)


def train(config):
    width = config["layer"].get("width", 0)
    tune.report({"loss": abs(width - 4) + config["rate"]})


def main(storage):
    space = {
        "rate": hp.uniform("rate", 0, 1),
        "layer": hp.choice(
            "layer", [{"kind": "none"}, {"kind": "dense", "width": hp.uniform("width", 1, 9)}]
        ),
    }
    search = HyperOptSearch(space, metric="loss", mode="min", n_initial_points=2, random_state_seed=2)
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(search, max_concurrent=1), num_samples=5, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="spaces", storage_path=storage, verbose=0),
    ).fit()
    return [result.config for result in results]

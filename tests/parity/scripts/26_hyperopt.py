"""HyperOpt with a seed, behind a ConcurrencyLimiter (docs: HyperOptSearch, ConcurrencyLimiter)."""

from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.hyperopt import HyperOptSearch


def train(config):
    tune.report({"loss": abs(config["width"] - 12) + config["height"]})


def main(storage):
    search = HyperOptSearch(
        metric="loss",
        mode="min",
        points_to_evaluate=[{"width": 10.0, "height": 1.0, "units": 4, "act": "tanh"}],
        n_initial_points=2,
        random_state_seed=9,
    )
    results = tune.Tuner(
        train,
        param_space={
            "width": tune.uniform(0, 20),
            "height": tune.loguniform(1e-2, 10),
            "units": tune.randint(1, 9),
            "act": tune.choice(["relu", "tanh"]),
        },
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(search, max_concurrent=1), num_samples=5, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="hyperopt", storage_path=storage, verbose=0),
    ).fit()
    return [result.config for result in results]

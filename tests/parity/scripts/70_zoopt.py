"""ZOOpt searches floats, integers and choices within a budget (docs: ZOOptSearch)."""

from ray import tune
from ray.tune.search.zoopt import ZOOptSearch

FILES_VARY = True  # the library's stream is not seeded
NEEDS = ("zoopt",)


def train(config):
    tune.report({"loss": (config["x"] - 3) ** 2 + config["n"]})


def main(storage):
    search = ZOOptSearch(
        algo="Asracos",
        budget=6,
        parallel_num=2,
    )
    results = tune.Tuner(
        train,
        param_space={
            "x": tune.uniform(0, 20),
            "n": tune.randint(1, 4),
            "act": tune.choice(["relu", "tanh"]),
        },
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", search_alg=search, num_samples=6, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="zoopt", storage_path=storage, verbose=0),
    ).fit()
    configs = [result.config for result in results]
    return {
        "count": len(configs),
        "inside": all(
            0 <= c["x"] <= 20 and 1 <= c["n"] <= 3 and c["act"] in ("relu", "tanh") for c in configs
        ),
        "numbers": sorted({type(c[key]).__name__ for c in configs for key in ("x", "n")}),
    }

"""A grid of two by two, each point sampled twice (docs: grid and random search)."""

from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator


def train(config):
    tune.report({"score": config["x"] * 10 + config["y"], "r": config["r"]})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"y": tune.grid_search([0, 1]), "x": tune.grid_search([2, 3]), "r": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            num_samples=2,
            metric="score",
            mode="max",
            reuse_actors=True,
            search_alg=BasicVariantGenerator(random_state=7, max_concurrent=1),
        ),
        run_config=tune.RunConfig(name="grid", storage_path=storage, verbose=0),
    ).fit()
    return {
        "configs": [result.config for result in results],
        "best": results.get_best_result().metrics["score"],
    }

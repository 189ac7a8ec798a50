"""Random values are drawn once for all points of a grid, seeded (docs: BasicVariantGenerator)."""

from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator


def train(config):
    tune.report({"loss": config["x"] + config["g"]})


def main(storage):
    values = {}
    for constant in (True, False):
        search = BasicVariantGenerator(
            constant_grid_search=constant, random_state=3, max_concurrent=1, points_to_evaluate=[{"g": 20}]
        )
        results = tune.Tuner(
            train,
            param_space={"x": tune.uniform(0, 1), "g": tune.grid_search([10, 20]), "n": tune.randint(0, 100)},
            tune_config=tune.TuneConfig(search_alg=search, num_samples=2, reuse_actors=True),
            run_config=tune.RunConfig(name=f"constant_{constant}", storage_path=storage, verbose=0),
        ).fit()
        values[constant] = [result.config for result in results]
    return values

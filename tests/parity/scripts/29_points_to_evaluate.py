"""Known good points are tried before the random ones (docs: initial points)."""

from ray import tune
from ray.tune.search import BasicVariantGenerator


def train(config):
    tune.report({"score": config["a"] + config["b"]})


def main(storage):
    search = BasicVariantGenerator(
        points_to_evaluate=[{"a": 2, "b": 10}, {"a": 3}], random_state=21, max_concurrent=1
    )
    results = tune.Tuner(
        train,
        param_space={"a": tune.randint(0, 5), "b": tune.quniform(0, 50, 5)},
        tune_config=tune.TuneConfig(search_alg=search, num_samples=4, reuse_actors=True),
        run_config=tune.RunConfig(name="points", storage_path=storage, verbose=0),
    ).fit()
    return [result.config for result in results]

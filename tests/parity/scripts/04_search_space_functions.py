"""Every function of the search space API, seeded (docs: search space API)."""

from ray import tune
from ray.tune.search import BasicVariantGenerator


def train(config):
    tune.report({"total": sum(value for value in config.values() if isinstance(value, (int, float)))})


def main(storage):
    space = {
        "uniform": tune.uniform(-5, -1),
        "quniform": tune.quniform(3.2, 5.4, 0.2),
        "loguniform": tune.loguniform(1e-4, 1e-1),
        "qloguniform": tune.qloguniform(1e-4, 1e-1, 5e-5),
        "randn": tune.randn(10, 2),
        "qrandn": tune.qrandn(10, 2, 0.2),
        "randint": tune.randint(-9, 15),
        "qrandint": tune.qrandint(-21, 12, 3),
        "lograndint": tune.lograndint(1, 10),
        "qlograndint": tune.qlograndint(2, 10, 2),
        "choice": tune.choice(["a", "b", "c"]),
        "constant": 3,
    }
    results = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(
            num_samples=3,
            reuse_actors=True,
            search_alg=BasicVariantGenerator(random_state=1234, max_concurrent=1),
        ),
        run_config=tune.RunConfig(name="spaces", storage_path=storage, verbose=0),
    ).fit()
    return [result.config for result in results]

"""Ray 2.2: with_resources, with_parameters, air configs."""

from ray import tune
from ray.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.bayesopt import BayesOptSearch


def train(config, data):
    from ray.air import session

    session.report({"metric": config["x"] * len(data)})


tuner = tune.Tuner(
    tune.with_resources(tune.with_parameters(train, data=[1, 2]), {"cpu": 1}),
    param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(num_samples=2, metric="metric", mode="max"),
    run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
)
assert tuner.fit().num_errors == 0

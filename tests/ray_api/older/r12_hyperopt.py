"""Ray 1.2: tune.suggest with HyperOpt and a limiter."""

from ray import tune
from ray.tune.suggest import ConcurrencyLimiter
from ray.tune.suggest.hyperopt import HyperOptSearch


def objective(config):
    for step in range(2):
        tune.report(mean_loss=(config["x"] - 1) ** 2 + step)


algo = ConcurrencyLimiter(
    HyperOptSearch(metric="mean_loss", mode="min", n_initial_points=2), max_concurrent=2
)
analysis = tune.run(objective, search_alg=algo, num_samples=4, config={"x": tune.uniform(0, 3)}, verbose=0)
assert len(analysis.trials) == 4

"""Ray 0.8: track.log, tune.function, analysis by metric."""

from ray import tune
from ray.tune import track


def train(config):
    for i in range(3):
        track.log(score=config["a"] * i, done=i == 2)


analysis = tune.run(train, config={"a": tune.grid_search([1, 2])}, verbose=0, ray_auto_init=True)
assert analysis.get_best_config(metric="score", mode="max") == {"a": 2}

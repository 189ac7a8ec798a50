"""The median stopping rule ends a trial below the median of the running means (docs: MedianStoppingRule)."""

from ray import tune
from ray.tune.schedulers import MedianStoppingRule


def train(config):
    for step in range(6):
        tune.report({"score": config["x"] + step})


def main(storage):
    rule = MedianStoppingRule(time_attr="training_iteration", grace_period=2, min_samples_required=2)
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([5, 8, 1, 9, 0])},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", scheduler=rule, max_concurrent_trials=1, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="median", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config["x"], result.metrics["training_iteration"]] for result in results]

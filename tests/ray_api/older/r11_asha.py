"""Ray 1.1: the asynchronous HyperBand example."""

import ray
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler


def evaluation_fn(step, width, height):
    return (0.1 + width * step / 100) ** (-1) + height * 0.1


def easy_objective(config):
    for step in range(config["steps"]):
        tune.report(iterations=step, mean_loss=evaluation_fn(step, config["width"], config["height"]))


ray.init(num_cpus=2, include_dashboard=False)
scheduler = AsyncHyperBandScheduler(grace_period=1, max_t=5)
analysis = tune.run(
    easy_objective,
    name="asynchyperband_test",
    metric="mean_loss",
    mode="min",
    scheduler=scheduler,
    stop={"training_iteration": 5},
    num_samples=4,
    resources_per_trial={"cpu": 1, "gpu": 0},
    config={"steps": 5, "width": tune.uniform(10, 100), "height": tune.uniform(0, 100)},
    verbose=0,
)
print("Best hyperparameters found were: ", analysis.best_config)

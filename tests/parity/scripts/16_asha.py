"""ASHA stops the worse trials at its rungs (docs: trial schedulers)."""

from ray import tune
from ray.tune.schedulers import ASHAScheduler


def train(config):
    for epoch in range(9):
        tune.report({"acc": config["lr"] * (epoch + 1)})


def main(storage):
    scheduler = ASHAScheduler(time_attr="training_iteration", max_t=9, grace_period=1, reduction_factor=3)
    results = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([4, 6, 1, 9, 2, 7])},
        tune_config=tune.TuneConfig(
            metric="acc", mode="max", scheduler=scheduler, max_concurrent_trials=1, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="asha", storage_path=storage, verbose=0),
    ).fit()
    return {
        "epochs": [[r.config["lr"], r.metrics["training_iteration"]] for r in results],
        "best": results.get_best_result().config,
    }

"""Nested metrics are named by their path, for stopping and for the best result (docs: metrics)."""

from ray import tune


def train(config):
    for epoch in range(5):
        tune.report(
            {"train": {"loss": 1 / (epoch + 1)}, "val": {"acc": {"top1": config["q"] * epoch, "top5": 1.0}}}
        )


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"q": tune.grid_search([0.1, 0.2])},
        tune_config=tune.TuneConfig(
            metric="val/acc/top1", mode="max", reuse_actors=True, max_concurrent_trials=1
        ),
        run_config=tune.RunConfig(
            name="nested", storage_path=storage, verbose=0, stop={"val/acc/top1": 0.35}
        ),
    ).fit()
    best = results.get_best_result()
    return [best.config, best.metrics["val"], [r.metrics["training_iteration"] for r in results]]

"""Results of a finished experiment are read in another Tuner, without running (docs: analyze results)."""

import os

from ray import tune


def train(config):
    for step in range(3):
        tune.report({"loss": config["x"] / (step + 1)})


def main(storage):
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([6, 3])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name="read", storage_path=storage, verbose=0),
    ).fit()
    restored = tune.Tuner.restore(os.path.join(storage, "read"), trainable=train)
    results = restored.get_results()
    best = results.get_best_result()
    one = tune.Result.from_path(best.path)
    return {
        "count": len(results),
        "best": [best.config, best.metrics["loss"]],
        "one": [one.metrics["loss"], len(one.metrics_dataframe), one.error],
        "experiment": os.path.basename(results.experiment_path),
    }

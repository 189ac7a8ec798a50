"""LightGBM reports its metrics and saves its model by a callback (docs: tuning LightGBM parameters)."""

import lightgbm
import numpy
from ray import tune
from ray.tune.integration.lightgbm import TuneReportCheckpointCallback

IS_COSTLY = True
NEEDS = ("lightgbm",)


def train(config):
    rows = numpy.arange(80, dtype=float).reshape(40, 2)
    labels = (rows[:, 0] > 40).astype(int)
    lightgbm.train(
        {"objective": "binary", "metric": "binary_error", "verbose": -1, "num_threads": 1, **config},
        lightgbm.Dataset(rows, label=labels),
        num_boost_round=4,
        valid_sets=[lightgbm.Dataset(rows, label=labels)],
        valid_names=["eval"],
        callbacks=[TuneReportCheckpointCallback({"error": "eval-binary_error"}, frequency=2)],
    )


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"min_data_in_leaf": tune.grid_search([2, 100])},
        tune_config=tune.TuneConfig(metric="error", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="lightgbm", storage_path=storage, verbose=0),
    ).fit()
    best = results.get_best_result()
    model = TuneReportCheckpointCallback.get_model(best.checkpoint)
    return {
        "best": best.config,
        "errors": [round(result.metrics["error"], 6) for result in results],
        "trees": model.num_trees(),
        "rows": [len(result.metrics_dataframe) for result in results],
    }

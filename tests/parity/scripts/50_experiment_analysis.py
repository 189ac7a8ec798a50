"""tune.run returns an analysis, which can be read from its directory again (docs: ExperimentAnalysis)."""

import os

from ray import tune
from ray.tune import ExperimentAnalysis


def train(config):
    for step in range(3):
        tune.report({"mean_loss": config["x"] / (step + 1)})


def main(storage):
    analysis = tune.run(
        train,
        name="analysis",
        config={"x": tune.grid_search([3, 6])},
        metric="mean_loss",
        mode="min",
        storage_path=storage,
        verbose=0,
    )
    again = ExperimentAnalysis(
        os.path.join(storage, "analysis"), default_metric="mean_loss", default_mode="max"
    )
    return {
        "best": [analysis.best_config, analysis.best_result["mean_loss"], analysis.best_trial.status],
        "frames": sorted(len(frame) for frame in analysis.trial_dataframes.values()),
        "rows": sorted(analysis.dataframe()["mean_loss"].tolist()),
        "results": sorted(row["mean_loss"] for row in analysis.results.values()),
        "again": [again.best_config, len(again.trials), again.get_best_config(mode="min")],
        "all": sorted(config["x"] for config in analysis.get_all_configs().values()),
    }

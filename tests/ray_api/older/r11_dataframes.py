"""Ray 1.1: what ExperimentAnalysis had: dataframes, configs, a state file as its argument."""

import glob
import os

from ray import tune
from ray.tune import Analysis, ExperimentAnalysis


def objective(config):
    for i in range(4):
        tune.report(iterations=i, mean_loss=config["x"] / (i + 1), mean_accuracy=config["x"] * i)


here = os.getcwd()
analysis = tune.run(
    objective,
    name="analysis",
    local_dir=here,
    num_samples=1,
    config={"x": tune.grid_search([1.0, 2.0]), "y": {"z": tune.choice([3])}},
    resources_per_trial={"cpu": 1},
    verbose=0,
)
dfs = analysis.trial_dataframes
assert len(dfs) == 2
assert [d.mean_accuracy.max() for d in dfs.values()]
df = analysis.dataframe(metric="mean_loss", mode="min")
assert {"config/x", "config/y/z", "logdir"} <= set(df.columns), df.columns
assert len(analysis.results_df) == 2
assert analysis.get_best_config(metric="mean_loss", mode="min")["x"] == 1.0
assert len(analysis.get_all_configs()) == 2
assert len(analysis.fetch_trial_dataframes()) == 2
assert os.path.isdir(analysis.get_best_logdir("mean_loss", "min"))
again = ExperimentAnalysis(os.path.join(here, "analysis"), default_metric="mean_loss", default_mode="min")
assert again.best_config["x"] == 1.0
assert again.best_result["mean_loss"] == 0.25
assert len(again.best_dataframe) == 4
folder = Analysis(
    experiment_dir=os.path.join(here, "analysis"), default_metric="mean_loss", default_mode="min"
)
assert folder.get_best_config()["x"] == 1.0
assert len(folder.dataframe()) == 2
assert folder.get_best_logdir()

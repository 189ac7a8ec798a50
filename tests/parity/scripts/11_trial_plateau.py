"""TrialPlateauStopper ends a trial whose metric does not move (docs: built-in stoppers)."""

from ray import tune
from ray.tune.stopper import TrialPlateauStopper


def train(config):
    for step in range(20):
        tune.report({"loss": max(config["floor"], 10 - step)})


def main(storage):
    stopper = TrialPlateauStopper(metric="loss", std=0.01, num_results=3, grace_period=4)
    results = tune.Tuner(
        train,
        param_space={"floor": tune.grid_search([4, 8])},
        run_config=tune.RunConfig(name="plateau", storage_path=storage, verbose=0, stop=stopper),
    ).fit()
    return [result.metrics["training_iteration"] for result in results]

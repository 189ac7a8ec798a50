"""Several stoppers joined by OR (docs: CombinedStopper)."""

from ray import tune
from ray.tune.stopper import CombinedStopper, FunctionStopper, MaximumIterationStopper


def train(config):
    step = 0
    while True:
        step += 1
        tune.report({"value": config["x"] * step})


def main(storage):
    stopper = CombinedStopper(
        MaximumIterationStopper(max_iter=6), FunctionStopper(lambda trial_id, result: result["value"] > 7)
    )
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 4])},
        run_config=tune.RunConfig(name="combined", storage_path=storage, verbose=0, stop=stopper),
    ).fit()
    return [[result.metrics["training_iteration"], result.metrics["value"]] for result in results]

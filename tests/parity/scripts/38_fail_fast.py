"""The first failure ends the experiment (docs: FailureConfig(fail_fast=True))."""

from ray import tune


def train(config):
    if config["x"] == 2:
        raise ValueError("stop here")
    tune.report({"score": config["x"]})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name="fail_fast",
            storage_path=storage,
            verbose=0,
            failure_config=tune.FailureConfig(fail_fast=True),
        ),
    ).fit()
    return [
        [r.config["x"], r.error is not None, r.metrics.get("score") if r.metrics else None] for r in results
    ]

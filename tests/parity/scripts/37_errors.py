"""Failed trials are in the ResultGrid with their errors (docs: inspecting a ResultGrid)."""

from ray import tune


def train(config):
    tune.report({"score": config["x"]})
    if config["x"] == 2:
        raise ValueError("two is not allowed")


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="errors", storage_path=storage, verbose=0),
    ).fit()
    return {
        "errors": [results.num_errors, len(results.errors), "two is not allowed" in str(results.errors[0])],
        "error": [result.error is not None for result in results],
        "terminated": results.num_terminated,
        "scores": [result.metrics["score"] for result in results],
        "best": results.get_best_result().config,
    }

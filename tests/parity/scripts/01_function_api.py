"""A function reports once per epoch; the grid's best result is read (docs: key concepts, trainables)."""

from ray import tune


def objective(x, a, b):
    return a * (x**0.5) + b


def trainable(config):
    for x in range(4):
        tune.report({"score": objective(x, config["a"], config["b"])})


def main(storage):
    tuner = tune.Tuner(
        trainable,
        param_space={"a": tune.grid_search([1, 2]), "b": 4},
        run_config=tune.RunConfig(name="function_api", storage_path=storage, verbose=0),
    )
    results = tuner.fit()
    best = results.get_best_result(metric="score", mode="max")
    return {
        "config": best.config,
        "score": best.metrics["score"],
        "iterations": best.metrics["training_iteration"],
    }

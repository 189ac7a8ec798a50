"""A dictionary of metrics ends a trial at the first that is reached (docs: stopping criteria)."""

from ray import tune


def my_trainable(config):
    i = 1
    while True:
        tune.report({"mean_accuracy": min(i * config["speed"] / 10, 1.0), "deep": {"i": i}})
        i += 1


def main(storage):
    results = tune.Tuner(
        my_trainable,
        param_space={"speed": tune.grid_search([1, 4])},
        run_config=tune.RunConfig(
            name="stop", storage_path=storage, verbose=0, stop={"training_iteration": 5, "mean_accuracy": 0.8}
        ),
    ).fit()
    return [[r.metrics["training_iteration"], r.metrics["mean_accuracy"], r.metrics["done"]] for r in results]

"""A function decides for each result (docs: stop trials with a function)."""

from ray import tune


def my_trainable(config):
    i = 0
    while True:
        i += 1
        tune.report({"mean_accuracy": i / 10})


def stop_fn(trial_id, result):
    return result["mean_accuracy"] >= 0.3 or result["training_iteration"] >= 10


def main(storage):
    results = tune.Tuner(
        my_trainable, run_config=tune.RunConfig(name="stop_fn", storage_path=storage, verbose=0, stop=stop_fn)
    ).fit()
    return [results[0].metrics["training_iteration"], results[0].metrics["done"]]

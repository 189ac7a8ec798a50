"""A function returns its final metrics, and another one yields them (docs: function trainable API)."""

from ray import tune


def returns(config):
    return {"score": config["a"] ** 2}


def yields(config):
    for step in range(3):
        yield {"score": config["a"] * step}


def main(storage):
    values = {}
    for trainable in (returns, yields):
        results = tune.Tuner(
            trainable,
            param_space={"a": 3},
            run_config=tune.RunConfig(name=trainable.__name__, storage_path=storage, verbose=0),
        ).fit()
        values[trainable.__name__] = [results[0].metrics["score"], results[0].metrics["training_iteration"]]
    return values

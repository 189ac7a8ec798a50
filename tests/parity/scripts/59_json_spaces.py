"""Search spaces as they stand in JSON: grid_search and eval (docs: tune.run with a specification)."""

from ray import tune


def train(config):
    tune.report({"score": config["twice"]})


def main(storage):
    analysis = tune.run(
        train,
        name="json",
        config={"x": {"grid_search": [1, 2]}, "twice": {"eval": "spec.config.x * 2"}, "plain": {"a": [1]}},
        storage_path=storage,
        verbose=0,
        reuse_actors=True,
        max_concurrent_trials=1,
    )
    return [[trial.config, trial.experiment_tag] for trial in analysis.trials]

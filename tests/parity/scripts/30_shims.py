"""Searcher and scheduler made from their names (docs: shim instantiation)."""

from ray import tune


def train(config):
    for step in range(4):
        tune.report({"loss": config["x"] / (step + 1)})


def main(storage):
    search = tune.create_searcher("random", points_to_evaluate=[{"x": 1}, {"x": 5}], max_concurrent=1)
    scheduler = tune.create_scheduler("async_hyperband", max_t=4, grace_period=1, reduction_factor=2)
    results = tune.Tuner(
        train,
        param_space={"x": tune.randint(0, 9)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=search,
            scheduler=scheduler,
            num_samples=2,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="shims", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config, result.metrics["training_iteration"]] for result in results]

"""Results as pandas frames: the last row of each trial, the best one, and all (docs: analyze results)."""

from ray import tune


def train(config):
    for step in range(3):
        tune.report({"loss": (config["x"] - step) ** 2, "eval": {"acc": step / 2}})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([0, 1, 2]), "net": {"width": 8}},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(name="frames", storage_path=storage, verbose=0),
    ).fit()
    last = results.get_dataframe()
    best = results.get_dataframe(filter_metric="loss", filter_mode="min")
    own = results[0].metrics_dataframe
    columns = ["loss", "eval/acc", "training_iteration", "config/x", "config/net/width"]
    return {
        "last": last[columns].values.tolist(),
        "best": best[columns].values.tolist(),
        "own": own[["loss", "eval/acc", "training_iteration"]].values.tolist(),
    }

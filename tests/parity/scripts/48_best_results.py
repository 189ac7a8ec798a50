"""The best result by its last, best and mean value (docs: get_best_result and its scopes)."""

from ray import tune


def train(config):
    for value in config["values"]:
        tune.report({"score": value})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"values": tune.grid_search([[1, 9, 2], [4, 4, 5], [0, float("nan"), 3]])},
        tune_config=tune.TuneConfig(metric="score", mode="max", reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(name="best", storage_path=storage, verbose=0),
    ).fit()
    values = {
        scope: results.get_best_result(scope=scope).config["values"] for scope in ("last", "all", "avg")
    }
    values["last-5-avg"] = results.get_best_result(scope="last-5-avg").config["values"]
    values["worst"] = results.get_best_result("score", "min").config["values"]
    return values

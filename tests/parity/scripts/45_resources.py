"""Resources as a dictionary, bundles, and a function of the config (docs: trial resources)."""

from ray import tune


def train(config):
    resources = tune.get_context().get_trial_resources()
    tune.report({"bundles": resources.bundles, "strategy": resources.strategy, "cpus": resources.head_cpus})


def main(storage):
    wanted = {
        "dictionary": {"cpu": 0.5},
        "bundles": tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], strategy="PACK"),
        "function": lambda config: tune.PlacementGroupFactory([{"CPU": config["cpus"]}]),
    }
    values = {}
    for name, resources in wanted.items():
        results = tune.Tuner(
            tune.with_resources(train, resources),
            param_space={"cpus": 2},
            run_config=tune.RunConfig(name=name, storage_path=storage, verbose=0),
        ).fit()
        metrics = results[0].metrics
        values[name] = [metrics["bundles"], metrics["strategy"], metrics["cpus"]]
    return values

"""An experiment whose configs hold objects is restored with new ones (docs: Tuner.restore, param_space)."""

import os

from ray import tune


class Model:
    def __init__(self, rate):
        self.rate = rate

    def __repr__(self):
        return f"Model({self.rate})"


def train(config):
    tune.report({"rate": config["model"].rate})
    if not os.path.exists(config["marker"]):
        raise RuntimeError("not yet")
    tune.report({"rate": config["model"].rate + 1})


def main(storage):
    marker = os.path.join(storage, "marker")
    space = {"model": tune.grid_search([Model(1), Model(5)]), "marker": marker}
    first = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="objects", storage_path=storage, verbose=0),
    ).fit()
    before = [result.error is not None for result in first]
    with open(marker, "w"):
        pass
    path = os.path.join(storage, "objects")
    again = {"model": tune.grid_search([Model(2), Model(6)]), "marker": marker}
    results = tune.Tuner.restore(path, trainable=train, param_space=again, resume_errored=True).fit()
    os.remove(marker)
    return {
        "before": before,
        "after": sorted([result.error is None, result.metrics["rate"]] for result in results),
        "can": [tune.Tuner.can_restore(path), tune.Tuner.can_restore(os.path.join(storage, "none"))],
    }

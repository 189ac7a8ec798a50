"""A callback's state is saved with the experiment and released to a new one (docs: Callback.get_state)."""

import os

from ray import tune


class Counts(tune.Callback):
    def __init__(self):
        self.results = 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results += 1

    def get_state(self):
        return {"results": self.results}

    def set_state(self, state):
        self.results = state["results"]


def train(config):
    tune.report({"score": 1})
    if config["x"] == 2 and not os.path.exists(config["marker"]):
        raise RuntimeError("not yet")
    tune.report({"score": 2})


def main(storage):
    marker = os.path.join(storage, "marker")
    counts = Counts()
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2]), "marker": marker},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="stateful", storage_path=storage, verbose=0, callbacks=[counts]),
    ).fit()
    before = counts.results
    with open(marker, "w"):
        pass
    again = tune.Tuner.restore(os.path.join(storage, "stateful"), train, resume_errored=True).fit()
    os.remove(marker)
    return [before, [result.metrics["score"] for result in again], again.num_errors]

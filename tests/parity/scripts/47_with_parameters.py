"""Large objects are given to a function and to a class (docs: get data into Tune)."""

import numpy as np
from ray import tune


def train(config, data=None, offset=0):
    tune.report({"mean": float(np.mean(data[: config["n"]])) + offset})


class Trains(tune.Trainable):
    def setup(self, config, data=None):
        self.data = data

    def step(self):
        return {"sum": int(self.data[: self.config["n"]].sum()), "done": True}


def main(storage):
    data = np.arange(100_000)
    function = tune.Tuner(
        tune.with_parameters(train, data=data, offset=0.5),
        param_space={"n": tune.grid_search([10, 100])},
        run_config=tune.RunConfig(name="function", storage_path=storage, verbose=0),
    ).fit()
    cls = tune.Tuner(
        tune.with_parameters(Trains, data=data),
        param_space={"n": 5},
        run_config=tune.RunConfig(name="class", storage_path=storage, verbose=0),
    ).fit()
    return [[result.metrics["mean"] for result in function], cls[0].metrics["sum"]]

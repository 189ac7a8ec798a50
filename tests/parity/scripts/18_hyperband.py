"""HyperBand pauses trials and continues with the better half (docs: HyperBandScheduler)."""

import json
import os

from ray import tune
from ray.tune.schedulers import HyperBandScheduler

FILES_VARY = True  # the trial of a bracket that ends last is the one whose last row says "done"


class Learner(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"score": self.config["x"] * self.at}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "at.json"), "w") as stream:
            json.dump(self.at, stream)

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "at.json")) as stream:
            self.at = json.load(stream)


def main(storage):
    results = tune.Tuner(
        Learner,
        param_space={"x": tune.grid_search([3, 1, 4, 2, 5])},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", scheduler=HyperBandScheduler(max_t=3, reduction_factor=3)
        ),
        run_config=tune.RunConfig(name="hyperband", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config["x"], result.metrics["training_iteration"]] for result in results]

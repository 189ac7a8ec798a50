"""BOHB: HyperBand whose trials come from a model of all budgets (docs: TuneBOHB, HyperBandForBOHB)."""

import json
import os

import ConfigSpace
from ray import tune
from ray.tune.schedulers import HyperBandForBOHB
from ray.tune.search.bohb import TuneBOHB

FILES_VARY = True  # the trial of a bracket that ends last is the one whose last row says "done"
NEEDS = ("hpbandster", "ConfigSpace")


class Learner(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"loss": self.config["x"] / self.at}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "at.json"), "w") as stream:
            json.dump(self.at, stream)

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "at.json")) as stream:
            self.at = json.load(stream)


def main(storage):
    space = ConfigSpace.ConfigurationSpace({"x": (0.5, 9.5), "n": (1, 5)}, seed=4)
    results = tune.Tuner(
        Learner,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=TuneBOHB(space=space, metric="loss", mode="min"),
            scheduler=HyperBandForBOHB(time_attr="training_iteration", max_t=4, reduction_factor=2),
            num_samples=4,
        ),
        run_config=tune.RunConfig(name="bohb", storage_path=storage, verbose=0),
    ).fit()
    return [[round(r.config["x"], 6), r.config["n"], r.metrics["training_iteration"]] for r in results]

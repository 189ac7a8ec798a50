"""PB2 takes new values from a model, inside the bounds (docs: Population Based Bandits)."""

import os

from ray import tune
from ray.tune.schedulers.pb2 import PB2

FILES_VARY = True  # what the model chooses is not the same in every run
NEEDS = ("sklearn", "scipy")


class Climber(tune.Trainable):
    def setup(self, config):
        self.height = 0

    def step(self):
        self.height += self.config["stride"]
        return {"height": self.height}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "height"), "w") as stream:
            stream.write(str(self.height))

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "height")) as stream:
            self.height = int(stream.read())


def main(storage):
    scheduler = PB2(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_bounds={"rate": [0.25, 0.75]},
        quantile_fraction=0.5,
        synch=True,
    )
    results = tune.Tuner(
        Climber,
        param_space={"stride": tune.grid_search([1, 7]), "rate": 0.5},
        tune_config=tune.TuneConfig(metric="height", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(
            name="pb2", storage_path=storage, verbose=0, stop={"training_iteration": 5}
        ),
    ).fit()
    # The values are the model's business; what is copied, and where new values may lie, is not.
    return [
        [
            r.config["stride"],
            0.25 <= r.config["rate"] <= 0.75,
            r.metrics["height"],
            r.metrics["training_iteration"],
        ]
        for r in results
    ]

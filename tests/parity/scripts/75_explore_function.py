"""A population whose new configs go through a function, and are logged (docs: custom_explore_fn)."""

import os

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

FILES_VARY = True  # in Ray, rows and checkpoints of a trial that is replaced are lost or not, from run to run


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


def explore(config):
    config["stride"] = min(config["stride"] + 1, 9)
    return config


def main(storage):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        custom_explore_fn=explore,
        quantile_fraction=0.5,
        log_config=True,
        synch=True,
    )
    results = tune.Tuner(
        Climber,
        param_space={"stride": tune.grid_search([1, 7])},
        tune_config=tune.TuneConfig(metric="height", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(
            name="explore",
            storage_path=storage,
            verbose=0,
            stop={"training_iteration": 5},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    ).fit()
    files = sorted(os.listdir(os.path.join(storage, "explore")))
    return {
        "ends": [[r.config, r.metrics["height"], r.metrics["training_iteration"]] for r in results],
        "tags": [r.metrics["experiment_tag"].split("@")[0] for r in results],
        "logs": [name[:10] for name in files if name.startswith("pbt_")],
    }

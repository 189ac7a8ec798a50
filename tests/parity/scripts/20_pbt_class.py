"""Population based training of a class: the worse one copies the better one (docs: PBT guide)."""

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


def main(storage):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"stride": [7]},
        quantile_fraction=0.5,
        resample_probability=0,
        synch=True,
    )
    results = tune.Tuner(
        Climber,
        param_space={"stride": tune.grid_search([1, 7])},
        tune_config=tune.TuneConfig(metric="height", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(
            name="pbt", storage_path=storage, verbose=0, stop={"training_iteration": 5}
        ),
    ).fit()
    return [[r.config, r.metrics["height"], r.metrics["training_iteration"]] for r in results]

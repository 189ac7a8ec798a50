"""RayTrainable of dmg under its own imports, with a stand-in for its model and data."""

import muster.as_ray  # first: what follows imports ray

import sys
import tempfile

import torch
from dmg.core.tune import tune as dmg_tune
from ray import tune


class Model(torch.nn.Linear):
    def __init__(self, config, verbose=True):
        super().__init__(2, 1)


class Trainer:
    def __init__(self, config, model, **_):
        self.lr, self.total_loss = config["lr"], 1.0

    def train_one_epoch(self):
        self.total_loss *= 1 - self.lr


class Loader:
    def __init__(self, config):
        self.train_dataset = self.eval_dataset = self.dataset = None


class Small(dmg_tune.RayTrainable):
    def setup(self, config):
        dmg_tune.dModel = Model
        dmg_tune.import_data_loader = lambda _: Loader
        dmg_tune.import_trainer = lambda _: Trainer
        super().setup(config)

    def save_checkpoint(self, checkpoint_dir):
        super().save_checkpoint(checkpoint_dir)  # which returns a file, and Ray refuses that as well


if __name__ == "__main__":
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    grid = tune.Tuner(
        Small,
        param_space={"lr": tune.uniform(0.1, 0.5), "data_loader": "x", "trainer": "x"},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=3,
            search_alg=BasicVariantGenerator(random_state=1),
            scheduler=ASHAScheduler(max_t=3, grace_period=1),
        ),
        run_config=tune.RunConfig(storage_path=folder, stop={"training_iteration": 3}, verbose=0),
    ).fit()
    print("RESULT", grid.num_errors, [each.metrics["loss"] for each in grid])
    sys.exit(grid.num_errors)

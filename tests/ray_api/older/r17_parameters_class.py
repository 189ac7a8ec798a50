"""Ray 1.7 to 1.13: PBT over a class, with_parameters of a class, mixins, a trial by its _checkpoint, ray.put."""

import os
import random

import numpy as np
import ray
from ray import tune
from ray.tune import Trainable
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.trial import ExportFormat
from ray.tune.utils import wait_for_gpu
from ray.tune.utils.util import flatten_dict
from ray.tune.registry import register_env, get_trainable_cls
from ray.tune.logger import pretty_print


class PytorchTrainable(Trainable):
    def setup(self, config, data=None):
        self.data = data if data is not None else ray.get(config["data"])
        self.lr = config.get("lr", 0.01)
        self.score = 0.0

    def step(self):
        self.score += self.lr * float(np.mean(self.data))
        return {"mean_accuracy": self.score, "done": self.training_iteration >= 5}

    def save_checkpoint(self, checkpoint_dir):
        checkpoint_path = os.path.join(checkpoint_dir, "model.pth")
        open(checkpoint_path, "w").write(str(self.score))
        return checkpoint_path

    def load_checkpoint(self, checkpoint_path):
        self.score = float(open(checkpoint_path).read())

    def _export_model(self, export_formats, export_dir):
        path = os.path.join(export_dir, "exported")
        open(path, "w").write("x")
        return {ExportFormat.MODEL: path}

    def reset_config(self, new_config):
        self.lr = new_config.get("lr", 0.01)
        self.config = new_config
        return True


ray.init(num_cpus=2, log_to_driver=False)
scheduler = PopulationBasedTraining(
    time_attr="training_iteration",
    perturbation_interval=2,
    hyperparam_mutations={"lr": lambda: random.uniform(0.1, 1), "momentum": [0.8, 0.9]},
    custom_explore_fn=None,
    log_config=True,
)
analysis = tune.run(
    tune.with_parameters(PytorchTrainable, data=np.ones(1000)),
    name="pbt_class",
    scheduler=scheduler,
    reuse_actors=True,
    metric="mean_accuracy",
    mode="max",
    stop={"training_iteration": 5},
    checkpoint_score_attr="mean_accuracy",
    checkpoint_freq=1,
    keep_checkpoints_num=4,
    num_samples=2,
    config={"lr": tune.uniform(0.1, 1), "momentum": tune.uniform(0.1, 1)},
    export_formats=[ExportFormat.MODEL],
    verbose=0,
)
best_trial = analysis.best_trial
assert os.path.exists(analysis.best_checkpoint), analysis.best_checkpoint
trainable = PytorchTrainable(config={"lr": 0.1, "data": ray.put([1])})
trainable.restore(analysis.best_checkpoint)
assert trainable.score > 0
print(pretty_print(trainable.train()))
trainable.stop()
assert flatten_dict({"a": {"b": 1}}) == {"a/b": 1}

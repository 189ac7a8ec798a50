"""Ray 0.8 and 1.0: a class with _setup, _train, _save and _restore."""

import json
import os

import ray
from ray import tune
from ray.tune import Trainable


class MyTrainable(Trainable):
    def _setup(self, config):
        self.timestep = 0

    def _train(self):
        self.timestep += 1
        return {"episode_reward_mean": self.config["width"] * self.timestep}

    def _save(self, checkpoint_dir):
        path = os.path.join(checkpoint_dir, "checkpoint")
        with open(path, "w") as f:
            f.write(json.dumps({"timestep": self.timestep}))
        return checkpoint_dir

    def _restore(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "checkpoint")) as f:
            self.timestep = json.loads(f.read())["timestep"]


ray.init(num_cpus=2)
analysis = tune.run(
    MyTrainable,
    name="my_trainable",
    stop={"training_iteration": 3},
    checkpoint_freq=1,
    config={"width": tune.grid_search([1, 2])},
    verbose=0,
)
assert analysis.get_best_trial("episode_reward_mean", "max").last_result["episode_reward_mean"] == 6
ray.shutdown()

"""A class says in its results when to save and that it is done (docs: should_checkpoint, done)."""

import os

from ray import tune


class Chooses(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {
            "at": self.at,
            "should_checkpoint": self.at in (1, 3),
            "done": self.at == 4,
            "timesteps_this_iter": 5,
        }

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


def main(storage):
    results = tune.Tuner(
        Chooses, run_config=tune.RunConfig(name="keys", storage_path=storage, verbose=0, stop={"at": 9})
    ).fit()
    metrics = results[0].metrics
    names = sorted(os.path.basename(each.path) for each, _ in results[0].best_checkpoints)
    return [metrics["at"], metrics["done"], metrics["timesteps_total"], names]

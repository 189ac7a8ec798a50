"""tune.run of a class with checkpoints, and a second run from the last of them (docs: tune.run, restore=)."""

import os

from ray import tune


class Counter(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"at": self.at}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "at"), "w") as stream:
            stream.write(str(self.at))

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "at")) as stream:
            self.at = int(stream.read())


def main(storage):
    first = tune.run(
        Counter,
        name="first",
        stop={"training_iteration": 3},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
        storage_path=storage,
        verbose=0,
    )
    last = first.get_last_checkpoint(first.trials[0])
    more = tune.run(
        Counter,
        name="more",
        stop={"training_iteration": 5},
        restore=last.path,
        storage_path=storage,
        verbose=0,
    )
    return [os.path.basename(last.path), more.trials[0].last_result["at"], more.trials[0].last_result["done"]]

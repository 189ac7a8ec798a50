"""A class is saved every second iteration and at the end (docs: checkpoint frequency, checkpoint at end)."""

import os

from ray import tune


class Counter(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        return {"count": self.count}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "count.txt"), "w") as stream:
            stream.write(str(self.count))
        return checkpoint_dir

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "count.txt")) as stream:
            self.count = int(stream.read())


def main(storage):
    results = tune.Tuner(
        Counter,
        run_config=tune.RunConfig(
            name="class_checkpoints",
            storage_path=storage,
            verbose=0,
            stop={"training_iteration": 5},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
        ),
    ).fit()
    pairs = results[0].best_checkpoints
    return [[os.path.basename(checkpoint.path), metrics["count"]] for checkpoint, metrics in pairs]

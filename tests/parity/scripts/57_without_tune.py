"""A Trainable and checkpoints are used by hand, without an experiment (docs: Trainable, Checkpoint)."""

import os
import tempfile

from ray.tune import Checkpoint, Trainable


class Adds(Trainable):
    def setup(self, config):
        self.total = 0

    def step(self):
        self.total += self.config["x"]
        return {"total": self.total}

    def save_checkpoint(self, checkpoint_dir):
        return {"total": self.total}

    def load_checkpoint(self, checkpoint):
        self.total = checkpoint["total"]


def main(storage):
    one = Adds({"x": 3})
    totals = [one.train()["total"], one.train()["total"]]
    saved = one.save()
    other = Adds({"x": 10})
    other.restore(saved)
    after = other.train()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "data.txt"), "w") as stream:
            stream.write("kept")
        checkpoint = Checkpoint.from_directory(folder)
        checkpoint.set_metadata({"epoch": 1})
        checkpoint.update_metadata({"loss": 0.5})
        copied = checkpoint.to_directory(os.path.join(storage, "copy"))
        with open(os.path.join(copied, "data.txt")) as stream:
            text = stream.read()
        metadata = checkpoint.get_metadata()
    return [totals, after["total"], after["training_iteration"], other.iteration, metadata, text]

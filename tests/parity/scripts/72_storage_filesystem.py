"""Results and checkpoints go to a file system object (docs: configuring persistent storage)."""

import os
import tempfile

import pyarrow.fs
from ray import tune

NEEDS = ("pyarrow",)


def train(config):
    for step in range(2):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "step.txt"), "w") as stream:
                stream.write(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))


def main(storage):
    bucket = os.path.join(storage, "bucket")
    os.makedirs(bucket)
    filesystem = pyarrow.fs.SubTreeFileSystem(bucket, pyarrow.fs.LocalFileSystem())
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(
            name="elsewhere", storage_path="results", storage_filesystem=filesystem, verbose=0
        ),
    ).fit()
    result = results[0]
    with result.checkpoint.as_directory() as folder, open(os.path.join(folder, "step.txt")) as stream:
        text = stream.read()
    again = tune.Tuner.restore("results/elsewhere", train, storage_filesystem=filesystem).get_results()
    return {
        "text": text,
        "kind": result.filesystem.type_name,
        "path": result.path.startswith("results/elsewhere/train_"),
        "checkpoint": os.path.basename(result.checkpoint.path),
        "can restore": tune.Tuner.can_restore("results/elsewhere", storage_filesystem=filesystem),
        "not there": tune.Tuner.can_restore("results/nowhere", storage_filesystem=filesystem),
        "again": [each.metrics["step"] for each in again],
    }

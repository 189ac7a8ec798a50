"""A function saves its state, and a second experiment starts from it (docs: trial checkpoints)."""

import json
import os
import tempfile

from ray import tune


def train(config):
    start = 0
    if config.get("start_from"):
        with (
            tune.Checkpoint(config["start_from"]).as_directory() as folder,
            open(os.path.join(folder, "state.json")) as stream,
        ):
            start = json.load(stream)["epoch"] + 1
    for epoch in range(start, start + 3):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state.json"), "w") as stream:
                json.dump({"epoch": epoch}, stream)
            tune.report({"epoch": epoch}, checkpoint=tune.Checkpoint.from_directory(folder))


def main(storage):
    results = tune.Tuner(
        train, run_config=tune.RunConfig(name="first", storage_path=storage, verbose=0)
    ).fit()
    checkpoint = results[0].checkpoint
    more = tune.Tuner(
        train,
        param_space={"start_from": checkpoint.path},
        run_config=tune.RunConfig(name="second", storage_path=storage, verbose=0),
    ).fit()
    with more[0].checkpoint.as_directory() as folder:
        return {
            "first": [os.path.basename(checkpoint.path), results[0].metrics["epoch"]],
            "second": [os.path.basename(more[0].checkpoint.path), more[0].metrics["epoch"]],
            "files": sorted(os.listdir(folder))[-1:],
        }

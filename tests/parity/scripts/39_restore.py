"""An experiment with a failed trial is restored, and the trial continues (docs: restoring an experiment)."""

import json
import os
import tempfile

from ray import tune


def train(config):
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "step.json")) as stream:
            start = json.load(stream) + 1
    for step in range(start, 4):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "step.json"), "w") as stream:
                json.dump(step, stream)
            tune.report({"step": step, "x": config["x"]}, checkpoint=tune.Checkpoint.from_directory(folder))
        if config["x"] == 2 and step == 1 and start == 0:
            raise RuntimeError("broken")


def main(storage):
    first = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="restore", storage_path=storage, verbose=0),
    ).fit()
    path = os.path.join(storage, "restore")
    again = tune.Tuner.restore(path, trainable=train, resume_errored=True).fit()
    return {
        "can": [tune.Tuner.can_restore(path), tune.Tuner.can_restore(storage)],
        "first": first.num_errors,
        "again": [again.num_errors, sorted([r.config["x"], r.metrics["step"]] for r in again)],
    }

"""A function is started again after failures, from its last checkpoint (docs: fault tolerance of trials)."""

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
    for step in range(start, 6):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "step.json"), "w") as stream:
                json.dump(step, stream)
            tune.report({"step": step, "started_at": start}, checkpoint=tune.Checkpoint(folder))
        marker = os.path.join(config["markers"], str(step))
        if step in (1, 3) and not os.path.exists(marker):
            with open(marker, "w"):
                pass
            raise RuntimeError(f"failed once after {step}")


def main(storage):
    markers = os.path.join(storage, "markers")
    os.mkdir(markers)
    results = tune.Tuner(
        train,
        param_space={"markers": markers},
        run_config=tune.RunConfig(
            name="retries", storage_path=storage, verbose=0, failure_config=tune.FailureConfig(max_failures=3)
        ),
    ).fit()
    metrics = results[0].metrics
    return [metrics["step"], metrics["started_at"], metrics["training_iteration"], results[0].error]

"""Finds the best learning rate and width of a toy model, stops bad trials early and keeps checkpoints.

python examples/tune/first.py [DIRECTORY]
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path

from muster import tune
from muster.tune.schedulers import ASHAScheduler


def train(config: dict) -> None:
    """Simulates training: the loss is lower the nearer the configuration is to the best one."""
    step = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "state.json").read_text())["step"]
    distance = abs(math.log10(config["lr"]) + 2) + abs(config["width"] - 64) / 64
    while step < 20:
        step += 1
        loss = distance + 1 / step
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps({"step": step}))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "width": tune.choice([16, 64, 256])},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=12, scheduler=ASHAScheduler(max_t=20, grace_period=2)
        ),
        run_config=tune.RunConfig(
            name="first", storage_path=storage, checkpoint_config=tune.CheckpointConfig(num_to_keep=1)
        ),
    )
    best = tuner.fit().get_best_result()
    print(f"best loss {best.metrics['loss']:.3f} with {best.config}")
    print(f"files of the best trial: {best.path}")


if __name__ == "__main__":
    main()

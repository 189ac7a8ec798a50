"""Runs the same experiment on this machine or on a Ray cluster.

python examples/tune/on_ray.py [DIRECTORY]            on this machine, or on Ray where RAY_ADDRESS is set
RAY_ADDRESS=head:6379 python examples/tune/on_ray.py DIRECTORY_THAT_EVERY_NODE_MOUNTS
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from muster import tune

STEPS = 5


def train(config: dict) -> None:
    """Trains, and resumes from its checkpoint when its node was lost or taken back."""
    step = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "state.json").read_text())["step"]
    while step < STEPS:
        step += 1
        loss = (config["x"] - 0.3) ** 2 + 1 / step
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps({"step": step}))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"x": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=4),
        run_config=tune.RunConfig(
            name="on_ray",
            storage_path=storage,
            engine="auto",  # "ray": only on a cluster; "local": only on this machine
            failure_config=tune.FailureConfig(max_failures=2),  # a lost node counts, a preempted one does not
            verbose=0,
        ),
    )
    best = tuner.fit().get_best_result()
    print(f"best loss {best.metrics['loss']:.3f} at x = {best.config['x']:.3f} on {best.metrics['hostname']}")


if __name__ == "__main__":
    main()

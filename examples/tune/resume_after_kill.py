"""Resumes an experiment whose driver was killed with `kill -9`, without losing a result.

python examples/tune/resume_after_kill.py [DIRECTORY]
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from muster import tune


def train(config: dict) -> None:
    """Runs twenty steps and reports a checkpoint at every fifth."""
    step = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads(Path(folder, "state.json").read_text())["step"]
    while step < 20:
        step += 1
        time.sleep(0.02)
        metrics = {"loss": config["x"] / step}
        if step % 5:
            tune.report(metrics)
        else:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "state.json").write_text(json.dumps({"step": step}))
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def run(storage: str) -> None:
    """Starts the experiment or resumes it, as a script that may be killed should do."""
    path = Path(storage, "resumable")
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, train)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.grid_search(list(range(1, 9)))},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(name="resumable", storage_path=storage, verbose=0),
        )
    grid = tuner.fit()
    steps = [[row["training_iteration"] for row in result.metrics_history] for result in grid]
    is_complete = all(each == list(range(1, 21)) for each in steps)
    print(f"{len(grid)} trials, each of the 20 results recorded once: {'yes' if is_complete else 'no'}")


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    if len(sys.argv) > 2:
        run(storage)
        return
    command = [sys.executable, __file__, storage, "run"]
    first = subprocess.Popen(command)
    time.sleep(1.5)
    first.send_signal(signal.SIGKILL)
    first.wait()
    print("killed the first driver, which also ended its trials")
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

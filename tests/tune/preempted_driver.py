"""Run one experiment of ten steps on Ray, whose trial waits in its fourth step until it is told to leave.

Called by test_preemption_on_ray.py: `function` or `class`, and a directory. Prints the outcome as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from muster import train, tune

STEPS, WAITS_AT, MOST_S = 10, 3, 300.0


def node_id():
    import ray

    return ray.get_runtime_context().get_node_id()


def take(step, folder):
    """One step: notes that it was taken; one of them waits until the machine is announced."""
    with open(f"{folder}/taken.txt", "a", encoding="utf-8") as stream:
        stream.write(f"{step} {node_id()}\n")
    give_up = time.monotonic() + MOST_S
    while step == WAITS_AT and tune.get_preemption_info() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    info = train.get_preemption_info()
    told = "-" if info is None else f"{info.kind} by {info.source}, {info.left_s(time.time()) > 0}"
    return {"step": step, "node": node_id(), "told": told, "done": step == STEPS - 1}


def run_function(config):
    import tempfile

    start = 0
    if (found := tune.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            start = int(Path(folder, "step").read_text(encoding="utf-8")) + 1
    for step in range(start, STEPS):
        result = take(step, config["folder"])
        if not tune.should_checkpoint():
            tune.report(result)
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step), encoding="utf-8")
            tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))


class Steps(tune.Trainable):
    """Saves its step when it is asked to."""

    def setup(self, config):
        self.next = 0

    def step(self):
        self.next += 1
        return take(self.next - 1, self.config["folder"])

    def save_checkpoint(self, checkpoint_dir):
        return {"next": self.next}

    def load_checkpoint(self, checkpoint):
        self.next = checkpoint["next"]


def main(kind, folder):
    trainable = tune.with_resources(run_function if kind == "function" else Steps, {"cpu": 1, "moves": 1})
    run = tune.RunConfig(name="moved", storage_path=folder, verbose=0, engine="ray")
    grid = tune.Tuner(trainable, param_space={"folder": folder}, run_config=run).fit()
    (result,) = grid
    rows = result.metrics_dataframe[["training_iteration", "step", "node", "told"]].values.tolist()
    sys.stdout.write(json.dumps({"errors": list(map(str, grid.errors)), "rows": rows}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

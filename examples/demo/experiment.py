"""Runs the experiment of the demo: trials of one CPU each, more of them than the head can hold.

run.py starts this ordinary tuning script: `engine="ray"` makes the trials run on Ray, and RAY_ADDRESS names
the cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from muster import tune
from muster.tune import Callback, RunConfig, TuneConfig, Tuner

STEPS, STEP_S = 8, 1.0


def train(config):
    """Simulates work and reports the type of the machine that runs the trial."""
    for step in range(STEPS):
        time.sleep(STEP_S)
        loss = (config["x"] - 0.3) ** 2 + 1.0 / (step + 1)
        tune.report({"loss": loss, "machine": os.environ.get("RAY_NODE_TYPE_NAME", "")})


class TrialEvents(Callback):
    """A TrialEvents writes one JSON line per start or end of a trial, for picture.py and run.py."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_trial_start(self, iteration, trials, trial, **info):
        self._write("start", trial)

    def on_trial_complete(self, iteration, trials, trial, **info):
        self._write("complete", trial)

    def on_trial_error(self, iteration, trials, trial, **info):
        self._write("error", trial)

    def _write(self, event, trial) -> None:
        machine = (trial.last_result or {}).get("machine", "")
        line = {"event": event, "trial": trial.trial_id, "at": time.time(), "machine": machine}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    given = parser.parse_args()
    tuner = Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=TuneConfig(metric="loss", mode="min", num_samples=given.trials),
        run_config=RunConfig(
            name="demo",
            engine="ray",
            storage_path=str(given.storage),
            callbacks=[TrialEvents(given.events)],
            verbose=0,
        ),
    )
    results = tuner.fit()
    best = results.get_best_result()
    print(
        json.dumps({"trials": len(results), "errors": results.num_errors, "best_loss": best.metrics["loss"]})
    )


if __name__ == "__main__":
    main()

"""The program that tests kill: an experiment with checkpoints and failures; begins or goes on.

Usage: python victim.py STORAGE SCHEDULER SEARCHER
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from muster import tune
from muster.tune.schedulers import ASHAScheduler, FIFOScheduler
from muster.tune.search import BasicVariantGenerator
from muster.tune.search.optuna import OptunaSearch

TRIALS, ITERATIONS = 16, 12


def train(config):
    """Reports 12 times, checkpoints every third; what report() took is noted in a file of its own."""
    here, start = Path(config["notes"]), 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = json.loads(Path(directory, "state.json").read_text())["done"]
    name = tune.get_context().get_trial_id()
    for step in range(start + 1, ITERATIONS + 1):
        time.sleep(0.01)
        once = here / f"{name}.failed"
        if config["x"] > 0.8 and step == 5 and not once.exists():
            once.touch()
            raise RuntimeError("fails once")
        metrics = {"loss": config["x"] + 1 / step, "step": step}
        if step % 3:
            tune.report(metrics)
        else:
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, "state.json").write_text(json.dumps({"done": step}))
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(directory))
        with open(here / name, "a") as file:
            file.write(f"{step}\n")


def scheduler(kind):
    if kind == "fifo":
        return FIFOScheduler()
    return ASHAScheduler(max_t=ITERATIONS, grace_period=2, reduction_factor=2, type=kind)


def searcher(kind):
    return OptunaSearch(seed=7) if kind == "optuna" else BasicVariantGenerator(random_state=7)


def make_tuner(storage, scheduler_kind, searcher_kind):
    path = Path(storage, "exp")
    if tune.Tuner.can_restore(path):
        return tune.Tuner.restore(path, train)
    return tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1), "notes": str(Path(storage, "notes"))},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=TRIALS,
            scheduler=scheduler(scheduler_kind),
            search_alg=searcher(searcher_kind),
            max_concurrent_trials=3 if searcher_kind == "optuna" else None,
        ),
        run_config=tune.RunConfig(
            name="exp",
            storage_path=storage,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=2),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        ),
    )


if __name__ == "__main__":
    os.makedirs(os.path.join(sys.argv[1], "notes"), exist_ok=True)
    grid = make_tuner(*sys.argv[1:4]).fit()
    told = {"trials": len(grid), "errors": [str(error) for error in grid.errors]}
    sys.stdout.write(json.dumps(told) + "\n")

"""Make trials and an experiment for tests of reporters."""

from __future__ import annotations

import os
import time

from muster.trials.model import Trial
from muster.trials.states import TrialState
from muster.tune.reporting.reporter import RunInfo

# 2026-11-15 21:37:05 in whatever zone the tests run
NOW = time.mktime((2026, 11, 15, 21, 37, 5, 0, 0, -1))


def trial(number, status="TERMINATED", *, loss=None, iterations=3, failures=0, x=None, **result):
    made = Trial(
        "obj",
        trial_id=f"a1a89_{number:05d}",
        config={"x": float(number) / 4 if x is None else x, "k": number % 3},
        evaluated_params={"x": float(number) / 4 if x is None else x, "k": number % 3},
    )
    made.state = TrialState(status)
    made.experiment_dir, made.relative_logdir = "/results/try", f"trial_{number}"
    made.num_failures = failures
    if failures:
        made.error_filename = "error.txt"
    if loss is not None:
        made.last_result = {
            "loss": loss,
            "training_iteration": iterations,
            "trial_id": made.trial_id,
            "time_total_s": 1.5,
            "config": made.config,
            **result,
        }
    return made


def run_info(**changes):
    values = {
        "name": "try",
        "directory": "/results/try",
        "metric": "loss",
        "mode": "min",
        "searcher": "BasicVariantGenerator",
        "scheduler": "FIFOScheduler",
        "total": 50,
        "capacity": {"CPU": 2.0, "memory": 8.0 * 2**30},
        "used": lambda: {"CPU": 2.0},
        "parameters": ("x", "k"),
        "scheduler_debug": lambda: "Using FIFO scheduling algorithm.",
    }
    return RunInfo(**{**values, **changes})


def move(made, status):
    made.state = TrialState(status)
    return made


def start(reporter, trials, made):
    move(made, "RUNNING")
    reporter.on_trial_start(iteration=0, trials=trials, trial=made)


def finish(reporter, trials, made):
    reporter.on_trial_complete(iteration=0, trials=trials, trial=made)
    move(made, "TERMINATED")


def step(reporter, trials):
    reporter.on_step_end(iteration=0, trials=trials)


def environment(**extra):
    return {"PATH": os.defpath, "TERM": "xterm-256color", "HOME": "/nest/me", **extra}

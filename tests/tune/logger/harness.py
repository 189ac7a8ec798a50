"""Fire the hooks of an experiment by hand, and read its files back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from muster.trials.model import CheckpointRef, Trial
from muster.tune.callback import CallbackList
from muster.tune.logger.files.writer import LogWriter
from muster.tune.logger.logger import attach_loggers, default_callbacks


def make_trial(name="t1", config=None, **more):
    more.setdefault("relative_logdir", f"dir_{name}")
    return Trial("f", trial_id=name, config={"x": 1} if config is None else config, **more)


def checkpoint_at(harness, trial, iteration):
    path = f"{harness.directory}/{trial.relative_logdir}/checkpoint_000000"
    return CheckpointRef(path=path, index=0, metrics={"training_iteration": iteration}, rows=iteration)


class LoggerHarness:
    """Has the default callbacks over a directory, with `given` before them."""

    def __init__(self, directory, given=(), **writer):
        self.directory = Path(directory)
        self.writer = LogWriter(**{"flush_every_s": 0.01, **writer})
        callbacks = default_callbacks(given, {})
        attach_loggers(callbacks, self.writer, str(directory))
        self.hooks = CallbackList(callbacks)

    def fire(self, hook, trial, **info):
        self.hooks.fire(hook, iteration=0, trials=[trial], trial=trial, **info)

    def start(self, trial):
        trial.num_rows = trial.newest.rows if trial.newest else 0
        self.fire("on_trial_start", trial)

    def report(self, trial, iteration, **metrics):
        result = {**metrics, "training_iteration": iteration, "config": trial.config}
        self.fire("on_trial_result", trial, result=result)
        trial.num_rows += 1
        return result

    def complete(self, trial):
        self.fire("on_trial_complete", trial)

    def path(self, trial, name):
        return self.directory / trial.relative_logdir / name

    def rows(self, trial):
        """result.json without the config."""
        lines = self.path(trial, "result.json").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "config"} for line in lines]

    def table(self, trial):
        with self.path(trial, "progress.csv").open(newline="") as file:
            return list(csv.DictReader(file))

"""Provide small trainables and experiments that the conformance tests share."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from muster import tune
from muster.host.machine import cpu_count
from muster.tune import Callback, RunConfig, Trainable, TuneConfig, Tuner
from muster.tune.search import Searcher

ALL_CPUS = {"cpu": cpu_count()}  # one trial at a time


class Counter(Trainable):
    """Counts its steps and can save them; reports its resets and its process."""

    def setup(self, config):
        self.at = self.resets = 0

    def step(self):
        self.at += 1
        if self.config.get("fails") and self.at == 2:
            raise RuntimeError(f"trial {self.config.get('i')} fails")
        sys.stdout.write(f"step {self.at} of {self.config.get('i')}\n")
        return {"at": self.at, "resets": self.resets, "process": os.getpid()}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "at.json").write_text(json.dumps(self.at))

    def load_checkpoint(self, checkpoint):
        self.at = json.loads(Path(checkpoint, "at.json").read_text())

    def reset_config(self, new_config):
        self.at = 0
        self.resets += 1
        return True


def fit(trainable, tmp_path, space=None, *, run=None, **config):
    """Run quietly in `tmp_path`/e; keyword arguments are TuneConfig's, `run` is RunConfig's."""
    return Tuner(
        trainable,
        param_space=space or {},
        tune_config=TuneConfig(**config),
        run_config=RunConfig(**{"name": "e", "storage_path": str(tmp_path), "verbose": 0, **(run or {})}),
    ).fit()


def resumed(tmp_path, trainable, **rules):
    """Return a Tuner that resumes `tmp_path`/e, without the callbacks that had interrupted it."""
    tuner = Tuner.restore(str(tmp_path / "e"), trainable, **rules)
    tuner._spec.run.callbacks = []
    return tuner


def column(grid, name):
    """Return one metric of every trial, in the order of their creation."""
    return [result.metrics.get(name) for result in grid]


def checkpoints(result):
    """Return the names of its checkpoint directories that exist."""
    return sorted(path.name for path in Path(result.path).glob("checkpoint_*"))


class Interrupts(Callback):
    """Interrupts ends the run gently, as Ctrl-C does, at this many results."""

    def __init__(self, results, signal_number=signal.SIGUSR1):
        self.left, self.signal_number = results, signal_number

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signal_number)


def report_steps(config):
    """Report `config["steps"]` times."""
    for step in range(config.get("steps", 3)):
        tune.report({"step": step})


def nested_steps(config):
    for step in range(100):
        tune.report({"a": {"b": {"c": step}}, "step": step})


class Wants(Searcher):
    """Wants suggests empty configs, and needs a metric that is never reported."""

    def __init__(self):
        super().__init__(metric="missing", mode="max")

    def suggest(self, trial_id):
        return {}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

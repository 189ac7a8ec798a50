"""Names of experiments and directories of trials, with the date in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from muster.base.clock import Clock
from muster.base.ids import RandomIds
from muster.trials.model import Trial
from muster.tune.execution.names import trial_dirname, unique_dirname

DATE = "%Y-%m-%d_%H-%M-%S"


def dated(at: float) -> str:
    return datetime.fromtimestamp(at).strftime(DATE)


_of_second = lru_cache(maxsize=1)(dated)  # trials come many at a time


def dated_name(trainable: str, at: float, environment: Mapping[str, str]) -> str:
    """`train_2026-11-16_02-10-00`; without the date when TUNE_DISABLE_DATED_SUBDIR=1."""
    if environment.get("TUNE_DISABLE_DATED_SUBDIR") == "1":
        return trainable
    return f"{trainable}_{dated(at)}"


def directory_namer(experiment: Path, clock: Clock) -> Callable[[Trial], str]:
    """A directory name for each trial that no other trial has.

    One writer at a time has the experiment, so names that are not there at first are taken only here.
    """
    taken: set[str] = set(os.listdir(experiment)) if experiment.is_dir() else set()
    ids = RandomIds()

    def name(trial: Trial) -> str:
        wanted = trial_dirname(trial, _of_second(int(clock.now())))
        chosen = unique_dirname(wanted, taken.__contains__, lambda: ids.fresh("x")[-4:])
        taken.add(chosen)
        return chosen

    return name

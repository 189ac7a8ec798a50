"""Writes PBT's policy files: what was changed into what, for users and for PopulationBasedTrainingReplay.

The scheduler only makes rows; PolicyLog, a callback of the experiment, writes them. A row is written once,
even if its event is handled again after a crash: rows are numbered, and the global file has one line each.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from muster.host.atomic_write import atomic_write
from muster.host.regular_file import read_regular
from muster.trials.metrics import TRAINING_ITERATION
from muster.trials.model import CheckpointRef, Trial
from muster.tune.callback import Callback
from muster.tune.schedulers.pbt_explore import original_tag

logger = logging.getLogger(__name__)

GLOBAL_FILE = "pbt_global.txt"


class LogRow(NamedTuple):
    """A LogRow is one perturbation."""

    number: int  # of this run, from 0
    target_id: str
    donor_id: str
    line: str  # JSON: target tag, clone tag, target iteration, clone iteration, clone config, new config


class HasLogRows(Protocol):
    def take_log_rows(self) -> list[LogRow]: ...


def log_row(
    number: int, target: Trial, donor: Trial, checkpoint: CheckpointRef, new: Mapping[str, Any]
) -> LogRow:
    """Returns the row of a change about to be made. Tags are the original ones."""
    shown = {**donor.last_result, **checkpoint.metrics}
    row = [
        original_tag(target.experiment_tag),
        original_tag(donor.experiment_tag),
        target.last_result.get(TRAINING_ITERATION, 0),
        shown.get(TRAINING_ITERATION, 0),
        donor.config,
        new,
    ]
    return LogRow(number, target.trial_id, donor.trial_id, json.dumps(row, default=_as_data))


def policy_file(trial_id: str) -> str:
    return f"pbt_policy_{trial_id}.txt"


class PolicyLog(Callback):
    """A PolicyLog writes a scheduler's rows into an experiment's directory at the end of every step."""

    def __init__(self, scheduler: HasLogRows, directory: str, *, is_new: bool) -> None:
        """`is_new`: files of another experiment that are there are removed when the first row is written."""
        self._scheduler, self._directory, self._is_new = scheduler, directory, is_new
        self._lines: int | None = None  # of the global file

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: object) -> None:
        self.write()  # what a restore has made again

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        self.write()

    def write(self) -> None:
        rows = self._scheduler.take_log_rows()
        try:
            for row in rows:
                self._write(row)
        except OSError as error:
            logger.warning("the policy of the population is not written: %s", error)

    def _write(self, row: LogRow) -> None:
        if self._lines is None:
            self._lines = self._begin()
        if row.number < self._lines:
            return
        # The global file last: its line implies that the trial's file is complete.
        line = row.line.encode() + b"\n"
        history = self._read(policy_file(row.donor_id)) or self._read(policy_file(row.target_id))
        if not history.endswith(line):  # a crash may have come just before the next line
            atomic_write(self._path(policy_file(row.target_id)), history + line)
        with open(self._path(GLOBAL_FILE), "ab") as stream:
            stream.write(line)
        self._lines += 1

    def _begin(self) -> int:
        """Returns how many rows are there; half a row, left by a crash, is removed."""
        if self._is_new:
            for name in os.listdir(self._directory):
                if name == GLOBAL_FILE or (name.startswith("pbt_policy_") and name.endswith(".txt")):
                    os.unlink(self._path(name))
        content = self._read(GLOBAL_FILE)
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            atomic_write(self._path(GLOBAL_FILE), whole)
        return whole.count(b"\n")

    def _read(self, name: str) -> bytes:
        try:
            return read_regular(self._path(name))
        except FileNotFoundError:
            return b""

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _as_data(value: object) -> Any:  # noqa: ANN401 - what JSON knows
    """Returns numbers and arrays of numpy as data, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)

"""Write PBT's policy files, which say what was changed into what, and trains one trial by such a file.

The scheduler only makes rows; PolicyLog, a callback of the experiment, writes them. A row is written once,
even if its event is handled again after a crash: rows are numbered, and the global file has one line each.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muster.host.atomic_write import atomic_write
from muster.host.regular_file import read_regular
from muster.trials.metrics import TRAINING_ITERATION
from muster.trials.model import CheckpointRef, Trial
from muster.trials.plugins import PAUSED, ControllerView
from muster.trials.states import TrialState
from muster.tune.callback import Callback
from muster.tune.schedulers.pbt_explore import original_tag
from muster.tune.schedulers.trial_scheduler import FIFOScheduler, explain
from muster.tune.search.paths import format_vars

logger = logging.getLogger(__name__)

GLOBAL_FILE = "pbt_global.txt"


class LogRow(NamedTuple):
    """One perturbation."""

    number: int  # of this run, from 0
    target_id: str
    donor_id: str
    line: str  # JSON: target tag, clone tag, target iteration, clone iteration, clone config, new config


def log_row(
    number: int, target: Trial, donor: Trial, checkpoint: CheckpointRef, new: Mapping[str, Any]
) -> LogRow:
    """Return the row of a change about to be made. Tags are the original ones."""
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
    """Writes a scheduler's rows into an experiment's directory at the end of every step."""

    def __init__(self, scheduler: Any, directory: str, *, is_new: bool) -> None:  # noqa: ANN401 - a user's
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
        """Return how many rows are there; half a row, left by a crash, is removed."""
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
    """Return numbers and arrays of numpy as data, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


_ROW_LENGTH = 6


class Change(NamedTuple):
    """Says which configuration applies from an iteration on."""

    step: int
    config: dict[str, Any]


class PopulationBasedTrainingReplay(FIFOScheduler):
    """Repeats the history of one trial of a finished PBT run.

    Args:
        policy_file: `pbt_policy_<trial id>.txt` in that run's directory. The trial gets the first
            configuration of the history, or keeps its own when the history has no change.
    """

    _state_kind = "pbt_replay"
    _plain_attributes = ("_metric", "_step", "_position", "_trial_id", "_is_due")
    _supports_buffered_results = False

    def __init__(self, policy_file: str) -> None:
        self._policy_file = os.path.expanduser(str(policy_file))
        # `config`: what the trial starts with; None: its own.
        self.config, self._changes = _history(self._policy_file)
        self._step = 0
        self._position = 0  # in the changes
        self._trial_id: str | None = None
        self._is_due = False  # the trial is paused to be changed

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        if self._trial_id not in (None, trial.trial_id):
            raise ValueError(
                "PopulationBasedTrainingReplay repeats the history of one trial, the experiment has more: "
                "leave num_samples at 1 and grids out of the space"
            )
        if self.config is None and not trial.config:
            raise ValueError(
                f"PopulationBasedTrainingReplay: {self._policy_file} changes nothing and the trial has no "
                "configuration: pass one as param_space"
            )
        is_first = self._trial_id is None
        self._trial_id, self._is_due = trial.trial_id, False
        if is_first and self.config is not None:
            if trial.config and trial.config != self.config:
                logger.warning(
                    "PopulationBasedTrainingReplay: the trial's configuration %s is replaced by %s",
                    *(trial.config, self.config),
                )
            trial.config = dict(self.config)

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        """Pause the trial, with a checkpoint, at a change, which is made when it is started again."""
        self._step = result.get(TRAINING_ITERATION, self._step)
        if TRAINING_ITERATION not in result or self._position == len(self._changes):
            return self.CONTINUE
        if result[TRAINING_ITERATION] < self._changes[self._position].step:
            return self.CONTINUE
        self._is_due = True
        reason = f"to change as {self._name_of_file} says for iteration {self._changes[self._position].step}"
        explain(tune_controller, trial.trial_id, PAUSED, reason)
        return self.PAUSE

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        trial = super().choose_trial_to_run(tune_controller)
        if trial is not None and self._is_due and trial.state in (TrialState.PENDING, TrialState.PAUSED):
            self._change(trial)
            tune_controller.remember_choice(trial)
        return trial

    def _change(self, trial: Trial) -> None:
        new = self._changes[self._position].config
        shown = {(key,): value for key, value in new.items()}
        trial.experiment_tag = f"replay_{self._name_of_file}@perturbed[{format_vars(shown)}]"
        trial.config = dict(new)
        self._position += 1
        self._is_due = False
        logger.info("PopulationBasedTrainingReplay: %s continues with %s", trial, new)

    def debug_string(self) -> str:
        return f"PopulationBasedTraining replay: Step {self._step}, perturb {self._position}"

    @property
    def _name_of_file(self) -> str:
        return os.path.basename(self._policy_file)


def _history(policy_file: str) -> tuple[dict[str, Any] | None, list[Change]]:
    """Return the first configuration and the changes, found in the rows from the last one backwards."""
    rows = _rows(policy_file)
    if not rows:
        return None, []
    chain, wanted = [], rows[-1][1]
    chain.append(rows[-1])
    for row in reversed(rows[:-1]):
        if row[0] != wanted:
            break
        chain.append(row)
        wanted = row[1]
    chain.reverse()
    return chain[0][4], [Change(row[3], row[5]) for row in chain]


def _rows(policy_file: str) -> list[list[Any]]:
    where = f"PopulationBasedTrainingReplay: {policy_file}"
    how = "give the pbt_policy_<trial id>.txt of a PBT run with log_config=True"
    try:
        lines = Path(policy_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} cannot be read ({error}): {how}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}, line {number} is not valid JSON ({error}): {how}") from error
        is_row = isinstance(row, list) and len(row) == _ROW_LENGTH and isinstance(row[3], (int, float))
        if not is_row or not isinstance(row[4], dict) or not isinstance(row[5], dict):
            raise ValueError(f"{where}, line {number} is not a list of {_ROW_LENGTH} policy fields: {how}")
        rows.append(row)
    return rows

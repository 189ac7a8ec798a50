"""Trains one trial with the schedule of values that PBT found."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

from muster.trials.metrics import TRAINING_ITERATION
from muster.trials.model import Trial
from muster.trials.plugins import PAUSED, ControllerView
from muster.trials.states import TrialState
from muster.tune.schedulers.trial_scheduler import FIFOScheduler, explain
from muster.tune.search.trial_names import format_vars

logger = logging.getLogger(__name__)

_ROW_LENGTH = 6


class Change(NamedTuple):
    """A Change says which configuration applies from an iteration on."""

    step: int
    config: dict[str, Any]


class PopulationBasedTrainingReplay(FIFOScheduler):
    """A PopulationBasedTrainingReplay repeats the history of one trial of a finished PBT run.

    Args:
        policy_file: `pbt_policy_<trial id>.txt` in that run's directory. The trial gets the first
            configuration of the history, or keeps its own when the history has no change.
    """

    _state_kind = "pbt_replay"
    _plain_attributes = ("_metric", "_step", "_position", "_trial_id", "_is_due")
    _supports_buffered_results = False

    def __init__(self, policy_file: str) -> None:
        self._policy_file = os.path.expanduser(str(policy_file))
        self._first, self._changes = _history(self._policy_file)
        self._step = 0
        self._position = 0  # in the changes
        self._trial_id: str | None = None
        self._is_due = False  # the trial is paused to be changed

    @property
    def config(self) -> dict[str, Any] | None:
        """Returns the configuration that the trial starts with; None: its own."""
        return self._first

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        if self._trial_id not in (None, trial.trial_id):
            raise ValueError(
                "PopulationBasedTrainingReplay repeats the history of one trial, the experiment has more: "
                "leave num_samples at 1 and grids out of the space"
            )
        if self._first is None and not trial.config:
            raise ValueError(
                f"PopulationBasedTrainingReplay: {self._policy_file} changes nothing and the trial has no "
                "configuration: pass one as param_space"
            )
        is_first = self._trial_id is None
        self._trial_id, self._is_due = trial.trial_id, False
        if is_first and self._first is not None:
            if trial.config and trial.config != self._first:
                logger.warning(
                    "PopulationBasedTrainingReplay: the trial's configuration %s is replaced by %s",
                    *(trial.config, self._first),
                )
            trial.config = dict(self._first)

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        """Pauses the trial, with a checkpoint, at a change, which is made when it is started again."""
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
    """Returns the first configuration and the changes, found in the rows from the last one backwards."""
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
            raise ValueError(f"{where}, line {number} is no list of {_ROW_LENGTH} policy fields: {how}")
        rows.append(row)
    return rows

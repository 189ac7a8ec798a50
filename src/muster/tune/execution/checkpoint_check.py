"""Checks the checkpoint of a trial before the trial is started from it, and deletes superfluous ones.

A trial drops a checkpoint that is damaged or gone, and continues from an older one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from muster.errors import StoreError
from muster.stores.checkpoints import CheckpointStore, DeletionQueue
from muster.trials.commands import StartTrial
from muster.trials.model import Trial
from muster.trials.ports import Engine

_log = logging.getLogger(__name__)


class CheckedCheckpoints:
    """CheckedCheckpoints are the checkpoint directories of one experiment."""

    def __init__(
        self,
        engine: Engine,
        checkpoints: CheckpointStore,
        find: Callable[[str], Trial | None],
        deletions: DeletionQueue,
    ) -> None:
        """`find` returns a trial by its id."""
        self._engine = engine
        self._checkpoints = checkpoints
        self._find = find
        self.discard = deletions.discard

    def check(self, command: StartTrial) -> StartTrial:
        """Returns the command with a checkpoint that is complete, and fetched where the engine needs that."""
        trial = self._find(command.trial_id)
        if command.checkpoint is None or trial is None or trial.newest is None:
            return command
        drop_unusable(trial, self._checkpoints)
        self._fetch(trial)
        return replace(command, checkpoint=trial.newest)

    def _fetch(self, trial: Trial) -> None:
        """Fetches a checkpoint that a cluster made elsewhere, for the processes of this machine."""
        if trial.newest is None or getattr(self._engine, "fetches_checkpoints", False):
            return
        try:
            self._checkpoints.bring_here(trial.newest)
        except StoreError as error:
            _log.warning("the checkpoint of trial %s cannot be fetched: %s", trial.trial_id, error)


def drop_unusable(trial: Trial, checkpoints: CheckpointStore) -> None:
    """Drops the checkpoints of a trial that are newer than the newest complete one."""
    if trial.adopted is not None:
        if checkpoints.newest_usable([trial.adopted]) is not None:
            return
        trial.adopted = None
    usable = checkpoints.newest_usable(trial.checkpoints)
    newest = -1 if usable is None else usable.index
    trial.checkpoints = tuple(each for each in trial.checkpoints if each.index <= newest)

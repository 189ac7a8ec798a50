"""CheckpointCheckingEngine never asks its engine to start a trial from a checkpoint that is damaged or gone.

Stands between controller and engine. The trial forgets such a checkpoint and goes on from an older one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from muster.errors import StoreError
from muster.stores.checkpoints import CheckpointStore
from muster.trials.commands import EngineCommand, StartTrial
from muster.trials.events import EngineEvent
from muster.trials.model import Trial
from muster.trials.ports import Engine

_log = logging.getLogger(__name__)


class CheckpointCheckingEngine:
    """Passes everything on; looks at the files of a checkpoint before a trial is started from it."""

    def __init__(
        self, engine: Engine, checkpoints: CheckpointStore, find: Callable[[str], Trial | None]
    ) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._find = find
        self.capacity: Callable[[], Mapping[str, float]] = engine.capacity
        self.poll: Callable[[float], Sequence[EngineEvent]] = engine.poll
        self.close: Callable[[], None] = engine.close

    def submit(self, command: EngineCommand) -> None:
        if type(command) is StartTrial and command.checkpoint is not None:
            trial = self._find(command.trial_id)
            if trial is not None and trial.checkpoint is not None:
                drop_unusable(trial, self._checkpoints)
                command = replace(command, checkpoint=trial.checkpoint)
                self._bring(trial)
        self._engine.submit(command)

    def _bring(self, trial: Trial) -> None:
        """Processes of this machine find checkpoints that a cluster made elsewhere."""
        if trial.checkpoint is None or getattr(self._engine, "fetches_checkpoints", False):
            return
        try:
            self._checkpoints.bring_here(trial.checkpoint)
        except StoreError as error:
            _log.warning("the checkpoint of trial %s cannot be fetched: %s", trial.trial_id, error)


def drop_unusable(trial: Trial, checkpoints: CheckpointStore) -> None:
    """Forget the checkpoints that are newer than the newest one whose files are all there."""
    if trial.adopted is not None:
        if checkpoints.newest_usable([trial.adopted]) is not None:
            return
        trial.adopted = None
    usable = checkpoints.newest_usable(trial.checkpoints)
    newest = -1 if usable is None else usable.index
    trial.checkpoints = tuple(each for each in trial.checkpoints if each.index <= newest)

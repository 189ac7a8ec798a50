"""SoundStart: an engine that is never asked to start a trial from a checkpoint that is damaged or gone.

Stands between controller and engine. The trial forgets such a checkpoint and goes on from an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from muster.stores.checkpoints import CheckpointStore
from muster.trials.commands import EngineCommand, StartTrial
from muster.trials.events import EngineEvent
from muster.trials.model import Trial
from muster.trials.ports import Engine


class SoundStart:
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
        self._engine.submit(command)


def drop_unusable(trial: Trial, checkpoints: CheckpointStore) -> None:
    """Forget the checkpoints that are newer than the newest one whose files are all there."""
    if trial.adopted is not None:
        if checkpoints.newest_usable([trial.adopted]) is not None:
            return
        trial.adopted = None
    usable = checkpoints.newest_usable(trial.checkpoints)
    newest = -1 if usable is None else usable.index
    trial.checkpoints = tuple(each for each in trial.checkpoints if each.index <= newest)

"""AskTellEngine is the engine of AskTell: the user's own loop runs the trials, without processes.

The lock-step protocol of `trials.ports.Engine`: each call of the loop becomes an event, and every command is
answered at once. The engine never waits and never computes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import assert_never

from muster.base.clock import Clock
from muster.base.framing import is_plain, portable, unpickle
from muster.base.untrusted import message_text
from muster.engines.worker.exit_report import failed_exit
from muster.engines.worker.failures import reported_failure
from muster.engines.worker.session import numbers_for_arrays, refuse_endless, refuse_tensors
from muster.host.machine import hostname, node_ip
from muster.session.checkpoint import Checkpoint
from muster.session.progress import Progress, Signature, fill_result
from muster.session.publish import checkpoint_name, publish_copy, publish_staged, staging_path
from muster.trials.events import (
    CheckpointSaved,
    ContinueTrial,
    EngineCommand,
    EngineEvent,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialExited,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef
from muster.trials.ports import Engine


class AskTellEngine(Engine):
    """Holds the trials that the loop was given and has not ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: list[EngineEvent] = []
        self._where = {"pid": os.getpid(), "hostname": hostname(), "node_ip": node_ip()}
        self.running: dict[str, OpenTrial] = {}
        self.recalled: dict[str, None] = {}  # stopped, and the loop does not know it yet

    def capacity(self) -> Mapping[str, float]:
        """Return room for one trial of one CPU; a loop that asks for more trials gets more room."""
        return {"CPU": 1.0}

    def submit(self, command: EngineCommand) -> None:
        match command:
            case StartTrial():
                self._start(command)
            case ContinueTrial():
                pass  # the loop learns it from what `tell` returns
            case SaveTrial():
                # Reports the checkpoint of the last `tell`: a loop saves at no other time.
                running = self.running.get(command.trial_id)
                if running is not None:
                    saved, at = running.last_saved, self._clock.now()
                    self._events.append(CheckpointSaved(trial_id=command.trial_id, at=at, checkpoint=saved))
            case StopTrial():
                if command.trial_id in self.running:
                    self.recalled[command.trial_id] = None
                    self._exit(command.trial_id)
            case _:
                assert_never(command)

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        events, self._events = self._events, []
        return events

    @property
    def is_quiet(self) -> bool:
        """Return whether everything that happened has been polled."""
        return not self._events

    def close(self) -> None:
        self.running.clear()

    # What the loop reports

    def report(
        self, trial_id: str, metrics: Mapping[str, Any], *, done: bool, checkpoint: Checkpoint | None
    ) -> None:
        """Record one result; nothing has happened when this raises."""
        running = self.running[trial_id]
        at = self._clock.now()
        own = _own_copy(metrics)
        if done:
            own["done"] = True
        published = None if checkpoint is None else running.publish(checkpoint)
        elapsed_s = self._clock.monotonic() - running.resumed_at
        result = running.fill(own, elapsed_s, at, published)
        running.resumed_at = self._clock.monotonic()
        self._events.append(
            TrialReported(trial_id=trial_id, at=at, result=result, checkpoint=running.last_saved)
        )

    def finish(self, trial_id: str) -> None:
        """End a trial that the loop has completed."""
        self._exit(trial_id, is_done=True)

    def fail(self, trial_id: str, error: BaseException) -> None:
        self._exit(trial_id, error=error)

    # how

    def _start(self, command: StartTrial) -> None:
        at = self._clock.now()
        os.makedirs(command.trial_dir, exist_ok=True)
        running = self.running[command.trial_id] = OpenTrial(command, self._where)
        running.resumed_at = self._clock.monotonic()
        self.recalled.pop(command.trial_id, None)
        self._events.append(TrialStarted(trial_id=command.trial_id, at=at, location=dict(self._where)))

    def _exit(self, trial_id: str, *, is_done: bool = False, error: BaseException | None = None) -> None:
        del self.running[trial_id]
        failure = None if error is None else reported_failure(failed_exit(error))
        at = self._clock.now()
        self._events.append(TrialExited(trial_id=trial_id, at=at, failure=failure, is_done=is_done))


class OpenTrial:
    """Holds the counters and checkpoints of one trial that the loop runs."""

    def __init__(self, command: StartTrial, where: Mapping[str, Any]) -> None:
        self.command = command
        self.progress = Progress()
        self.resumed_at = 0.0
        self.last_saved: CheckpointRef | None = None  # by the last report
        self._index = command.checkpoint_index
        self._who = who = Signature(trial_id=command.trial_id, config=dict(command.config))
        who.pid, who.hostname, who.node_ip = where["pid"], where["hostname"], where["node_ip"]
        if command.checkpoint is not None:
            self.progress.resume(command.checkpoint.metrics)

    def publish(self, checkpoint: Any) -> str:  # noqa: ANN401 - checked here
        """Copy a checkpoint into the trial's directory, as a whole or not at all."""
        if not isinstance(checkpoint, Checkpoint):
            kind = type(checkpoint).__name__
            raise TypeError(
                f"tell(checkpoint=...): must be a Checkpoint, not a {kind}; a directory becomes "
                "one by tune.Checkpoint.from_directory(path)"
            )
        place, name = self.command.trial_dir, checkpoint_name(self._index + 1)
        if checkpoint._is_local:
            target = publish_copy(checkpoint.path, place, name)
        else:
            target = publish_staged(checkpoint.to_directory(staging_path(place, name)), place, name)
        self._index += 1
        return target

    def fill(
        self, own: dict[str, Any], elapsed_s: float, now: float, published: str | None
    ) -> dict[str, Any]:
        """Return the result with the automatic keys."""
        stamp = self.progress.advance(own, elapsed_s=elapsed_s, now=now)
        name = None if published is None else os.path.basename(published)
        result = fill_result(own, stamp, self._who, now=now, checkpoint_name=name)
        if published is None:
            self.last_saved = None
        else:
            self.last_saved = CheckpointRef(path=published, index=self._index, metrics=dict(result))
        return result


def _own_copy(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy that the loop cannot change later; raises TypeError for what cannot be stored."""
    refuse_endless(metrics)
    if is_plain(metrics):
        return copy.deepcopy(dict(metrics))
    refuse_tensors(metrics)
    metrics = numbers_for_arrays(dict(metrics))
    for key, value in metrics.items():
        try:
            portable(value)
        except Exception as error:
            kind = type(value).__name__
            raise TypeError(
                f"tell: the value of {key!r} (a {kind}) cannot be pickled: {message_text(error)}"
            ) from error
    made: dict[str, Any] = unpickle(portable(metrics))
    return made

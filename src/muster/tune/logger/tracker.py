"""TrackerCallback: the base of loggers that send results to a tracker (MLflow, W&B, Comet) from a thread.

The hooks run on the control thread and only put facts into a queue; everything a Tracker does runs on the
thread of that queue, the import of its package included.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import Struct

from muster.tune.logger.background import BackgroundQueue, Row
from muster.tune.logger.logger import LoggerCallback

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.trials.model import Trial
    from muster.tune.logger.files.writer import LogWriter


class TrialFacts(Struct, frozen=True, kw_only=True):
    """What a tracker is told of a trial."""

    trial_id: str
    name: str
    config: dict[str, Any]
    directory: str  # on this machine
    experiment_name: str


class Tracker(Protocol):
    """The side that talks to the tracker; may wait and raise. A trial may start more than once."""

    name: str
    advice: str  # what a user can do when it does not work

    def start(self, trial: TrialFacts) -> None: ...

    def write(self, trial_id: str, rows: list[Row]) -> None: ...

    def end(self, trial_id: str, failed: bool) -> None: ...

    def checkpoint(self, trial_id: str, path: str) -> None: ...

    def files(self, trial: TrialFacts) -> None: ...

    def close(self) -> None:
        """Runs that nobody ended are those of trials that were interrupted."""

    def is_passing(self, error: BaseException) -> bool:
        """Worth another try."""
        ...


class TrackerCallback(LoggerCallback):
    """Subclasses say which Tracker (`_tracker`), and what they want besides results."""

    wants_checkpoints: bool = False
    wants_files: bool = False
    flush_timeout_s: float = 60.0  # at the end of the experiment
    _secrets: ClassVar[tuple[str, ...]] = ()  # attributes that are not saved with the experiment

    _tracker: Tracker | None = None
    _queue: BackgroundQueue | None = None
    _writer: LogWriter | None = None
    _ended: tuple[tuple[TrialFacts, bool], ...] = ()  # their files are still to be sent; True: failed

    def _make_tracker(self) -> Tracker:
        raise NotImplementedError(f"{type(self).__name__} does not say which tracker it is for")

    def attach(self, writer: LogWriter, experiment_dir: str) -> None:
        """The writer of the trials' files: those are complete after its `flush`."""
        self._writer = writer

    def log_trial_start(self, trial: Trial) -> None:
        facts, (tracker, queue) = facts_of(trial), self._open()
        queue.order(facts.trial_id, lambda: tracker.start(facts))

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        self._open()[1].row(trial.trial_id, result)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        trial_id, (tracker, queue) = trial.trial_id, self._open()
        if self.wants_files:
            self._ended += ((facts_of(trial), failed),)
        else:
            queue.order(trial_id, lambda: tracker.end(trial_id, failed))

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        if self._ended:
            self._send_files()

    def on_checkpoint(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        checkpoint: Checkpoint,
        **info: Any,  # noqa: ANN401
    ) -> None:
        if self.wants_checkpoints:
            trial_id, (tracker, queue) = trial.trial_id, self._open()

            def send() -> None:
                with checkpoint.as_directory() as path:  # made on another machine, it is fetched
                    tracker.checkpoint(trial_id, path)

            queue.order(trial_id, send)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        """Wait, not for ever, until everything is sent."""
        self._send_files()
        tracker, queue = self._tracker, self._queue
        if tracker is None or queue is None:
            return
        queue.order("", tracker.close)
        queue.close(self.flush_timeout_s)
        self._tracker = self._queue = None

    def _send_files(self) -> None:
        """By now every logger has seen the end of these trials; their files are complete after a flush."""
        ended, self._ended = self._ended, ()
        for facts, failed in ended:
            self._send_files_of(facts, failed)

    def _send_files_of(self, facts: TrialFacts, failed: bool) -> None:
        (tracker, queue), writer = self._open(), self._writer

        def send() -> None:
            if writer is not None:
                writer.flush()
            tracker.files(facts)

        queue.order(facts.trial_id, send)
        queue.order(facts.trial_id, lambda: tracker.end(facts.trial_id, failed))

    def _open(self) -> tuple[Tracker, BackgroundQueue]:
        if self._tracker is None or self._queue is None:
            tracker = self._tracker = self._make_tracker()
            self._queue = BackgroundQueue(
                tracker.name, tracker.write, is_passing=tracker.is_passing, advice=tracker.advice
            )
        return self._tracker, self._queue

    def __getstate__(self) -> dict[str, Any]:
        """As it was before the experiment: saved with it, so without keys and tokens."""
        without = {"_tracker", "_queue", "_writer", "_ended", *self._secrets}
        return {key: value for key, value in vars(self).items() if key not in without}


def facts_of(trial: Trial) -> TrialFacts:
    """`config` is not copied: a trial's config is replaced as a whole, never changed in place."""
    return TrialFacts(
        trial_id=trial.trial_id,
        name=str(trial),
        config=trial.config,
        directory=trial.local_path or "",
        experiment_name=PurePath(trial.experiment_dir).name,
    )

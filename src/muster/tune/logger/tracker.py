"""Define the base of loggers that send results to a tracker (MLflow, W&B, Comet) from a thread.

The hooks run on the control thread and only put facts into a queue; everything a Tracker does runs on the
thread of that queue, the import of its package included.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from muster.base.clock import Clock, SystemClock
from muster.tune.logger.logger import LoggerCallback

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.trials.model import Trial
    from muster.tune.logger.files.writer import LogWriter


logger = logging.getLogger(__name__)

Row = tuple[dict[str, Any], float]  # a result, and when it was logged
Write = Callable[[str, list[Row]], None]
Order = Callable[[], None]
Step = tuple[str, "list[Row] | Order"]  # for a trial: rows, or something else to do
_CHUNK = 4096  # entries taken at a time


class BackgroundQueue:
    """Sends to a tracker from a thread that starts with the first entry, until `close`."""

    def __init__(  # noqa: PLR0913 - three facts about the tracker, and limits
        self,
        name: str,
        write: Write,
        *,
        is_passing: Callable[[BaseException], bool] = lambda error: isinstance(error, OSError),
        advice: str = "",
        limit: int = 20_000,
        retry_first_s: float = 0.5,
        retry_most_s: float = 30.0,
        grace_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        """Take `is_passing(error)`, whether to try again; `close` waits `grace_s` for a failing tracker."""
        self._name, self._write, self._is_passing, self._advice = name, write, is_passing, advice
        self._limit = limit
        self._retry_first_s, self._retry_most_s, self._grace_s = retry_first_s, retry_most_s, grace_s
        self._clock = clock or SystemClock()
        self._queue: deque[tuple[str, dict[str, Any] | Order, float]] = deque()
        self._wake, self._closing, self._abandoned = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_down = False
        self._warned: set[str] = set()
        self._left_out = 0  # counted by the control thread
        self._unsent = 0  # counted by ours

    @property
    def lost(self) -> int:
        """Return how many results never reached the tracker."""
        return self._left_out + self._unsent

    # for the control thread: none of these waits, but `close`

    def row(self, trial_id: str, result: dict[str, Any]) -> None:
        """Queue a result of a trial; it is left out when too many wait already."""
        if len(self._queue) >= self._limit:
            self._left_out += 1
            self._warn("full", f"{self._limit} results wait and newer ones are left out: it cannot keep up")
            return
        self._add(trial_id, result.copy())

    def order(self, trial_id: str, order: Order) -> None:
        """Queue something else to do, after the earlier rows of this trial; it is never left out."""
        self._add(trial_id, order)

    def close(self, timeout_s: float) -> bool:
        """Send what waits, then ends the thread; False when something was not sent. Safe to call twice."""
        thread, began = self._thread, self._clock.monotonic()
        atexit.unregister(self.close)
        self._closing.set()
        self._wake.set()
        while thread is not None and thread.is_alive():
            thread.join(0.1)
            waited_s = self._clock.monotonic() - began
            if waited_s >= (min(self._grace_s, timeout_s) if self._is_down else timeout_s):
                self._abandoned.set()
                self._wake.set()
                thread.join(0.5)
                break
            if waited_s > 3.0:
                self._warn("wait", f"still sending results, for at most {timeout_s:g} s", advise=False)
        is_stuck = thread is not None and thread.is_alive()
        self._left_out += sum(1 for _, what, _ in self._queue if isinstance(what, dict))
        self._queue.clear()
        if self.lost or is_stuck:
            lost = f"{self.lost} results" if self.lost else "the last results"
            self._warn("lost", f"{lost} were not sent; all of them are in the trials' result.json")
        return not self.lost and not is_stuck

    def _add(self, trial_id: str, what: dict[str, Any] | Order) -> None:
        self._queue.append((trial_id, what, self._clock.now()))
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"muster-{self._name}", daemon=True)
            self._thread.start()
            atexit.register(self.close, self._grace_s)  # an experiment may end without its last hook

    # for the thread

    def _run(self) -> None:
        while not self._abandoned.is_set():
            self._wake.wait(1.0)
            self._wake.clear()
            is_last = self._closing.is_set()
            while self._queue and not self._abandoned.is_set():
                for step in self._take():
                    self._carry_out(step)
            if is_last:
                return

    def _take(self) -> list[Step]:
        """Return a chunk of the queue; each trial's rows are joined up to an order of that trial."""
        steps: list[Step] = []
        open_rows: dict[str, list[Row]] = {}
        for _ in range(min(len(self._queue), _CHUNK)):
            trial_id, what, at = self._queue.popleft()
            if not isinstance(what, dict):
                open_rows.pop(trial_id, None)
                steps.append((trial_id, what))
            elif trial_id in open_rows:
                open_rows[trial_id].append((what, at))
            else:
                open_rows[trial_id] = [(what, at)]
                steps.append((trial_id, open_rows[trial_id]))
        return steps

    def _carry_out(self, step: Step) -> None:
        trial_id, what = step
        delay_s = self._retry_first_s
        while not self._abandoned.is_set():
            try:
                if isinstance(what, list):
                    self._write(trial_id, what)
                else:
                    what()
            except Exception as error:  # noqa: BLE001 - the thread must live on
                self._warn(type(error).__name__, f"{type(error).__name__}: {error}")
                if not self._is_passing(error):
                    break
                self._is_down = True
                delay_s = self._pause(delay_s)
            else:
                self._is_down = False
                return
        self._unsent += len(what) if isinstance(what, list) else 0

    def _pause(self, delay_s: float) -> float:
        """Wait before another attempt, or for the end of the experiment; return the next delay."""
        if self._closing.is_set():
            self._abandoned.wait(self._retry_first_s)
        elif self._closing.wait(delay_s):
            return self._retry_first_s
        return min(self._retry_most_s, 2 * delay_s)

    def _warn(self, cause: str, text: str, *, advise: bool = True) -> None:
        """Log a warning, once per cause."""
        if cause not in self._warned:
            self._warned.add(cause)
            end = f". {self._advice}" if advise and self._advice else ""
            logger.warning("%s: %s%s", self._name, text.strip().rstrip("."), end)


class TrialFacts(Struct, frozen=True, kw_only=True):
    """What a tracker knows of a trial."""

    trial_id: str
    name: str
    config: dict[str, Any]
    directory: str  # on this machine
    experiment_name: str


class Tracker:
    """Sends to a tracking service; it may wait and raise. A trial may start more than once."""

    name: str
    advice: str = ""  # after a colon, what a user can do when it does not work

    def __init__(self) -> None:
        self._runs: dict[str, Any] = {}  # what the service calls a trial, by trial id

    def _run(self, trial_id: str) -> Any:  # noqa: ANN401 - the service's
        if trial_id not in self._runs:
            raise LookupError(f"{self.name} has no run for trial {trial_id}")
        return self._runs[trial_id]

    def start(self, trial: TrialFacts) -> None:
        raise NotImplementedError

    def write(self, trial_id: str, rows: list[Row]) -> None:
        raise NotImplementedError

    def end(self, trial_id: str, failed: bool) -> None:
        raise NotImplementedError

    def checkpoint(self, trial_id: str, path: str) -> None:
        """Send a checkpoint, where the service takes them."""

    def files(self, trial: TrialFacts) -> None:
        """Send the directory of a trial that has ended, where the service takes files."""

    def close(self) -> None:
        """Close all runs; those still open belong to interrupted trials."""
        for trial_id in list(self._runs):
            self.end(trial_id, failed=True)

    def is_passing(self, error: BaseException) -> bool:
        """Return whether another attempt may succeed."""
        return isinstance(error, OSError)


class TrackerCallback(LoggerCallback):
    """Queues events for the Tracker that a subclass makes."""

    wants_checkpoints: bool = False
    wants_files: bool = False
    flush_timeout_s: float = 60.0  # at the end of the experiment
    _secrets: ClassVar[tuple[str, ...]] = ()  # attributes that are not saved with the experiment

    _tracker: Tracker | None = None
    _queue: BackgroundQueue | None = None
    _writer: LogWriter | None = None
    _ended: tuple[tuple[TrialFacts, bool], ...] = ()  # their files are still to be sent; True: failed

    def _make_tracker(self) -> Tracker:
        raise NotImplementedError(
            f"{type(self).__name__} must override _make_tracker, which returns its Tracker"
        )

    def attach(self, writer: LogWriter, experiment_dir: str) -> None:
        """Set the writer of the trials' files, which are complete after its `flush`."""
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

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        if self._ended:
            self._send_files()

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Checkpoint, **info: object
    ) -> None:
        if self.wants_checkpoints:
            trial_id, (tracker, queue) = trial.trial_id, self._open()

            def send() -> None:
                with checkpoint.as_directory() as path:  # made on another machine, it is fetched
                    tracker.checkpoint(trial_id, path)

            queue.order(trial_id, send)

    def on_experiment_end(self, trials: list[Trial], **info: object) -> None:
        """Wait, up to `flush_timeout_s`, until everything is sent."""
        self._send_files()
        tracker, queue = self._tracker, self._queue
        if tracker is None or queue is None:
            return
        queue.order("", tracker.close)
        queue.close(self.flush_timeout_s)
        self._tracker = self._queue = None

    def _send_files(self) -> None:
        """Send files of ended trials: all loggers have seen the end, so a flush completes the files."""
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
            rest = "what is missing there is in the trials' result.json"
            advice = f"The experiment continues without it{tracker.advice}; {rest}"
            self._queue = BackgroundQueue(
                tracker.name, tracker.write, is_passing=tracker.is_passing, advice=advice
            )
        return self._tracker, self._queue

    def __getstate__(self) -> dict[str, Any]:
        """Return the state before the experiment, which is saved with it: so without keys and tokens."""
        without = {"_tracker", "_queue", "_writer", "_ended", *self._secrets}
        return {key: value for key, value in vars(self).items() if key not in without}


def facts_of(trial: Trial) -> TrialFacts:
    """Return the facts of a trial; `config` is not copied, because it is only ever replaced as a whole."""
    return TrialFacts(
        trial_id=trial.trial_id,
        name=str(trial),
        config=trial.config,
        directory=trial.local_path or "",
        experiment_name=PurePath(trial.experiment_dir).name,
    )


def require(package: str, install: str | None = None) -> None:
    """Raise a ModuleNotFoundError with advice when a package is missing."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{package} is not installed: pip install {install or package}, "
            f"or leave its callback out of RunConfig(callbacks=[...])",
            name=package,
        )

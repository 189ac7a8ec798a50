"""Write the files of all trials off the control thread, which only appends to a queue.

Rows wait a moment, are encoded together and appended with one write per file: by a thread, and under load by
a separate process, to which the thread then only forwards.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time  # only for formatting; the time is read from a Clock
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from muster.base.clock import Clock, SystemClock
from muster.errors import TuneError
from muster.tune.callback import Callback
from muster.tune.logger.files.trial_log import (
    CSV,
    ERRORS,
    JSON,
    PICKLED_ERROR,
    TBX,
    Entry,
    Order,
    Position,
    TrialLog,
)
from muster.tune.logger.files.write import FileWriter, Problems
from muster.tune.logger.logger import LoggerCallback, restored_iteration, trial_directory

if TYPE_CHECKING:
    from muster.trials.events import TrialFailure
    from muster.trials.model import Trial
    from muster.tune.logger.files.writer_process import Forwarder

logger = logging.getLogger(__name__)

_CHUNK = 4096  # queue entries taken at a time
_NO_TRIAL = TrialLog("")


class LogWriter:
    """Writes the files of one experiment; `close` it at the end, also after an error.

    `process_from`: with so many rows and orders waiting at a time a process is started; None: never.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        flush_every_s: float = 0.2,
        queue_limit: int = 20_000,
        block_timeout_s: float = 10.0,
        open_limit: int = 64,
        process_from: int | None = 400,
    ) -> None:
        self._clock = clock or SystemClock()
        self._now = self._clock.now
        self._flush_every_s = flush_every_s
        self._limit = queue_limit
        self._block_timeout_s = block_timeout_s
        self._open_limit = open_limit
        self._process_from = queue_limit if process_from is None else process_from
        self._queue: deque[Entry] = deque()
        self._threshold = min(self._limit, self._process_from)  # of the queue: then a process is started
        self.running: dict[str, TrialLog] = {}  # by trial id; control thread only
        self._dropped = 0
        self._is_overrun = False
        self._thread: threading.Thread | None = None
        self._wake, self._space, self._closing = threading.Event(), threading.Event(), False
        self._is_hurried = False  # a flush or the control thread waits
        self._problems = Problems()
        self._file_writer = FileWriter(self._clock, self._problems, open_limit)
        self._forwarder: Forwarder | None = None
        self._tickets: list[threading.Event] = []

    # for the control thread: all of these are O(1) and touch no file

    def log(self, trial_id: str, directory: str) -> TrialLog:
        """Return the log of a running trial."""
        found = self.running.get(trial_id)
        if found is None:
            found = self.running[trial_id] = TrialLog(directory)
        return found

    def row(self, log: TrialLog, kinds: int, result: dict[str, Any]) -> None:
        """Queue a result for the files named by `kinds`; only its first level may change afterwards."""
        if len(self._queue) >= self._threshold and not self._may_append():
            self._dropped += 1
            return
        self._queue.append((log, kinds, result.copy(), self._now()))
        if self._thread is None:
            self._begin()

    def order(self, log: TrialLog, order: Order) -> None:
        """Queue something else to do with a trial's files, after the rows that came before."""
        if len(self._queue) >= self._threshold:
            self._may_append()
        self._queue.append((log, 0, order, 0.0))
        if self._thread is None:
            self._begin()

    def start(self, log: TrialLog, kinds: int, config: Any, after: Position) -> None:  # noqa: ANN401
        """Queue the start of a trial's process; see `TrialLog.start`."""
        self.order(log, ("start", kinds, config, after, self._now()))

    def fail(self, log: TrialLog, text: bytes, exception: bytes | None, unless: bytes = b"") -> None:
        """Queue a trial's failure; see `TrialLog.fail`."""
        self.order(log, ("fail", text, exception, unless))

    def end(self, trial_id: str, *, failed: bool = False) -> None:
        """Queue the end of a trial: its files are completed and closed."""
        log = self.running.pop(trial_id, None)
        if log is not None:
            self.order(log, ("end", self._now(), failed))

    def take_problems(self) -> tuple[str, ...]:
        """Return what went wrong since the last call, one line for each cause."""
        dropped, self._dropped = self._dropped, 0
        messages = [
            f"{path}: {reason}{f' and {count - 1} more times' if count > 1 else ''}"
            for reason, path, count in self._problems.take()
        ]
        if dropped:
            messages.append(f"{dropped} results were not logged: the disk could not keep up")
        return tuple(messages)

    def mark(self) -> threading.Event:
        """Return an event that is set once everything so far is in its file, or could not be written."""
        ticket = threading.Event()
        if self._thread is None:
            ticket.set()
        else:
            self._queue.append((_NO_TRIAL, 0, ticket, 0.0))
            self._hurry()
        return ticket

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until everything so far is in its file; False when it is not (see `take_problems`)."""
        return self.mark().wait(timeout_s) and not self._is_stuck()

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write everything and end the thread; False when something is not written. Safe to call twice."""
        self._closing = True
        self._hurry()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                self._problems.add("log files", TimeoutError(f"not written after {timeout_s:g} s"))
                return False
        return not self._is_stuck()

    def _is_stuck(self) -> bool:
        forwarder = self._forwarder
        return self._file_writer.is_stuck or (forwarder is not None and forwarder.is_stuck)

    def _begin(self) -> None:
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="muster-log-writer", daemon=True)
        self._thread.start()

    def _hurry(self) -> None:
        self._is_hurried = True
        self._wake.set()

    def _may_append(self) -> bool:
        """Start a process, or waits, when the queue is long; returns whether an entry may be added."""
        if self._threshold < self._limit:
            self._threshold = self._limit
            self._wake.set()
        return len(self._queue) < self._limit or self._has_space()

    def _has_space(self) -> bool:
        """Wait for the writer; return False after `block_timeout_s`, from when on rows are dropped."""
        if self._is_overrun:
            return False
        deadline = self._clock.monotonic() + self._block_timeout_s
        while len(self._queue) >= self._limit:
            self._space.clear()
            self._hurry()
            if not self._space.wait(0.1) and self._clock.monotonic() >= deadline:
                self._is_overrun = True  # until a chunk has been written
                return False
        return True

    # for the writer thread

    def _run(self) -> None:
        while True:
            forwarder = self._forwarder
            if forwarder is None or not forwarder.wait(self._wake):
                self._wake.wait(self._flush_every_s)
            self._wake.clear()
            is_last = self._closing
            try:
                self._write_queued(is_last)
            except Exception as error:
                logger.exception("log writer")
                self._problems.add("log files", error)
                self._release_waiters()  # a flush must not wait in vain
            if is_last and not self._queue:
                self._file_writer.close()
                self._thread = None  # a row that comes later begins another one
                return

    def _write_queued(self, is_last: bool) -> None:
        is_hurried, self._is_hurried = self._is_hurried, False
        if self._threshold == self._limit > self._process_from and self._forwarder is None:
            from muster.tune.logger.files.writer_process import Forwarder

            self._forwarder = Forwarder(self._file_writer, self._problems, self._clock, self._open_limit)
        forwarder = self._forwarder
        if forwarder is not None:
            forwarder.poll()
            if forwarder.is_worth_waiting_for(len(self._queue)) and not (is_last or is_hurried):
                return
        while self._queue:
            if forwarder is not None and forwarder.poll():  # again: this loop may have no end
                forwarder.forward(*self._taken(forwarder.chunk))
            else:
                entries, self._tickets = self._taken(_CHUNK)
                self._file_writer.work(entries)
                self._release_waiters()
            self._is_overrun = False
            self._space.set()
        if is_last and forwarder is not None:
            forwarder.finish()
        self._file_writer.retry(now=is_last)

    def _taken(self, most: int) -> tuple[list[Entry], list[threading.Event]]:
        """Return the next entries of the queue, and the events to set when they are written."""
        take = self._queue.popleft
        taken = [take() for _ in range(min(len(self._queue), most))]
        tickets = [entry[2] for entry in taken if entry[0] is _NO_TRIAL]
        return ([entry for entry in taken if entry[0] is not _NO_TRIAL] if tickets else taken), tickets

    def _release_waiters(self) -> None:
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.set()


class FileLogger(LoggerCallback):
    """Gives results to the experiment's LogWriter, which `attach_loggers` attaches to it."""

    kinds: int = 0  # which files: JSON, CSV, TBX of trial_log
    _is_stock: ClassVar[bool] = False  # set by our own classes, in the class itself

    _writer: LogWriter | None = None
    _experiment_dir = ""

    def attach(self, writer: LogWriter, experiment_dir: str) -> None:
        """Set the writer, and the directory to write in."""
        self._writer, self._experiment_dir = writer, experiment_dir

    def merged_with(self, other: object) -> FileLogger | None:
        """Return one logger for two neighbours that no subclass has changed; else None."""
        are_stock = all(vars(type(each)).get("_is_stock", False) for each in (self, other))
        if not (isinstance(other, FileLogger) and are_stock):
            return None
        if self._writer is None or self._writer is not other._writer:
            return None
        both = _FileLoggers()
        both.kinds = self.kinds | other.kinds
        both.attach(self._writer, self._experiment_dir)
        return both

    def log_trial_start(self, trial: Trial) -> None:
        log, writer = self._log(trial), self._attached()
        writer.start(log, self.kinds, trial.config, (trial.num_rows, restored_iteration(trial)))

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        self._attached().row(self._log(trial), self.kinds, result)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self._attached().end(trial.trial_id, failed=failed)

    def _log(self, trial: Trial) -> TrialLog:
        return self._attached().log(trial.trial_id, trial_directory(self._experiment_dir, trial))

    def _attached(self) -> LogWriter:
        if self._writer is None:
            raise TuneError(
                f"{type(self).__name__} has no files to write to: pass it in RunConfig(callbacks=[...])"
            )
        return self._writer


class _FileLoggers(FileLogger):
    """Several file loggers as one: a result is copied and queued once."""

    _is_stock = True

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: object
    ) -> None:
        writer = self._writer
        assert writer is not None  # ensured by merged_with
        log = writer.running.get(trial.trial_id) or self._log(trial)
        writer.row(log, self.kinds, result)


class CSVLoggerCallback(FileLogger):
    """Writes progress.csv in each trial's directory; it is on by default."""

    _is_stock = True
    kinds = CSV


class JsonLoggerCallback(FileLogger):
    """Writes result.json, params.json and params.pkl per trial; it is on by default."""

    _is_stock = True
    kinds = JSON


class TBXLoggerCallback(FileLogger):
    """Writes TensorBoard event files in each trial's directory; it is on by default.

    Numbers of results are logged under ray/tune/, and so are arrays: as an image, a sheet of images or a
    video with three, four or five dimensions, else as a histogram. The config goes to HPARAMS at the end.
    """

    _is_stock = True
    kinds = TBX


class FailureFiles(Callback):
    """Appends every failure to error.txt and keeps the latest exception in error.pkl."""

    _writer: LogWriter | None = None
    _experiment_dir = ""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def attach(self, writer: LogWriter, experiment_dir: str) -> None:
        self._writer, self._experiment_dir = writer, experiment_dir

    def on_trial_failure(
        self, iteration: int, trials: list[Trial], trial: Trial, failure: TrialFailure, **info: object
    ) -> None:
        trial.error_filename = ERRORS
        trial.pickled_error_filename = PICKLED_ERROR
        if self._writer is None:
            return
        text = failure_text(trial.num_failures, failure, self._clock.now()).encode("utf-8", "replace")
        log = self._writer.log(trial.trial_id, trial_directory(self._experiment_dir, trial))
        self._writer.fail(log, text, pickled_failure(failure))

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._end(trial, failed=True)

    def _end(self, trial: Trial, *, failed: bool) -> None:
        """Close the files of a trial; a file logger, where there is one, has done this already."""
        if self._writer is not None:
            self._writer.end(trial.trial_id, failed=failed)


def pickled_failure(failure: TrialFailure) -> bytes:
    """Return error.pkl: the exception of the trial, else a TuneError with the reason."""
    return failure.exception or pickle.dumps(TuneError(failure.traceback or failure.message))


def failure_text(number: int, failure: TrialFailure, at: float) -> str:
    """Return one entry of error.txt: which failure, when, and what happened."""
    date = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(at))
    cause = (failure.traceback or failure.message).rstrip("\n")
    return f"Failure # {number} (occurred at {date})\n{cause}\n"

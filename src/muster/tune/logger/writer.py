"""LogWriter: one thread that writes the files of all trials. The control thread only appends to a queue.

Rows wait a moment, are encoded together and appended with one write per file. Whatever goes wrong with a file
becomes a problem to show, is tried again, and never ends the thread.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from muster.base.clock import Clock, SystemClock
from muster.tune.logger.trial_log import Bench, TrialLog

logger = logging.getLogger(__name__)

Order = Callable[[TrialLog, Bench], None]
_CHUNK = 4096  # queue entries taken at a time
_SLICE = 512  # rows encoded without letting the control thread in
_STUCK_LIMIT_BYTES = 64 << 20  # kept for files that cannot be written
_RETRY_MOST_S = 5.0
_NOBODY = TrialLog("")


class LogWriter:
    """Make one per experiment; `close` it when the experiment is over, also after an error."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        flush_every_s: float = 0.2,
        queue_limit: int = 20_000,
        patience_s: float = 10.0,
        open_limit: int = 64,
    ) -> None:
        self._clock = clock or SystemClock()
        self._now = self._clock.now
        self._flush_every_s = flush_every_s
        self._limit = queue_limit
        self._patience_s = patience_s
        self._queue: deque[tuple[TrialLog, int, Any, float]] = deque()
        self.running: dict[str, TrialLog] = {}  # by trial id; control thread only
        self._dropped = 0
        self._is_overrun = False
        self._thread: threading.Thread | None = None
        self._wake, self._room, self._closing = threading.Event(), threading.Event(), False
        self._bench = Bench(platform.node() or "localhost", open_limit, self._complain)
        self._stuck: dict[TrialLog, int] = {}  # could not be written, and how many bytes wait
        self._tickets: list[threading.Event] = []
        self._problems: dict[str, list[Any]] = {}  # reason -> [first path, count]

    # for the control thread: all of these are O(1) and touch no file

    def log(self, trial_id: str, directory: str) -> TrialLog:
        """The log of a running trial."""
        found = self.running.get(trial_id)
        if found is None:
            found = self.running[trial_id] = TrialLog(directory)
        return found

    def row(self, log: TrialLog, kinds: int, result: dict[str, Any]) -> None:
        """A result for the files named by `kinds`. It may change afterwards at its first level only."""
        if len(self._queue) >= self._limit and not self._has_room():
            self._dropped += 1
            return
        self._queue.append((log, kinds, result.copy(), self._now()))
        if self._thread is None:
            self._begin()

    def order(self, log: TrialLog, order: Order) -> None:
        """Something else to do with a trial's files, after the rows that came before."""
        if len(self._queue) >= self._limit:
            self._has_room()
        self._queue.append((log, 0, order, 0.0))
        if self._thread is None:
            self._begin()

    def start(self, log: TrialLog, kinds: int, config: Any, iteration: int | None) -> None:  # noqa: ANN401
        """A trial's process is up; see `TrialLog.start`."""
        at = self._now()
        self.order(log, lambda log, bench: log.start(bench, kinds, config, iteration=iteration, at=at))

    def catch_up(self, log: TrialLog, kinds: int, rows: Sequence[dict[str, Any]]) -> None:
        """After a crash: complete and repair a trial's files from what the store knows."""
        at = self._now()
        self.order(log, lambda log, bench: log.catch_up(bench, kinds, rows, at))

    def end(self, trial_id: str) -> None:
        """A trial is over: its files are completed and closed."""
        log = self.running.pop(trial_id, None)
        if log is not None:
            self.order(log, _end)

    def take_problems(self) -> tuple[str, ...]:
        """What went wrong since the last call, one line for each cause."""
        problems, self._problems = self._problems, {}
        dropped, self._dropped = self._dropped, 0
        told = [_told(reason, *place) for reason, place in problems.items()]
        if dropped:
            told.append(f"{dropped} results were not logged: the disk could not keep up")
        return tuple(told)

    def mark(self) -> threading.Event:
        """Set once everything so far is in its file, or could not be written."""
        ticket = threading.Event()
        if self._thread is None:
            ticket.set()
        else:
            self._queue.append((_NOBODY, 0, lambda _, __: self._tickets.append(ticket), 0.0))
            self._wake.set()
        return ticket

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until everything so far is in its file; False when it is not (see `take_problems`)."""
        return self.mark().wait(timeout_s) and not self._stuck

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write everything, then end the thread. Safe to call twice; False when something is not written."""
        self._closing = True
        self._wake.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                self._complain("log files", TimeoutError(f"not written after {timeout_s:g} s"))
                return False
        return not self._stuck

    def _begin(self) -> None:
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="muster-log-writer", daemon=True)
        self._thread.start()

    def _has_room(self) -> bool:
        """Let the writer catch up: better a slow loop than no memory. After `patience_s` rows are dropped."""
        if self._is_overrun:
            return False
        deadline = self._clock.monotonic() + self._patience_s
        while len(self._queue) >= self._limit:
            self._room.clear()
            self._wake.set()
            if not self._room.wait(0.1) and self._clock.monotonic() >= deadline:
                self._is_overrun = True  # until a chunk has been written
                return False
        return True

    # for the writer thread

    def _run(self) -> None:
        while True:
            self._wake.wait(self._flush_every_s)
            self._wake.clear()
            is_last = self._closing
            try:
                self._turn(is_last)
            except Exception as error:
                logger.exception("log writer")
                self._complain("log files", error)
            self._answer()  # also after an error: who waits for a flush must not wait in vain
            if is_last and not self._queue:
                self._bench.open_files.close_all()
                self._thread = None  # a row that comes later begins another one
                return

    def _turn(self, is_last: bool) -> None:
        while self._queue:
            for log in self._take():
                self._encode(log)
                self._write(log)
            self._is_overrun = False
            self._room.set()
            self._answer()
        now = self._clock.monotonic()
        for log in [log for log in self._stuck if is_last or log.retry_at <= now]:
            self._write(log)

    def _take(self) -> dict[TrialLog, None]:
        """Sort a chunk of the queue by trial; orders are carried out in their place."""
        queue = self._queue
        touched: dict[TrialLog, None] = {}
        for _ in range(min(len(queue), _CHUNK)):
            log, kinds, what, at = queue.popleft()
            if log is not _NOBODY:
                touched[log] = None
            if kinds:
                log.rows.append((kinds, what, at))
                continue
            try:
                what(log, self._bench)
            except Exception as error:  # noqa: BLE001 - the thread must live on
                self._complain(log.directory, error)
        return touched

    def _encode(self, log: TrialLog) -> None:
        rows = log.rows
        if len(rows) <= _SLICE:
            log.encode_rows(self._bench)
            return
        for first in range(0, len(rows), _SLICE):
            log.rows = rows[first : first + _SLICE]
            log.encode_rows(self._bench)
            self._clock.sleep(0)  # the control thread may have been waiting for the interpreter

    def _write(self, log: TrialLog) -> None:
        try:
            log.write(self._bench)
        except OSError as error:
            self._complain(getattr(error, "filename", None) or log.directory, error)
            log.failures += 1
            log.retry_at = self._clock.monotonic() + min(_RETRY_MOST_S, 0.1 * 2**log.failures)
            self._stuck[log] = log.waiting_bytes
            if sum(self._stuck.values()) > _STUCK_LIMIT_BYTES:
                self._complain(log.directory, OSError(f"gave up {log.give_up()} bytes of log"))
                del self._stuck[log]
        else:
            log.failures = 0
            self._stuck.pop(log, None)

    def _answer(self) -> None:
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.set()

    def _complain(self, path: str, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        place = self._problems.setdefault(reason, [path, 0])
        place[1] += 1
        if len(self._problems) > 100:
            self._problems.pop(next(iter(self._problems)))


def _end(log: TrialLog, bench: Bench) -> None:
    log.ended = True


def _told(reason: str, path: str, count: int) -> str:
    more = f" and {count - 1} more times" if count > 1 else ""
    return f"{path}: {reason}{more}"

"""Carry out rows and orders by writing files, in a thread of the driver or in a separate process.

An error of a file is reported as a problem and the write is tried again; no error ends the writer.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence

from muster.base.clock import Clock
from muster.tune.logger.files.trial_log import Entry, TrialLog, WriterContext

_SLICE = 512  # rows encoded without letting another thread in
_STUCK_LIMIT_BYTES = 64 << 20  # kept for files that cannot be written
_MANY_BYTES = 1_000_000
_RETRY_MOST_S = 5.0
_MOST_PROBLEMS = 100
Problem = tuple[str, str, int]  # what, where first, how often


class Problems:
    """Collects what went wrong, by cause."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def add(self, path: str, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        self.merge([(reason, path, 1)])

    def merge(self, problems: Iterable[Problem]) -> None:
        found = self._found
        for reason, path, count in problems:
            first, before = found.get(reason, (path, 0))
            found[reason] = (first, before + count)
            if len(found) > _MOST_PROBLEMS:
                found.pop(next(iter(found)))

    def take(self) -> list[Problem]:
        """Return all problems since the last call."""
        found, self._found = self._found, {}
        return [(reason, path, count) for reason, (path, count) in found.items()]


class FileWriter:
    """Writes the files of all trials; only one thread uses it."""

    def __init__(self, clock: Clock, problems: Problems, open_limit: int) -> None:
        self.context = WriterContext(platform.node() or "localhost", open_limit, problems.add)
        self._clock = clock
        self._report_problem = problems.add
        self._stuck: dict[TrialLog, int] = {}  # could not be written, and how many bytes wait

    @property
    def is_stuck(self) -> bool:
        return bool(self._stuck)

    def work(self, entries: Sequence[Entry]) -> None:
        """Write `entries`; when this returns everything is in its file, or stuck."""
        for log in self._sorted(entries):
            self._encode(log)
            self._write(log)

    def retry(self, *, now: bool) -> None:
        """Try again what is stuck: what has waited long enough, or everything `now`."""
        if not self._stuck:
            return
        moment = self._clock.monotonic()
        for log in [log for log in self._stuck if now or log.retry_at <= moment]:
            self._write(log)

    def take_back(self, entries: Sequence[Entry]) -> None:
        """Carry out the entries of a writer that ended suddenly and may have begun with them."""
        # Its event files may end in the middle of a record, and new ones must not have their names.
        self.context.hostname += ".again"
        by_log: dict[TrialLog, list[Entry]] = {}
        for entry in entries:
            by_log.setdefault(entry[0], []).append(entry)
        for log, its in by_log.items():
            self.work(log.reclaim(self.context, its))

    def close(self) -> None:
        self.context.open_files.close_all()

    def _sorted(self, entries: Sequence[Entry]) -> Iterable[TrialLog]:
        """Add rows to their trials and carries out orders in their place; return the logs concerned."""
        touched: dict[TrialLog, None] = {}
        for log, kinds, what, at in entries:
            touched[log] = None
            if kinds:
                log.rows.append((kinds, what, at))
                continue
            try:
                log.carry_out(self.context, what)
            except Exception as error:  # noqa: BLE001 - other trials must continue
                self._report_problem(log.directory, error)
            if log.waiting_bytes > _MANY_BYTES:
                self._write(log)  # the files of a large config, before those of the next trial are made
        return touched

    def _encode(self, log: TrialLog) -> None:
        rows = log.rows
        if len(rows) <= _SLICE:
            log.encode_rows(self.context)
            return
        for first in range(0, len(rows), _SLICE):
            log.rows = rows[first : first + _SLICE]
            log.encode_rows(self.context)
            self._clock.sleep(0)  # the control thread may have been waiting for the interpreter

    def _write(self, log: TrialLog) -> None:
        try:
            log.write(self.context)
        except OSError as error:
            self._report_problem(getattr(error, "filename", None) or log.directory, error)
            log.failures += 1
            log.retry_at = self._clock.monotonic() + min(_RETRY_MOST_S, 0.1 * 2**log.failures)
            self._stuck[log] = log.waiting_bytes
            if sum(self._stuck.values()) > _STUCK_LIMIT_BYTES:
                self._report_problem(log.directory, OSError(f"gave up {log.give_up()} bytes of log"))
                del self._stuck[log]
        else:
            log.failures = 0
            self._stuck.pop(log, None)

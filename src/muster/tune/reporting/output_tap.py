"""OutputTap: what this process and its trials print, caught at the descriptors and shown above the live view.

Without it a `print` in a trial would tear the view. A flood is cut: so many lines per second are shown, the
rest is counted. Opened by the live view only, on a terminal; closing gives the descriptors back.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster.base.clock import Clock

LINES_PER_S = 200
LINGER_S = 0.1  # lines are shown in batches
HALF_LINE_S = 0.5  # a line without an end, such as a question, is shown after a while
_CHUNK = 1 << 16
_END = b"\0muster: the tap closes\0\n"


class OutputTap:
    """Shows caught lines through `show`, in a thread of its own."""

    def __init__(self, terminal_fd: int, show: Callable[[list[str]], None], *, clock: Clock) -> None:
        self._show = show
        self._clock = clock
        self._terminal = os.dup(terminal_fd)
        self._caught = [fd for fd in (1, 2) if _is_same_terminal(fd, terminal_fd)]
        self._before: list[int] = []
        self._read, self._write = os.pipe()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._drained = threading.Event()
        self._rest = b""
        self._budget, self._second, self._left_out = LINES_PER_S, clock.monotonic(), 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Processes made inside inherit the tap. No thread is started: they may be copies of this one."""
        self._divert()
        try:
            yield
        finally:
            self._give_back()

    def open(self) -> None:
        """From here on everything is caught and shown."""
        self._divert()
        self._thread = threading.Thread(target=self._run, name="muster-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Descriptors are as before and everything printed so far is shown; later output passes through."""
        if self._is_closed:
            return
        self._is_closed = True
        self._give_back()
        if self._thread is None:
            for fd in (self._read, self._write, self._terminal):
                os.close(fd)
            return
        with contextlib.suppress(OSError):
            os.write(self._write, _END)
        os.close(self._write)
        self._drained.wait(timeout=2.0)

    def _divert(self) -> None:
        flush_streams()
        self._before = [os.dup(fd) for fd in self._caught]
        for fd in self._caught:
            os.dup2(self._write, fd)

    def _give_back(self) -> None:
        flush_streams()
        for fd, before in zip(self._caught, self._before, strict=False):
            os.dup2(before, fd)
            os.close(before)
        self._before = []

    def _run(self) -> None:
        try:
            while not self._drained.is_set() and (data := self._next()) is not None:
                self._take(data)
            self._pass_through()
        finally:
            self._drained.set()
            os.close(self._read)
            os.close(self._terminal)

    def _next(self) -> bytes | None:
        """What came in a little while; b"" for nothing, None at the end."""
        ready, _, _ = select.select([self._read], [], [], HALF_LINE_S)
        if not ready:
            return b""
        data = os.read(self._read, _CHUNK)
        if data and len(data) < _CHUNK and _END not in data:
            self._clock.sleep(LINGER_S)
            more, _, _ = select.select([self._read], [], [], 0)
            data += os.read(self._read, _CHUNK) if more else b""
        return data or None

    def _take(self, data: bytes) -> None:
        body, end, after = (self._rest + data).partition(_END)
        whole, newline, self._rest = body.rpartition(b"\n")
        if newline:
            self._tell(whole)
        # A line without an end may be a question; one with `\r` is a progress bar that goes on.
        if self._rest and (end or (not data and b"\r" not in self._rest) or len(self._rest) > _CHUNK):
            self._tell(self._rest)
            self._rest = b""
        if end:
            self._rest = after
            self._drained.set()

    def _tell(self, whole: bytes) -> None:
        """Show what the second still has room for; count the rest without looking at it."""
        now = self._clock.monotonic()
        lines: list[str] = []
        if now - self._second >= 1.0:
            self._budget, self._second = LINES_PER_S, now
            if self._left_out:
                lines.append(f"... {self._left_out:,} lines of output left out (log_to_file=True keeps them)")
                self._left_out = 0
        shown = whole.split(b"\n", self._budget)
        if len(shown) > self._budget:
            self._left_out += shown.pop().count(b"\n") + 1
        self._budget -= len(shown)
        lines += [line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace") for line in shown]
        if lines:
            self._show(lines)

    def _pass_through(self) -> None:
        """Processes that outlive the view still write to us."""
        if self._rest:
            _write_all(self._terminal, self._rest)
        while data := os.read(self._read, _CHUNK):
            _write_all(self._terminal, data)


def flush_streams() -> None:
    """Write out what Python still holds."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()


def _write_all(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def _is_same_terminal(fd: int, terminal_fd: int) -> bool:
    try:
        return os.isatty(fd) and os.path.samestat(os.fstat(fd), os.fstat(terminal_fd))
    except OSError:
        return False

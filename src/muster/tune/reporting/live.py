"""Show an experiment on a terminal, redrawn in place. Imported lazily: only a terminal needs it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TextIO

from muster.base.clock import Clock
from muster.tune.reporting.periodic import ExperimentSnapshot, PeriodicReporter
from muster.tune.reporting.plain import HEARTBEAT_S, DetailedEventReporter, EventLines
from muster.tune.reporting.reporter import RunInfo
from muster.tune.reporting.tables import frame_for

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from muster.trials.model import Trial
    from muster.tune.reporting.live_view import LiveView


LINES_PER_S = 200
LINGER_S = 0.1  # lines are shown in batches
HALF_LINE_S = 0.5  # a line without an end, such as a question, is shown after a while
_CHUNK = 1 << 16
# What Ray's own daemons say is in the log files of its session; their lines belong to no trial.
_DAEMON = re.compile(rb"(?:\x1b\[\d*m)*\((?:raylet|gcs_server)\b")
_END = b"\0muster: the tap closes\0\n"


class OutputTap:
    """Shows intercepted lines through `show`, in its own thread."""

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
        """Make processes started inside inherit the tap; no thread is started, as they may be forks."""
        self._divert()
        try:
            yield
        finally:
            self._release()

    def open(self) -> None:
        """Start to intercept and show everything."""
        self._divert()
        self._thread = threading.Thread(target=self._run, name="muster-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Restore the descriptors and show everything printed so far; later output passes through."""
        if self._is_closed:
            return
        self._is_closed = True
        self._release()
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

    def _release(self) -> None:
        flush_streams()
        for fd, before in zip(self._caught, self._before, strict=False):
            os.dup2(before, fd)
            os.close(before)
        self._before = []

    def _run(self) -> None:
        try:
            while not self._drained.is_set() and (data := self._next()) is not None:
                self._take(data)
            if self._rest:
                _write_all(self._terminal, self._rest)
            # Copy what processes that outlive the view still write.
            while data := os.read(self._read, _CHUNK):
                _write_all(self._terminal, data)
        finally:
            self._drained.set()
            os.close(self._read)
            os.close(self._terminal)

    def _next(self) -> bytes | None:
        """Return what came in a short time; b"" for nothing, None at the end."""
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
            self._print_whole(whole)
        # A line without an end may be a question; one with `\r` is a progress bar that continues.
        if self._rest and (end or (not data and b"\r" not in self._rest) or len(self._rest) > _CHUNK):
            self._print_whole(self._rest)
            self._rest = b""
        if end:
            self._rest = after
            self._drained.set()

    def _print_whole(self, whole: bytes) -> None:
        """Show as many lines as this second allows; counts the rest without decoding it."""
        if b"(raylet" in whole or b"(gcs_server" in whole:
            lines_of_trials = [line for line in whole.split(b"\n") if not _DAEMON.match(line)]
            if not lines_of_trials:
                return
            whole = b"\n".join(lines_of_trials)
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


def flush_streams() -> None:
    """Write out what Python still buffers."""
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


class Screen:
    """Owns the terminal between `open` and `close`; both may be called twice."""

    def __init__(self, stream: TextIO, *, clock: Clock, environment: Mapping[str, str]) -> None:
        self._stream = stream
        self._clock = clock
        self._environment = environment
        self._lock = threading.RLock()  # the tap's thread and ours write in turn
        self._console: Console | None = None
        self._live: Live | None = None
        self._tap: OutputTap | None = None
        self._own: TextIO | None = None

    def open(self) -> None:
        if self._own is not None:
            return
        fd = self._stream.fileno()
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        # Our own copy of the terminal: the descriptors that others write to are about to be intercepted.
        self._own = open(os.dup(fd), "w", encoding=encoding, errors="replace")  # noqa: SIM115
        self._tap_for(fd).open()

    def _page(self) -> Console | None:
        """Return the console, made when first needed: rich is slow to load, and trials should not wait."""
        if self._console is None and self._own is not None:
            from rich.console import Console

            self._console = Console(
                file=self._own,
                force_terminal=True,
                highlight=False,
                markup=False,
                emoji=False,
                _environ=self._environment,
            )
        if self._console is not None:
            from rich.console import ConsoleDimensions

            self._console.size = ConsoleDimensions(*self.size())
        return self._console

    def _tap_for(self, fd: int) -> OutputTap:
        if self._tap is None:
            self._tap = OutputTap(fd, self._above, clock=self._clock)
        return self._tap

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Make processes started inside write to the tap; this process does not yet."""
        with self._tap_for(self._stream.fileno()).caught():
            yield

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "ascii"

    def size(self) -> tuple[int, int]:
        """Return columns and lines, as they are now: users resize windows."""
        try:
            columns, lines = os.get_terminal_size((self._own or self._stream).fileno())
        except (OSError, ValueError):
            columns, lines = 80, 24
        return (columns or 80, lines or 24)

    def draw(self, area: RenderableType) -> None:
        """Replace the live area. A terminal that has gone away is not a reason to end an experiment."""
        with self._lock, contextlib.suppress(OSError):
            page = self._page()
            if page is None:
                return
            if self._live is None:
                from rich.live import Live

                self._live = Live(
                    console=page,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                    vertical_overflow="crop",
                )
                self._live.start()
                page.show_cursor(True)  # a driver killed with -9 must not leave a hidden cursor
            self._live.update(area, refresh=True)

    def print(self, *parts: RenderableType) -> None:
        """Print lines above the live area, or simply lines when there is none."""
        with self._lock, contextlib.suppress(OSError):
            page = self._page()
            if page is None:
                return
            for part in parts:
                page.print(part, soft_wrap=isinstance(part, str))

    def clear(self) -> None:
        """Remove the live area; lines can still be printed."""
        with self._lock, contextlib.suppress(OSError):
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def drain(self) -> None:
        """Show everything printed so far, and lets output pass as usual again."""
        tap, self._tap = self._tap, None
        if tap is not None:
            tap.close()  # not under the lock: its thread may be waiting to print

    def close(self) -> None:
        self.drain()
        self.clear()
        with self._lock:
            self._console = None
            own, self._own = self._own, None
            if own is not None:
                with contextlib.suppress(OSError):
                    own.close()

    def _above(self, lines: list[str]) -> None:
        from rich.text import Text

        with self._lock, contextlib.suppress(OSError):
            page = self._page()
            if page is not None:
                page.print(Text("\n").join(Text.from_ansi(line) for line in lines), soft_wrap=True)


REDRAW_S = 0.25


class LiveReporter(PeriodicReporter):
    """Shows what `verbose=1` shows on a terminal."""

    def __init__(self, stream: TextIO, *, clock: Clock, environment: Mapping[str, str]) -> None:
        super().__init__(clock=clock, period_s=REDRAW_S)
        self._screen = Screen(stream, clock=clock, environment=environment)
        self._home = environment.get("HOME", "")
        self._view: LiveView | None = None

    def catching(self) -> AbstractContextManager[None]:
        return self._screen.catching()

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._view = None
        self._screen.open()

    def note(self, text: str) -> None:
        self._screen.print(text)

    def show(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        self._screen.draw(self._live_view().draw(snapshot, self._screen.size()))

    def _live_view(self) -> LiveView:
        """Return the view, which is made after the first step: loading rich takes a while."""
        if self._view is None:
            from muster.tune.reporting.live_view import LiveView, glyphs_for

            self._view = LiveView(glyphs_for(self._screen.encoding), home=self._home)
        return self._view

    def conclude(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        self._screen.drain()
        self._screen.clear()
        size = self._screen.size()
        self._screen.print(*self._live_view().conclusion(snapshot, trials, size, interrupted=interrupted))
        self._screen.close()

    def abort(self) -> None:
        self._screen.close()


class DetailedLiveReporter(DetailedEventReporter, LiveReporter):
    """A DetailedLiveReporter prints, from `verbose=2` on, the events of trials above the view."""

    def __init__(self, stream: TextIO, *, clock: Clock, environment: Mapping[str, str], level: int) -> None:
        super().__init__(stream, clock=clock, environment=environment)
        frame = frame_for(self._screen.encoding)
        self._event_lines = EventLines(self._screen.print, clock=clock, level=level, frame=frame)
        self._window_ends = 0.0

    def begin(self, info: RunInfo) -> None:
        self._event_lines.begin(info.metric)
        self._window_ends = self._clock.monotonic() + HEARTBEAT_S
        super().begin(info)

    def show(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        if self._clock.monotonic() >= self._window_ends:
            self._window_ends = self._clock.monotonic() + HEARTBEAT_S
            self._event_lines.new_window()
        super().show(snapshot, trials)

    def conclude(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        self._event_lines.new_window()
        super().conclude(snapshot, trials, interrupted=interrupted)

"""Screen: a terminal with a live area at the bottom and lines above it. Only here is rich's Live used."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from muster.base.clock import Clock
from muster.tune.reporting.output_tap import OutputTap

if TYPE_CHECKING:
    from rich.console import Console, ConsoleDimensions, RenderableType
    from rich.live import Live


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
        # Our own copy of the terminal: the descriptors everybody else writes to are about to be caught.
        self._own = open(os.dup(fd), "w", encoding=encoding, errors="replace")  # noqa: SIM115
        self._tap_for(fd).open()

    def _page(self) -> Console | None:
        """Made when first needed: rich takes its time to load, and trials should not wait for it."""
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
            self._console.size = _dimensions(self.size())
        return self._console

    def _tap_for(self, fd: int) -> OutputTap:
        if self._tap is None:
            self._tap = OutputTap(fd, self._above, clock=self._clock)
        return self._tap

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Processes made inside keep writing to the tap; this process does not yet."""
        with self._tap_for(self._stream.fileno()).caught():
            yield

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "ascii"

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now: people resize windows."""
        try:
            columns, lines = os.get_terminal_size((self._own or self._stream).fileno())
        except (OSError, ValueError):
            columns, lines = 80, 24
        return (columns or 80, lines or 24)

    def draw(self, area: RenderableType) -> None:
        """Replace the live area. A terminal that has gone away is no reason to end an experiment."""
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
        """Lines above the live area, or simply lines when there is none."""
        with self._lock, contextlib.suppress(OSError):
            page = self._page()
            if page is None:
                return
            for part in parts:
                page.print(part, soft_wrap=isinstance(part, str))

    def clear(self) -> None:
        """Take the live area away; lines can still be printed."""
        with self._lock, contextlib.suppress(OSError):
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def settle(self) -> None:
        """Everything printed so far is shown; output goes its ordinary way again."""
        tap, self._tap = self._tap, None
        if tap is not None:
            tap.close()  # not under the lock: its thread may be waiting to print

    def close(self) -> None:
        self.settle()
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


def _dimensions(size: tuple[int, int]) -> ConsoleDimensions:
    from rich.console import ConsoleDimensions

    return ConsoleDimensions(*size)

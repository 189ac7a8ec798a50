"""Polls file descriptors, spinning shortly before it sleeps while that pays.

A sleeping process is woken through the kernel, which on a quiet machine costs more than everything else about
a result. So a side that expects an answer within microseconds polls some fifty times first. When the answer
does not come in time, it does so more and more rarely: real training and busy machines pay nothing.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from muster.host.machine import cpu_count

SPINS = 60  # about 0.05 ms; 250 helped one trial by a tenth and cost sixteen on two cores as much
_MOST_MISSES = 8  # then one try in 255


class SpinThenWait:
    """A SpinThenWait decides whether one waiting place spins before it sleeps."""

    __slots__ = ("_misses", "_skip")

    def __init__(self) -> None:
        self._misses = 0
        # With one processor the other side cannot run while this one spins.
        self._skip = 0 if cpu_count() > 1 else -1

    def poll(self, poll: Callable[[float], Any]) -> Any:  # noqa: ANN401 - what the poller gives
        """Returns what `poll(0)` found, or something false: then it is time to sleep."""
        if self._skip:
            if self._skip > 0:
                self._skip -= 1
            return None
        for _ in range(SPINS):
            found = poll(0)
            if found:
                self._misses = 0
                return found
        if self._misses < _MOST_MISSES:
            self._misses += 1
        self._skip = (1 << self._misses) - 1
        return None

    def skip_next(self) -> None:
        """Sleeps at once the next time."""
        self._skip = self._skip or 1


def is_readable(fd: int) -> bool:
    """Returns whether a descriptor is readable now; any number of it will do, unlike for `select`."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


class Poller:
    """A Poller reports which descriptors are ready."""

    def __init__(self) -> None:
        self._is_epoll = hasattr(select, "epoll")
        self._poller = select.epoll() if self._is_epoll else select.poll()
        self._tick = 1.0 if self._is_epoll else 1000.0  # epoll takes seconds, poll milliseconds

    def add_reader(self, fd: int) -> None:
        self._poller.register(fd, select.POLLIN)

    def add_writer(self, fd: int) -> None:
        self._poller.register(fd, select.POLLOUT)

    def set_writing(self, fd: int, *, writing: bool) -> None:
        """Watches one descriptor for reading always, and for writing when something waits to be written."""
        self._poller.modify(fd, select.POLLIN | (select.POLLOUT if writing else 0))

    def forget(self, fd: int) -> None:
        try:
            self._poller.unregister(fd)
        except (KeyError, FileNotFoundError):
            return  # was not watched

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._poller.poll(timeout_s * self._tick)

    def close(self) -> None:
        if self._is_epoll:
            self._poller.close()  # type: ignore[union-attr]

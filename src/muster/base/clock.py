"""Provide time as a dependency; the only file allowed to call `time`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """What a component that must know or pass time takes."""

    def now(self) -> float:
        """Return the wall clock, in seconds since the epoch; it may jump."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Pass time."""


class SystemClock:
    """The machine's clock; asked several times per result, so nothing is in between."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    # Also counts while the machine is suspended, where there is such a clock; for the class, not its objects.
    since_boot = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ManualClock:
    """Moves only when a test moves it; `jump` moves the wall clock alone."""

    def __init__(self, now: float = 0.0) -> None:
        self._wall = now
        self._monotonic = 0.0

    def now(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._wall += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        self._wall += seconds


class Boot(NamedTuple):
    """One start of the computer: its id, and the seconds since then, the same for all its processes."""

    boot_id: str
    elapsed: Callable[[], float]


class SteadyClock:
    """Returns wall-clock readings that move only with monotonic time.

    Timeouts and costs must not follow a user who sets the clock, yet timestamps must mean something to users
    and survive a restart. So the clock is anchored to the wall clock once, never before `floor` (the newest
    time in the ledger), and then follows the monotonic clock. Without a `clock` it also counts the time in
    which the machine is suspended: rented machines still cost then, and a deadline comes nearer. With a
    `boot`, it counts by that, and with an `offset`, it continues the clock of an earlier process.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        floor: float = 0.0,
        boot: Boot | None = None,
        offset: float | None = None,
    ) -> None:
        self.wall: Clock = clock or SystemClock()
        self.monotonic, self.sleep = self.wall.monotonic, self.wall.sleep
        of_process = self.monotonic if clock is not None else SystemClock.since_boot
        self._elapsed = of_process if boot is None else boot.elapsed
        self._offset = self.wall.now() - self._elapsed() if offset is None else offset
        self.not_before(floor)

    def now(self) -> float:
        return self._elapsed() + self._offset

    def not_before(self, floor: float) -> None:
        """Move the readings forward, if necessary, so that none is before `floor`."""
        self._offset = max(self._offset, floor - self._elapsed())


def ahead_s(clock: Clock) -> float:
    """Return by how much a clock is ahead of the wall clock, the only one that other processes know too."""
    return clock.now() - clock.wall.now() if isinstance(clock, SteadyClock) else 0.0

"""Provides time as a dependency; the only file allowed to call `time`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A Clock is what a component that must know or pass time takes."""

    def now(self) -> float:
        """Returns the wall clock, in seconds since the epoch; it may jump."""

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Passes time."""


class SystemClock:
    """A SystemClock is the machine's clock; asked several times per result, so nothing is in between."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class ManualClock:
    """A ManualClock moves only when a test moves it; `jump` moves the wall clock alone."""

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


class SteadyClock:
    """A SteadyClock returns wall-clock readings that move only with monotonic time.

    Timeouts must not fire because a user set the clock, yet timestamps must mean something to users and
    survive a restart. So the clock is anchored to the wall clock once, never before `floor` (the newest time
    in the ledger), and then follows the monotonic clock.
    """

    def __init__(self, clock: Clock, floor: float = 0.0) -> None:
        self._clock = clock
        self._offset = max(clock.now(), floor) - clock.monotonic()

    def now(self) -> float:
        return self._clock.monotonic() + self._offset

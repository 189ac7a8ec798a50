"""Time as a dependency; the only file allowed to call `time`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a component that must know or pass time takes."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Pass time."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to; `jump` moves the wall clock alone."""

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
    """Wall-clock readings that move only with monotonic time.

    Timeouts must not fire because somebody set the clock, yet timestamps must mean something to people
    and survive a restart. So: anchor to the wall clock once, never before `floor` (the newest time in the
    ledger), then follow the monotonic clock.
    """

    def __init__(self, clock: Clock, floor: float = 0.0) -> None:
        self._clock = clock
        self._offset = max(clock.now(), floor) - clock.monotonic()

    def now(self) -> float:
        return self._clock.monotonic() + self._offset

"""Provides virtual time and the events that happen in it: the `Clock` of a simulated run.

Nothing here reads the machine's clock; ties between events are broken by the order of scheduling.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable

START_OF_DAY = 1_767_225_600.0  # a midnight (UTC), so that simulated wall clocks read well


class World:
    """A World is a clock that moves only on request, with a heap of scheduled events."""

    def __init__(self, wall_start: float = START_OF_DAY) -> None:
        self.time = 0.0  # true seconds since the run began
        self.wall_shift = wall_start
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0

    def now(self) -> float:
        return self.time + self.wall_shift

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Sets the wall clock, as an administrator would; true time does not move."""
        self.wall_shift += seconds

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Schedules an event `delay_s` from now."""
        self._scheduled += 1
        heapq.heappush(self._heap, (self.time + max(delay_s, 0.0), self._scheduled, happen))

    def next_event_s(self) -> float:
        """Returns the seconds until the next event; infinity when nothing is scheduled."""
        return max(0.0, self._heap[0][0] - self.time) if self._heap else float("inf")

    def advance(self, seconds: float) -> None:
        """Passes time and runs everything due at its own moment."""
        end = self.time + seconds
        while self.run_next(end):
            pass
        self.time = end

    def run_next(self, until: float) -> bool:
        """Moves to the next event and runs it; False, and no time passes, when none is due by `until`."""
        if not self._heap or self._heap[0][0] > until:
            return False
        self.time, _, happen = heapq.heappop(self._heap)
        happen()
        return True


def quiet() -> None:
    """Silences the warnings of the controllers, which are expected in a simulation."""
    logging.getLogger("muster").addHandler(logging.NullHandler())

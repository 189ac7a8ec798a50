"""Provide virtual time and the events that happen in it: the `Clock` of a simulated run.

Nothing here reads the machine's clock; ties between events are broken by the order of scheduling. Simulated
engines plan by an EventQueue: over its own clock, or (WorldQueue) among the events of a world.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from math import inf
from typing import Protocol

Action = Callable[[], None]
GONE = -1  # the turn of a process that has ended
ANY_TURN = -2  # of a plan that holds whatever the process does: faults, limits
START_OF_DAY = 1_767_225_600.0  # a midnight (UTC), so that simulated wall clocks read well


class World:
    """A clock that moves only on request, with a heap of scheduled events."""

    def __init__(self, wall_start: float = START_OF_DAY) -> None:
        self.time = 0.0  # true seconds since the run began
        self.wall_shift = wall_start
        self._heap: list[tuple[float, int, Action]] = []
        self._scheduled = 0

    def now(self) -> float:
        return self.time + self.wall_shift

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as an administrator would; true time does not move."""
        self.wall_shift += seconds

    def after(self, delay_s: float, happen: Action) -> None:
        """Schedule an event `delay_s` from now."""
        self._scheduled += 1
        heapq.heappush(self._heap, (self.time + max(delay_s, 0.0), self._scheduled, happen))

    def next_event_s(self) -> float:
        """Return the seconds until the next event; infinity when nothing is scheduled."""
        return max(0.0, self._heap[0][0] - self.time) if self._heap else inf

    def advance(self, seconds: float) -> None:
        """Pass time and run everything due at its own moment."""
        end = self.time + seconds
        while self.run_next(end):
            pass
        self.time = end

    def run_next(self, until: float) -> bool:
        """Move to the next event and run it; False, and no time passes, when none is due by `until`."""
        if not self._heap or self._heap[0][0] > until:
            return False
        self.time, _, happen = heapq.heappop(self._heap)
        happen()
        return True


class MovableClock(Protocol):
    """A Clock that can be advanced: ManualClock, World."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def advance(self, seconds: float) -> None: ...


class HasTurns:
    """A base of what happens in turns: each order and each event begins a new turn."""

    turn: int

    def is_due(self, turn: int) -> bool:
        """Return whether what was planned for `turn` still happens."""
        return turn == self.turn or (turn == ANY_TURN and self.turn != GONE)


class EventQueue:
    """A heap of plans over a clock that it moves."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        self._plans: list[tuple[float, int, HasTurns, int, Action]] = []
        self._planned = 0
        self.wake_at = inf  # `advance` comes back here at the latest

    def plan(self, delay_s: float, who: HasTurns, action: Action) -> None:
        """Plan the next event of `who`; what was planned before is cancelled."""
        who.turn += 1
        self._push(delay_s, who, who.turn, action)

    def plan_anyway(self, delay_s: float, who: HasTurns, action: Action) -> None:
        """Plan an event that happens unless `who` has ended by then."""
        if delay_s < inf:
            self._push(delay_s, who, ANY_TURN, action)

    @property
    def is_empty(self) -> bool:
        self._drop_cancelled()
        return not self._plans

    def clear(self) -> None:
        self._plans.clear()

    def advance(self, timeout_s: float) -> None:
        """Advance to the next plans and run them; or to `wake_at`.

        With neither, the wait itself passes.
        """
        self._drop_cancelled()
        plans = self._plans
        due = plans[0][0] if plans else inf
        now = self._clock.monotonic()
        if due == inf:
            due = now + (timeout_s if timeout_s < inf else 0.0)
        until = min(due, self.wake_at)
        if until > now:
            self._clock.advance(until - now)
        if due <= until:
            while plans and plans[0][0] <= due:
                _, _, who, turn, action = heapq.heappop(plans)
                if who.is_due(turn):
                    action()

    def _push(self, delay_s: float, who: HasTurns, turn: int, action: Action) -> None:
        self._planned += 1
        due = self._clock.monotonic() + delay_s
        heapq.heappush(self._plans, (due, self._planned, who, turn, action))

    def _drop_cancelled(self) -> None:
        plans = self._plans
        while plans:
            _, _, who, turn, _ = plans[0]
            if who.is_due(turn):
                return
            heapq.heappop(plans)


class WorldQueue(EventQueue):
    """Has its plans among the events of a world, next to those of everything else in it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world
        self._is_closed = False

    def _push(self, delay_s: float, who: HasTurns, turn: int, action: Action) -> None:
        def happen() -> None:
            if who.is_due(turn) and not self._is_closed:
                action()

        self._world.after(delay_s, happen)

    def clear(self) -> None:
        self._is_closed = True


def quiet() -> None:
    """Silence the warnings of the controllers, which are expected in a simulation."""
    logging.getLogger("muster").addHandler(logging.NullHandler())

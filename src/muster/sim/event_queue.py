"""Orders what will happen to which process, in virtual time; ties go by the order of planning.

Used by the simulated engines alone. Plans are never removed: one whose turn has passed is skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from typing import Protocol

from muster.sim.cluster.world import World

GONE = -1  # the turn of a process that has ended
ANY_TURN = -2  # of a plan that holds whatever the process does: faults, limits


class MovableClock(Protocol):
    """A MovableClock is a Clock that can be advanced: ManualClock, World."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def advance(self, seconds: float) -> None: ...

    def jump(self, seconds: float) -> None: ...


class HasTurns:
    """HasTurns is a base of what happens in turns: each order and each event begins a new turn."""

    turn: int

    def is_due(self, turn: int) -> bool:
        """Returns whether what was planned for `turn` still happens."""
        return turn == self.turn or (turn == ANY_TURN and self.turn != GONE)


Action = Callable[[], None]


class EventQueue:
    """An EventQueue is a heap of plans over a clock that it moves."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        self._plans: list[tuple[float, int, HasTurns, int, Action]] = []
        self._planned = 0
        self.wake_at = inf  # `advance` comes back here at the latest

    def plan(self, delay_s: float, who: HasTurns, action: Action) -> None:
        """Plans the next event of `who`; what was planned before is cancelled."""
        who.turn += 1
        self._push(delay_s, who, who.turn, action)

    def plan_anyway(self, delay_s: float, who: HasTurns, action: Action) -> None:
        """Plans an event that happens unless `who` has ended by then."""
        if delay_s < inf:
            self._push(delay_s, who, ANY_TURN, action)

    @property
    def is_empty(self) -> bool:
        self._drop_cancelled()
        return not self._plans

    def clear(self) -> None:
        self._plans.clear()

    def advance(self, timeout_s: float) -> None:
        """Advances to the next plans and runs them; or to `wake_at`.

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
    """A WorldQueue has its plans among the events of a world, beside those of everything else in it."""

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

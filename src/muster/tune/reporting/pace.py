"""Pace: when to show the next picture. Speed: how fast trials finish, and when the last one will. Pure."""

from __future__ import annotations

from collections import deque

SHARE = 0.02  # of the time that showing may take
WINDOW_S = 30.0
ENOUGH = 5  # finished trials that make the recent speed mean something


class Pace:
    """At most one picture per period, and rarer when pictures are slow to make.

    What counts is the fastest of the last few: one that met a busy moment does not stop the next ones, nor
    does the first, which also loads what it is drawn with.
    """

    def __init__(self, period_s: float, share: float = SHARE) -> None:
        self.period_s = period_s
        self._share = share
        self._costs: deque[float] = deque([0.0], maxlen=3)
        self.due = float("-inf")

    def showed(self, began: float, ended: float) -> None:
        """A picture took from `began` to `ended`, on the monotonic clock."""
        self._costs.append(ended - began)
        self.due = max(began + self.period_s, ended + min(self._costs) * (1 / self._share - 1))


class Speed:
    """Fed with the number of finished trials now and then, not with every one."""

    def __init__(self, at: float, finished: int) -> None:
        self._first = (at, finished)
        self._seen: deque[tuple[float, int]] = deque([self._first])

    def sample(self, at: float, finished: int) -> None:
        self._seen.append((at, finished))
        while len(self._seen) > 2 and self._seen[1][0] <= at - WINDOW_S:
            self._seen.popleft()

    def per_second(self) -> float | None:
        """Of late when enough finished of late, else since the start; None: nothing finished yet."""
        at, finished = self._seen[-1]
        for since, before in (self._seen[0], self._first):
            done, elapsed_s = finished - before, at - since
            if elapsed_s > 0 and (done >= ENOUGH or (since == self._first[0] and done > 0)):
                return done / elapsed_s
        return None

    def eta_s(self, total: int | None, budget_left_s: float | None) -> float | None:
        """Seconds until everything is done: by the speed so far, or by the time budget if that is sooner."""
        per_second = self.per_second()
        left = [] if budget_left_s is None else [max(0.0, budget_left_s)]
        if total is not None and per_second:
            left.append(max(0, total - self._seen[-1][1]) / per_second)
        return min(left, default=None)

"""A small revised simplex for the master problem: which patterns, how often, at the least cost.

Called by column generation. Rows are "cover at least this much" (with a dear way out: leave it unserved)
or "at most this much"; columns may be added between runs. Stops by number of pivots, never by a clock.
"""

from __future__ import annotations

import numpy as np

from muster.cluster.binpack.cost.arrays import Floats, Ints

EPSILON = 1e-9
REFACTOR_EVERY = 60


class Master:
    """min cost·x, A x >= rhs in the first `cover` rows and <= rhs in the others, x >= 0."""

    def __init__(self, rhs: Floats, cover: int, unserved_cost: float) -> None:
        rows = len(rhs)
        # A hair of disorder in the right-hand side keeps degenerate bases from going in circles.
        self._rhs = (
            rhs + 1e-7 * (1.0 + np.arange(rows) / max(rows, 1)) * np.maximum(rhs.max(initial=1.0), 1.0) / 1e3
        )
        self.rows = rows
        slack = np.eye(rows)
        surplus = -np.eye(rows)[:, :cover]
        self._columns = np.hstack([slack, surplus])  # columns 0..rows-1 are the first basis
        self._cost = np.concatenate([np.full(cover, unserved_cost), np.zeros(rows - cover), np.zeros(cover)])
        self.own = rows + cover  # columns before this one are slack, not patterns
        self.basis: Ints = np.arange(rows)
        self._inverse = np.eye(rows)
        self._amounts = self._rhs.copy()

    def add(self, columns: Floats, cost: Floats) -> None:
        """Append patterns (rows x n)."""
        self._columns = np.hstack([self._columns, columns])
        self._cost = np.concatenate([self._cost, cost])

    @property
    def duals(self) -> Floats:
        result: Floats = self._cost[self.basis] @ self._inverse
        return result

    @property
    def objective(self) -> float:
        return float(self._cost[self.basis] @ self._amounts)

    def amounts(self) -> tuple[Ints, Floats]:
        """Basic patterns (numbered from 0 in the order they were added) and how often each is used."""
        used = (self.basis >= self.own) & (self._amounts > 1e-6)
        return self.basis[used] - self.own, self._amounts[used]

    def run(self, most_pivots: int) -> int:
        """Pivot to the optimum of the columns known; returns the pivots made."""
        scale = np.maximum(self._cost, self._cost[self._cost > 0].min(initial=1.0))
        for pivot in range(most_pivots):
            reduced = (self._cost - self.duals @ self._columns) / scale
            entering = int(reduced.argmin())
            if reduced[entering] > -EPSILON or not self._pivot(entering):
                return pivot
            if pivot % REFACTOR_EVERY == REFACTOR_EVERY - 1:
                self._refactor()
        return most_pivots

    def _pivot(self, entering: int) -> bool:
        direction = self._inverse @ self._columns[:, entering]
        rising = direction > EPSILON
        if not rising.any():
            return False
        ratios = np.full(self.rows, np.inf)
        np.divide(self._amounts, direction, out=ratios, where=rising)
        leaving = int(ratios.argmin())
        step = max(float(ratios[leaving]), 0.0)
        self._amounts -= step * direction
        self._amounts[leaving] = step
        row = self._inverse[leaving] / direction[leaving]
        direction[leaving] = 0.0
        self._inverse -= direction[:, None] * row
        self._inverse[leaving] = row
        self.basis[leaving] = entering
        return True

    def _refactor(self) -> None:
        """Throw away the rounding errors that pivots left behind."""
        self._inverse = np.linalg.inv(self._columns[:, self.basis])
        self._amounts = np.maximum(self._inverse @ self._rhs, 0.0)

"""A small revised simplex for the master problem: which patterns, how often, at the least cost.

Called by column generation. Rows are "cover at least this much" (with a dear way out: leave it unserved)
or "at most this much"; columns may be added between runs. Stops by number of pivots, never by a clock.
Sums are written so that no multi-threaded library does them: the same answer and one core everywhere.
"""

from __future__ import annotations

import numpy as np

from muster.cluster.binpack.cost.problem import Floats, Ints

EPSILON = 1e-9
REFACTOR_EVERY = 250
SHORT_LIST = 24  # columns looked at between two looks at all of them


class Master:
    """min cost·x, A x >= rhs in the first `cover` rows and <= rhs in the others, x >= 0."""

    def __init__(self, rhs: Floats, cover: int, unserved_cost: float) -> None:
        rows = len(rhs)
        # A hair of disorder in the right-hand side keeps degenerate bases from going in circles.
        hair = 1e-10 * max(float(rhs.max(initial=1.0)), 1.0)
        self._rhs = rhs + hair * (1.0 + np.arange(rows) / max(rows, 1))
        self.rows = rows
        self.own = rows + cover  # columns before this one are slack, not patterns
        # Columns 0..rows-1 are the first basis: unserved items and unused room; then surplus.
        self._columns = np.vstack(
            [np.eye(rows), -np.eye(rows)[:cover]]
        )  # one row per column: rows are cheap to read
        self._cost = np.concatenate([np.full(cover, unserved_cost), np.zeros(rows - cover), np.zeros(cover)])
        self.basis: Ints = np.arange(rows)
        self._inverse = np.eye(rows)
        self._amounts = self._rhs.copy()
        self.duals: Floats = self._cost[:rows].copy()

    def add(self, columns: Floats, cost: Floats) -> None:
        """Append patterns, one per row of `columns`."""
        self._columns = np.vstack([self._columns, columns])
        self._cost = np.concatenate([self._cost, cost])

    def amounts(self) -> tuple[Ints, Floats]:
        """Basic patterns (numbered from 0 in the order they were added) and how often each is used."""
        used = (self.basis >= self.own) & (self._amounts > 1e-6)
        return self.basis[used] - self.own, self._amounts[used]

    def run(self, most_pivots: int) -> None:
        """Pivot to the optimum of the columns known."""
        scale = np.maximum(self._cost, self._cost[self._cost > 0].min(initial=1.0))
        pivots = 0
        while pivots < most_pivots:
            reduced = (self._cost - np.einsum("ij,j->i", self._columns, self.duals)) / scale
            listed = np.argsort(reduced, kind="stable")[:SHORT_LIST]
            listed = listed[reduced[listed] < -EPSILON]
            made = self._exhaust(listed, scale[listed], most_pivots - pivots)
            if not made:
                return
            pivots += made
            if pivots // REFACTOR_EVERY > (pivots - made) // REFACTOR_EVERY:
                self._refactor()

    def _exhaust(self, listed: Ints, scale: Floats, most: int) -> int:
        """Pivot among a few columns until none of them helps; returns how often."""
        columns, cost = self._columns[listed], self._cost[listed]
        made = 0
        while len(listed) and made < most:
            reduced = cost - np.einsum("ij,j->i", columns, self.duals)
            best = int((reduced / scale).argmin())
            if reduced[best] > -EPSILON * scale[best]:
                break
            if not self._pivot(int(listed[best]), float(reduced[best])):
                break
            made += 1
        return made

    def _pivot(self, entering: int, reduced: float) -> bool:
        column = self._columns[entering]
        used = np.flatnonzero(column)
        direction = np.einsum("ij,j->i", self._inverse[:, used], column[used])
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
        touched = np.flatnonzero(direction)
        self._inverse[touched] -= direction[touched, None] * row
        self._inverse[leaving] = row
        self.duals += reduced * row
        self.basis[leaving] = entering
        return True

    def _refactor(self) -> None:
        """Throw away the rounding errors that pivots left behind."""
        try:
            self._inverse = np.asarray(np.linalg.inv(self._columns[self.basis].T), dtype=np.float64)
        except np.linalg.LinAlgError:
            return  # the basis is all but singular: the inverse at hand is the better one
        self._amounts = np.maximum(np.einsum("ij,j->i", self._inverse, self._rhs), 0.0)
        self.duals = np.einsum("ij,i->j", self._inverse, self._cost[self.basis])

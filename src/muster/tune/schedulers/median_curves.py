"""Running means of all trials, for MedianStoppingRule: the median of the others' at one time.

Where trials report at the same times (iterations), an answer is O(log n) plus a short move in a list of the
means at that time. Times that differ from trial to trial (seconds) have to be looked up in every trial.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from muster.tune.execution.plugin_state import Plain


class Others(NamedTuple):
    """The other trials that got to some time."""

    number: int
    median: float  # of their means; NaN when there are none


class Curve:
    """One trial: sums of its scores from the grace period on. Times never fall."""

    __slots__ = ("last", "sums", "times")

    def __init__(
        self, last: float = -math.inf, times: Sequence[float] = (), sums: Sequence[float] = ()
    ) -> None:
        self.last, self.times, self.sums = last, list(times), list(sums)

    def append(self, time: float, score: float) -> None:
        self.times.append(time)
        self.sums.append(score + (self.sums[-1] if self.sums else 0.0))

    def cut(self, time: float) -> None:
        """Forget what came at `time` or later."""
        kept = bisect_left(self.times, time)
        del self.times[kept:], self.sums[kept:]

    def mean(self, time: float) -> float:
        """Of all scores up to `time`; NaN when there is none, or when one of them was not finite."""
        count = bisect_right(self.times, time)
        return self.sums[count - 1] / count if count else math.nan


class Curves:
    """Every trial that ever reported; ended ones stay in the comparison."""

    def __init__(self, grace_period: float) -> None:
        self._grace_period = grace_period
        self._curves: dict[str, Curve] = {}
        # What follows is remembered to be fast, and found again when it is missing.
        self._columns: dict[float, Any] = {}  # at one time: a SortedList of the means of who got that far
        self._column_times: list[float] = []
        self._known_times: set[float] = set()

    def last_time(self, trial_id: str) -> float | None:
        return self._curves[trial_id].last if trial_id in self._curves else None

    def record(self, trial_id: str, time: float, score: float) -> None:
        """A trial that goes back in time was started again: what it had reported from there on is undone."""
        curve = self._curves.setdefault(trial_id, Curve())
        before, curve.last = curve.last, time
        if time < before:
            self._forget_columns()
            curve.cut(time)
        same = self._columns.get(time) if time == before else None
        if same is not None and math.isfinite(curve.mean(time)):
            same.remove(curve.mean(time))
        if time >= self._grace_period:
            curve.append(time, score)
        if same is not None:
            _insert(same, curve.mean(time))
        first = bisect_right(self._column_times, before)
        for column_time in self._column_times[first : bisect_right(self._column_times, time)]:
            _insert(self._columns[column_time], curve.mean(column_time))

    def others(self, trial_id: str, time: float) -> Others:
        """Of the other trials that got to `time`: how many have a finite mean, and the median of these."""
        column = self._column(time)
        curve = self._curves[trial_id]
        own = curve.mean(time) if curve.last >= time else math.nan
        place = column.bisect_left(own) if math.isfinite(own) else len(column)
        count = len(column) - (place < len(column))
        if not count:
            return Others(0, math.nan)
        low, high = ((count - 1) // 2, count // 2)
        return Others(count, (column[low + (low >= place)] + column[high + (high >= place)]) / 2)

    def _column(self, time: float) -> Any:  # noqa: ANN401 - a SortedList has no type
        column = self._columns.get(time)
        if column is None:
            reached = (curve.mean(time) for curve in self._curves.values() if curve.last >= time)
            column = SortedList(mean for mean in reached if math.isfinite(mean))
            if time in self._known_times:  # it comes again: trials report at the same times
                self._columns[time] = column
                insort(self._column_times, time)
            self._known_times.add(time)
        return column

    def _forget_columns(self) -> None:
        self._columns.clear()
        self._column_times.clear()

    def to_plain(self) -> Plain:
        return {one: (curve.last, curve.times, curve.sums) for one, curve in self._curves.items()}

    def from_plain(self, state: Plain) -> None:
        self._curves = {trial_id: Curve(*saved) for trial_id, saved in state.items()}


def _insert(column: Any, mean: float) -> None:  # noqa: ANN401 - as above
    if math.isfinite(mean):
        column.add(mean)

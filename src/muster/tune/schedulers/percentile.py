"""A percentile that is kept while values arrive: O(log n) per value, O(1) to read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heappop, heappush


class RunningPercentile:
    """numpy.nanpercentile (linear interpolation) of everything added so far, to the last bit."""

    def __init__(self, percent: float, values: Iterable[float] = ()) -> None:
        self._fraction = percent / 100
        self._below: list[float] = []  # negated, so that the largest comes first
        self._above: list[float] = []
        self._saw_nan = False
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        if math.isnan(value):
            self._saw_nan = True
            return
        if self._below and value <= -self._below[0]:
            heappush(self._below, -value)
        else:
            heappush(self._above, value)
        self._balance()

    def _balance(self) -> None:
        """`_below` ends with the value left of the percentile, `_above` begins with the one right of it."""
        wanted = int((len(self._below) + len(self._above) - 1) * self._fraction) + 1
        while len(self._below) < wanted:
            heappush(self._below, -heappop(self._above))
        while len(self._below) > wanted:
            heappush(self._above, -heappop(self._below))

    @property
    def value(self) -> float | None:
        """None when nothing was added, NaN when nothing but NaN."""
        if not self._below:
            return math.nan if self._saw_nan else None
        left = -self._below[0]
        right = self._above[0] if self._above else left
        place = (len(self._below) + len(self._above) - 1) * self._fraction
        part = place - (len(self._below) - 1)
        step = right - left
        # Both forms are needed for equality with numpy, whose result is monotonic in `part`.
        return left + step * part if part < 0.5 else right - step * (1 - part)

"""Sorts results with several objectives into non-dominated fronts, for searchers, schedulers and analyses.

Pure. One result dominates another when it is nowhere worse and somewhere better; equal results share a front.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from muster.trials.metrics import number_of


def fronts(rows: Sequence[Sequence[float]]) -> list[int]:
    """Return the front of each row, 0 for the best; larger values are better, and none may be NaN.

    Two objectives cost n log n, more cost n * n in numpy.

    Example:
        >>> fronts([(1, 5), (2, 4), (1, 4), (2, 4)])
        [0, 0, 1, 0]
    """
    if not len(rows):
        return []
    return _sweep(rows) if len(rows[0]) == 2 else _chains(rows)


def _sweep(rows: Sequence[Sequence[float]]) -> list[int]:
    """Sweep two objectives from the best first one; the last row of each front decides for all before it."""
    points = [(-float(first), -float(second)) for first, second in rows]
    tails: list[tuple[float, float]] = []  # the second objective's best of each front, ascending
    found = [0] * len(points)
    for place in sorted(range(len(points)), key=points.__getitem__):
        tail = points[place][::-1]
        front = bisect_left(tails, tail)
        tails[front : front + 1] = [tail]
        found[place] = front
    return found


def _chains(rows: Sequence[Sequence[float]]) -> list[int]:
    """Return the length of the longest chain of rows that dominate each row."""
    import numpy as np

    distinct, places = np.unique(-np.asarray(rows, dtype=float), axis=0, return_inverse=True)
    columns = np.ascontiguousarray(distinct.T)  # sorted: a row that dominates another is before it
    depths = np.zeros(len(distinct), dtype=np.intp)
    for row in range(1, len(distinct)):
        dominates = np.all(columns[:, :row] <= columns[:, row : row + 1], axis=0)
        depths[row] = (depths[:row][dominates] + 1).max(initial=0)
    return [int(depth) for depth in depths[places.reshape(-1)]]


def pareto_front(rows: Sequence[Sequence[Any]], modes: Sequence[str]) -> list[int]:
    """Return the indexes of the rows that no other row dominates.

    Rows with a value that is not a finite number are never among them.

    Example:
        >>> pareto_front([(1, 5), (2, 5), (2, 9), (0, 0)], ["max", "min"])
        [1, 3]
    """
    signs = [1.0 if mode == "max" else -1.0 for mode in modes]
    places, scores = [], []
    for place, row in enumerate(rows):
        numbers = [number_of(value) for value in row]
        if all(value is not None and math.isfinite(value) for value in numbers):
            places.append(place)
            scores.append([sign * (value or 0.0) for sign, value in zip(signs, numbers, strict=True)])
    return [place for place, front in zip(places, fronts(scores), strict=True) if front == 0]

"""Orders a front of several objectives by hypervolume. A separate layer: pure functions over arrays."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_ORDERED = 40  # with three objectives and more

Floats = NDArray[np.float64]


def greedy_order(front: Floats, results: Floats, count: int) -> list[int]:
    """Return places in the front so that each adds most volume to those before it; smaller values are better.

    Args:
        front: Points that do not dominate each other, a row each.
        results: All results, which give each objective its scale.
        count: How many places to return.
    """
    low, high = results.min(axis=0) / 2, results.max(axis=0) / 2
    scaled = (front / 2 - low) / np.where(high > low, high - low, 1.0)
    reference = 1.1 * scaled.max(axis=0) + 1e-12
    if front.shape[1] == 2:
        return _rectangles(scaled, reference, count)
    chosen = _exclusive(scaled.tolist(), reference.tolist(), min(count, MOST_ORDERED))
    rest = [place for place in range(len(front)) if place not in chosen]
    return (chosen + rest)[:count]


def _rectangles(points: Floats, reference: Floats, count: int) -> list[int]:
    """Add the point with the largest rectangle between its chosen neighbours, again and again."""
    order = np.lexsort((np.arange(len(points)), points[:, 0]))
    x, y = points[order].T
    right, upper = np.full(len(x), reference[0]), np.full(len(x), reference[1])
    is_free = np.ones(len(x), dtype=bool)
    chosen = []
    for _ in range(count):
        place = int(np.argmax(np.where(is_free, (right - x) * (upper - y), -1.0)))
        is_free[place] = False
        np.minimum(right[:place], x[place], out=right[:place])
        np.minimum(upper[place + 1 :], y[place], out=upper[place + 1 :])
        chosen.append(int(order[place]))
    return chosen


def _exclusive(points: list[list[float]], reference: list[float], count: int) -> list[int]:
    """As `_rectangles` for any number of objectives; gains only fall, so an old one is an upper bound."""
    heap = [(-volume([point], reference), place) for place, point in enumerate(points)]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < count:
        _, place = heapq.heappop(heap)
        limited = [[max(pair) for pair in zip(points[place], points[other], strict=True)] for other in chosen]
        gain = (-(volume([points[place]], reference) - volume(limited, reference)), place)
        if heap and heap[0] < gain:
            heapq.heappush(heap, gain)
        else:
            chosen.append(place)
    return chosen


def volume(points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Return the volume that points dominate below the reference; smaller values are better."""
    if not points:
        return 0.0
    if len(reference) == 1:
        return max(0.0, reference[0] - min(point[0] for point in points))
    ordered = sorted(points, key=lambda point: point[-1])
    ends = [*(point[-1] for point in ordered[1:]), reference[-1]]
    total = 0.0
    for index, (point, end) in enumerate(zip(ordered, ends, strict=True)):
        height = min(end, reference[-1]) - point[-1]
        if height > 0:
            total += height * volume([each[:-1] for each in ordered[: index + 1]], reference[:-1])
    return total

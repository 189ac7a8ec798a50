"""The Pareto front: what nothing else beats in every goal at once. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def pareto_front(rows: Sequence[Sequence[Any]], modes: Sequence[str]) -> list[int]:
    """The places of the rows that no other row beats: as good in every value and better in one.

    Rows with a value that is no finite number are never in it. Costs n log n, and n times the front.

    Example:
        >>> pareto_front([(1, 5), (2, 5), (2, 9), (0, 0)], ["max", "min"])
        [1, 3]
    """
    signs = [1.0 if mode == "min" else -1.0 for mode in modes]
    losses: list[tuple[tuple[float, ...], int]] = []
    for place, row in enumerate(rows):
        if all(_is_number(value) for value in row):
            losses.append((tuple(sign * float(value) for sign, value in zip(signs, row, strict=True)), place))
    front: list[tuple[tuple[float, ...], int]] = []
    for one, place in sorted(losses):  # whoever beats a row sorts before it
        if not any(_beats(other, one) for other, _ in front):
            front.append((one, place))
    return sorted(place for _, place in front)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def _is_number(value: Any) -> bool:  # noqa: ANN401 - whatever a trial reported
    try:
        return math.isfinite(value)
    except TypeError:
        return False

"""Sort results with several objectives into non-dominated fronts, for searchers, schedulers and analyses.

Pure. One result dominates another when it is nowhere worse and somewhere better; equal results share a front.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.trials.metrics import number_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


def several_objectives(goal: tuple[Any, Any]) -> dict[str, str]:
    """Return the mode of each metric that is optimized; {} for fewer than two."""
    metrics, modes = ([] if one is None or isinstance(one, str) else one for one in goal)
    found = {metric: mode for metric, mode in zip(metrics, modes, strict=False) if mode in ("min", "max")}
    return found if len(found) > 1 else {}


def pareto_front(
    rows: Sequence[Sequence[Any]],
    modes: Sequence[str],
    results: Sequence[Mapping[str, Any]] = (),
    constraints: Mapping[str, float] | None = None,
) -> list[int]:
    """Return the indexes of the rows that no other row dominates.

    Rows with a value that is not a finite number, or whose flat result violates a constraint, are left out.

    Example:
        >>> pareto_front([(1, 5), (2, 5), (2, 9), (0, 0)], ["max", "min"])
        [1, 3]
    """
    signs = [1.0 if mode == "max" else -1.0 for mode in modes]
    places, scores = [], []
    for place, row in enumerate(rows):
        numbers = [number_of(value) for value in row]
        is_known = all(value is not None and math.isfinite(value) for value in numbers)
        if is_known and not (constraints and any(violations(results[place], constraints))):
            places.append(place)
            scores.append([sign * (value or 0.0) for sign, value in zip(signs, numbers, strict=True)])
    return [place for place, front in zip(places, fronts(scores), strict=True) if front == 0]


LEAST_BOUND = 1e-12  # a violation is relative to its bound, if that is larger


def violations(result: Mapping[str, Any], constraints: Mapping[str, float]) -> list[float]:
    """Return how much a flat result is above each upper bound, relative to it; infinite when it is unknown.

    Example:
        >>> violations({"latency_ms": 60}, {"latency_ms": 50, "size": 1})
        [0.2, inf]
    """
    found = []
    for name, bound in constraints.items():
        value = number_of(result.get(name))
        is_known = value is not None and not math.isnan(value)
        excess = max(0.0, value - bound) if is_known and value is not None else math.inf
        found.append(excess / max(abs(bound), LEAST_BOUND))
    return found


def crowding(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far apart the neighbours of each row of a front are, relative to the front.

    It is infinite for the ends of the front. Rows that are equal in an objective must be in their order of
    arrival.
    """
    import numpy as np

    distances = np.zeros(len(rows))
    for column in rows.T:
        order = np.argsort(column, kind="stable")
        ranked = column[order]
        span = float(ranked[-1]) - float(ranked[0])
        if 0.0 < span < math.inf:
            distances[order[1:-1]] += (ranked[2:] - ranked[:-2]) / span
        distances[order[0]] = distances[order[-1]] = math.inf
    return distances


class _PlaneFront:
    """A front of two objectives: the first ascends, so the second descends; equal rows by arrival."""

    def __init__(self, *columns: array[Any]) -> None:
        self._columns = columns  # the first objective, the second one negated, the numbers

    @classmethod
    def of(cls, number: int, row: Sequence[float]) -> _PlaneFront:
        return cls(array("d", row[:1]), array("d", [-row[1]]), array("q", [number]))

    def __len__(self) -> int:
        return len(self._columns[2])

    @property
    def numbers(self) -> NDArray[np.int64]:
        import numpy as np

        return np.array(self._columns[2])

    def crowding(self) -> NDArray[np.float64]:
        import numpy as np

        first, minus_second, _ = self._columns
        return crowding(np.column_stack((np.array(first), -np.array(minus_second))))

    def dominates(self, row: Sequence[float]) -> bool:
        first, minus_second, _ = self._columns
        place = bisect_left(first, row[0])  # of those not worse in the first, the best in the second
        if place == len(first) or minus_second[place] > -row[1]:
            return False
        return bool(first[place] != row[0] or minus_second[place] != -row[1])

    def take(self, block: _PlaneFront) -> _PlaneFront | None:
        """Add a new row, or what the front above lost, and return the members that it dominates.

        They are neighbours: what lies between two neighbours of the front above had no other to be below.
        """
        first, minus_second, _ = self._columns
        low = bisect_left(minus_second, block._columns[1][0])
        high = bisect_right(first, block._columns[0][-1])
        if low < high and first[low] == block._columns[0][0] and minus_second[low] == block._columns[1][0]:
            low = high  # after its equals
        lost = tuple(column[low:high] for column in self._columns) if low < high else None
        for column, added in zip(self._columns, block._columns, strict=True):
            column[low:high] = added
        return None if lost is None else _PlaneFront(*lost)


class _SpaceFront:
    """A front of any number of objectives, by arrival."""

    def __init__(self, numbers: NDArray[np.int64], rows: NDArray[np.float64]) -> None:
        self.numbers, self._rows = numbers, rows

    @classmethod
    def of(cls, number: int, row: Sequence[float]) -> _SpaceFront:
        import numpy as np

        return cls(np.array([number]), np.array([row], dtype=float))

    def __len__(self) -> int:
        return len(self.numbers)

    def crowding(self) -> NDArray[np.float64]:
        return crowding(self._rows)

    def dominates(self, row: Sequence[float]) -> bool:
        is_no_worse = (self._rows >= row).all(axis=1)
        return bool((is_no_worse & (self._rows != row).any(axis=1)).any())

    def take(self, block: _SpaceFront) -> _SpaceFront | None:
        import numpy as np

        mine, theirs = self._rows[:, None, :], block._rows[None, :, :]
        is_lost = ((mine <= theirs).all(axis=2) & (mine != theirs).any(axis=2)).any(axis=1)
        lost = _SpaceFront(self.numbers[is_lost], self._rows[is_lost]) if is_lost.any() else None
        numbers = np.concatenate((self.numbers[~is_lost], block.numbers))
        order = np.argsort(numbers)
        self._rows = np.concatenate((self._rows[~is_lost], block._rows))[order]
        self.numbers = numbers[order]
        return lost


class ParetoOrder:
    """Results in a total order, best first, that takes new ones quickly.

    Feasible results come first: by front, then by crowding distance (larger first), then by arrival.
    Infeasible ones follow by violation, and those with a NaN come last. Larger values are better.
    """

    def __init__(self) -> None:
        self._rows: list[Sequence[float]] = []
        self._violations: list[float] = []
        self.fronts: list[Any] = []  # of _PlaneFront or _SpaceFront
        self._sizes: list[int] = []  # of the fronts
        self.infeasible: list[tuple[float, int]] = []  # violation, number
        self._unknown: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_feasible(self) -> int:
        return len(self) - len(self.infeasible) - len(self._unknown)

    def add(self, row: Sequence[float], violation: float = 0.0) -> int:
        """Add a result and return its number: how many came before it."""
        number = len(self._rows)
        self._rows.append(row)
        self._violations.append(violation)
        if any(map(math.isnan, row)):
            self._unknown.append(number)
        elif violation > 0.0:
            insort(self.infeasible, (violation, number))
        else:
            self._push(_PlaneFront.of(number, row) if len(row) == 2 else _SpaceFront.of(number, row), row)
        return number

    def _push(self, block: Any, row: Sequence[float]) -> None:  # noqa: ANN401 - a front of either kind
        for place in range(self._first_not_above(row), len(self.fronts)):
            size, lost = len(block), self.fronts[place].take(block)
            if lost is None:
                self._sizes[place] += size
                return
            if len(lost) == self._sizes[place]:  # all of it, so all fronts below move down with it
                self.fronts.insert(place + 1, lost)
                self._sizes.insert(place, size)
                return
            self._sizes[place] += size - len(lost)
            block = lost
        self.fronts.append(block)
        self._sizes.append(len(block))

    def _first_not_above(self, row: Sequence[float]) -> int:
        """Return the first front without a row that dominates this one, which is its front."""
        low, high = 0, len(self.fronts)
        while low < high:
            middle = (low + high) // 2
            if self.fronts[middle].dominates(row):
                low = middle + 1
            else:
                high = middle
        return low

    def front(self, number: int) -> int | None:
        """Return the front of a result, 0 for the best; None for one that is infeasible or has a NaN."""
        row = self._rows[number]
        is_ranked = not self._violations[number] > 0.0 and not any(map(math.isnan, row))
        return self._first_not_above(row) if is_ranked else None

    def place(self, number: int) -> int:
        """Return how many results are better."""
        front = self.front(number)
        if front is None:
            if any(map(math.isnan, self._rows[number])):
                return len(self) - len(self._unknown) + bisect_left(self._unknown, number)
            return self.num_feasible + bisect_left(self.infeasible, (self._violations[number], number))
        numbers, distances = self.fronts[front].numbers, self.fronts[front].crowding()
        own = distances[numbers == number][0]
        ahead = (distances > own) | ((distances == own) & (numbers < number))
        return sum(self._sizes[:front]) + int(ahead.sum())

    def best_first(self, wanted: Container[int] | None = None, most: int | None = None) -> Iterator[int]:
        """Yield the numbers of the best `most` results; only those that are wanted."""
        import numpy as np

        left = len(self) if most is None else most
        for front, size in zip(self.fronts, self._sizes, strict=True):
            if left <= 0:
                return
            numbers = front.numbers
            if wanted is None or any(number in wanted for number in numbers.tolist()):
                ordered = numbers[np.lexsort((numbers, -front.crowding()))][:left].tolist()
                yield from (number for number in ordered if wanted is None or number in wanted)
            left -= size
        rest = [*(number for _, number in self.infeasible), *self._unknown][: max(0, left)]
        yield from (number for number in rest if wanted is None or number in wanted)

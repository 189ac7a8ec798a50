"""Keep the trials of a TPESearch in columns, and orders them; the model reads nothing else.

Every number that is derived from the table is computed from it element by element, so that a restored table
gives the same suggestions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.errors import RestoreError
from muster.tune.pareto import fronts
from muster.tune.search.tpe.coordinates import Floats, Point
from muster.tune.search.tpe.hypervolume import greedy_order

Rows = NDArray[np.intp]
PENDING, STOPPED, COMPLETE, FAILED, GONE = range(5)
SHARE_GOOD = 0.15
MOST_GOOD = 25  # with one objective
_COLUMNS = ("u", "c", "status", "scores", "violation", "level")


class SearchTable:
    """Has one column per suggestion or evaluated point, in the order in which they were made.

    `scores` are signed so that smaller is better. `level` is the rung of the scores: NaN when there are none
    yet, infinite for the end of a trial.
    """

    def __init__(self, numbers: int, choices: int, objectives: int) -> None:
        self.count = 0
        self.u = np.empty((numbers, 0))
        self.c = np.empty((choices, 0), dtype=np.int32)
        self.status = np.empty(0, dtype=np.int8)
        self.scores = np.empty((objectives, 0))
        self.violation = np.empty(0)
        self.level = np.empty(0)

    def add(self, point: Point) -> int:
        """Add a pending trial; returns its place."""
        place = self.count
        if place == len(self.status):
            for name in _COLUMNS:
                setattr(self, name, _grown(getattr(self, name), max(64, 2 * place)))
        self.u[:, place], self.c[:, place] = point
        self.status[place], self.violation[place], self.level[place] = PENDING, 0.0, math.nan
        self.scores[:, place] = math.nan
        self.count += 1
        return place

    def record(self, place: int, scores: list[float], violation: float, level: float) -> None:
        self.scores[:, place], self.violation[place], self.level[place] = scores, violation, level

    def point(self, place: int) -> Point:
        return Point(self.u[:, place].copy(), self.c[:, place].copy())

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each trial has a value: at its end, where its scheduler stopped it, or at a rung."""
        status, level = self.status[: self.count], self.level[: self.count]
        is_known: NDArray[np.bool_] = (status <= COMPLETE) & (level + (status != PENDING) > 0)
        return is_known

    def good(self, known: NDArray[np.bool_] | None = None) -> Rows:
        """Return the best trials, best first: complete, then by rung, then by violation; ties by place."""
        known = self.known if known is None else known
        total = int(known.sum())
        wanted = max(1, math.ceil(SHARE_GOOD * total))
        wanted = min(wanted, MOST_GOOD) if len(self.scores) == 1 else wanted
        violation = self.violation[: self.count]
        level = np.where(known & (violation <= 0), self.level[: self.count], -1.0)
        chosen: list[Rows] = []
        while wanted > 0 and (best := level.max(initial=-1.0)) >= 0:  # rung by rung, the highest first
            rows = (level == best).nonzero()[0]
            chosen.append(self._best(rows, wanted))
            wanted -= len(rows)
            level[rows] = -1.0
        if wanted > 0:
            rows = np.flatnonzero(known & (violation > 0))
            chosen.append(_smallest(rows, violation[rows], wanted))
        return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.intp)

    def _best(self, rows: Rows, count: int) -> Rows:
        scores = self.scores[:, rows]
        if len(scores) == 1:
            return _smallest(rows, scores[0], count)
        ranks = np.array(fronts((-scores.T).tolist()))
        chosen: list[int] = []
        for front in range(int(ranks.max()) + 1):
            members = np.flatnonzero(ranks == front)
            most = min(len(members), count - len(chosen))
            chosen += members[greedy_order(scores[:, members].T, scores.T, most)].tolist()
            if len(chosen) == count:
                break
        return rows[chosen]

    # State.

    def saved(self) -> dict[str, bytes]:
        return {name: getattr(self, name)[..., : self.count].tobytes() for name in _COLUMNS}

    def restore(self, saved: dict[str, Any]) -> None:
        self.count = len(saved["status"])
        for name in _COLUMNS:
            old = getattr(self, name)
            content = np.frombuffer(saved[name], dtype=old.dtype)
            if content.size != self.count * math.prod(old.shape[:-1]):
                raise RestoreError(
                    "TPESearch: the saved state is not of this space", fix="pass the first one"
                )
            setattr(self, name, content.reshape(*old.shape[:-1], self.count).copy())


def _grown(column: NDArray[Any], capacity: int) -> NDArray[Any]:
    new = np.empty((*column.shape[:-1], capacity), dtype=column.dtype)
    new[..., : column.shape[-1]] = column
    return new


def _smallest(rows: Rows, values: Floats, count: int) -> Rows:
    """Return the rows with the smallest values, in order; the first of equals."""
    if count < len(rows):
        kept = values <= np.partition(values, count - 1)[count - 1]
        rows, values = rows[kept], values[kept]
    return rows[values.argsort(kind="stable")[:count]]

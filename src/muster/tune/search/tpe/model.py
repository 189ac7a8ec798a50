"""Suggest points from a table of trials: first an even sequence, then a tree-structured Parzen estimator."""

from __future__ import annotations

import numpy as np

from muster.tune.search.tpe.coordinates import MOST_ENUMERATED, Coordinates, Floats, Places, Point, kronecker
from muster.tune.search.tpe.density import GroupModel, Mixture
from muster.tune.search.tpe.table import Rows, SearchTable

RECOMBINED = (0.3, 0.5)  # how often a coordinate is from another candidate: one objective, several
_EXPLORED = 10  # every so many suggestions, branches are drawn uniformly
_DRAWS = 20  # for a new point in a large finite space
_SHIFT, _SUGGESTION = 2, 1  # which stream


class Model:
    """A function of a table, a seed and the number of the suggestion; all it keeps is derived."""

    def __init__(self, coordinates: Coordinates, seed: int, startup: int, candidates: int) -> None:
        self._coordinates = coordinates
        self._rng = np.random.Generator(np.random.Philox(key=seed))  # its state is what `_stream` sets
        self._first = self._rng.bit_generator.state
        self._startup, self._candidates = startup, candidates
        self._groups = [GroupModel(coordinates, group) for group in coordinates.groups]
        self._branching = {group.branch[0] for group in coordinates.groups if group.branch is not None}
        self._dimensions = len(coordinates.scales) + len(coordinates.sizes)
        self._steps = kronecker(self._dimensions)
        self._shift = self._stream(0, _SHIFT).random(self._dimensions)
        self._tried: set[bytes] = set()
        self._tried_rows = 0

    def _stream(self, number: int, kind: int) -> np.random.Generator:
        """Return the generator at the start of a stream; the one returned before is the same object."""
        self._first["state"]["counter"][2:] = number, kind
        self._rng.bit_generator.state = self._first
        return self._rng

    def spread(self, number: int) -> Point:
        """Return a point of the start-up sequence, which fills the space evenly."""
        return self._coordinates.place((self._shift + (number + 1) * self._steps) % 1.0)

    def suggest(self, table: SearchTable, number: int) -> tuple[Point, str]:
        """Return a point, and how it was found, in words."""
        is_known = table.known
        known = int(np.count_nonzero(is_known))
        rng = self._stream(number, _SUGGESTION)
        if known < self._startup:
            reason = f"start-up point {number + 1}: the model needs {self._startup} results and has {known}"
            return self._new(self.spread(number), table, rng, None), reason
        good = table.good(is_known)
        fitted = [group.fit(table, good) for group in self._groups]
        point = self._drawn(fitted, table, rng, explores=number % _EXPLORED == _EXPLORED - 1)
        reason = f"best of {self._candidates} candidates near the best {len(good)} of {known} results"
        return self._new(point, table, rng, fitted), reason

    def _drawn(
        self,
        fitted: list[tuple[Mixture, Mixture]],
        table: SearchTable,
        rng: np.random.Generator,
        *,
        explores: bool,
    ) -> Point:
        """Draw every active group, from the root on, and keep its best candidate.

        `explores`: choices whose options hold domains are drawn uniformly, so that no branch is given up.
        """
        point = self._coordinates.empty_point()
        for model, (better, others) in zip(self._groups, fitted, strict=True):
            group = model.group
            if not self._coordinates.is_active(group, point):
                continue
            u, c = better.draw(rng, self._candidates)
            u, c = _recombine(rng, u, c, RECOMBINED[len(table.scores) > 1])
            for row, choice in enumerate(group.choices if explores else ()):
                if choice in self._branching:
                    c[row] = rng.integers(self._coordinates.sizes[choice])
            u = model.snap(u)
            scores = _scores(better, others, u, c)
            if len(self._groups) == 1 and self._coordinates.size < np.inf:
                keys = [Point(u[:, place], c[:, place]).key() for place in range(len(scores))]
                scores[[key in self._tried_in(table) for key in keys]] = -np.inf
            best = int(scores.argmax())
            point.u[group.numbers], point.c[group.choices] = u[:, best], c[:, best]
        return point

    def _new(
        self,
        point: Point,
        table: SearchTable,
        rng: np.random.Generator,
        fitted: list[tuple[Mixture, Mixture]] | None,
    ) -> Point:
        """Return the point; in a finite space that has it already, an untried one, if there is any."""
        if self._coordinates.size == np.inf or point.key() not in (tried := self._tried_in(table)):
            return point
        if self._coordinates.size > MOST_ENUMERATED:
            drawn = (self._coordinates.place(rng.random(self._dimensions)) for _ in range(_DRAWS))
            return next((each for each in drawn if each.key() not in tried), point)
        untried = [each for each in self._coordinates.every_point() if each.key() not in tried]
        if not untried:
            return point
        if fitted is None:
            return untried[int(rng.integers(len(untried)))]
        return untried[int(np.argmax(self._total_scores(fitted, untried)))]

    def _total_scores(self, fitted: list[tuple[Mixture, Mixture]], points: list[Point]) -> Floats:
        total = np.zeros(len(points))
        for model, (better, others) in zip(self._groups, fitted, strict=True):
            group = model.group
            active = [place for place, each in enumerate(points) if self._coordinates.is_active(group, each)]
            if active:
                u = np.array([points[place].u[group.numbers] for place in active]).T
                c = np.array([points[place].c[group.choices] for place in active]).T
                total[active] += _scores(better, others, u, c)
        return total

    def _tried_in(self, table: SearchTable) -> set[bytes]:
        for row in range(self._tried_rows, table.count):
            self._tried.add(table.point(row).key())
        self._tried_rows = table.count
        return self._tried


def _recombine(rng: np.random.Generator, u: Floats, c: Places, probability: float) -> tuple[Floats, Places]:
    """Replace single coordinates of the candidates by those of others, in one random order."""
    others: Rows = rng.permutation(u.shape[1])
    u = np.where(rng.random(u.shape) < probability, u[:, others], u)
    c = np.where(rng.random(c.shape) < probability, c[:, others], c)
    return u, c


def _scores(better: Mixture, others: Mixture, u: Floats, c: Places) -> Floats:
    """Return how much more likely each point is among the good; rounded, so that noise does not choose."""
    scores: Floats = (better.log_density(u, c) - others.log_density(u, c)).round(9)
    return scores

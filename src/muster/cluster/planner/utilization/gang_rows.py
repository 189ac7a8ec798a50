"""Imported lazily, because it loads numpy: nodes as rows of arrays, and their scores for a gang.

Candidates that no gang can tell apart are one row. A gang changes only the columns that some gang asks for;
every other resource is a constant of the score. Used by `gang_table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.base.resources import SCALE
from muster.cluster.model import Selector
from muster.cluster.planner.demand_classes import first_match
from muster.cluster.planner.utilization.fill import Filler
from muster.cluster.planner.utilization.grouping import Labels, NodeGrouping, NodeRun, State, worth
from muster.cluster.planner.utilization.select import TYPE_BITS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NOTHING = 1  # the head of a row that takes nothing; others are 0 or less
CLOSE = 1e-12  # relative: the arrays may differ from the rule by less than this
_EXACT = 1 << 53  # float64 holds every whole number up to here
_MOST_COLUMNS = 60  # bits of a 64-bit number, with some to spare
_ONES = np.array([number.bit_count() for number in range(1 << 16)], dtype=np.int64)
_USED, _LEAD, _LABELS, _COLUMNS, _TAIL, _SAVES_GPU, _ASIDE = range(7)  # after the free quantities
_LOW, _SUM, _COUNT = range(3)  # after totals, factors, pads and worths


class GangColumns:
    """The resources and labels that gangs ask for: nothing else of a node changes."""

    def __init__(self, grouping: NodeGrouping, states: Sequence[State]) -> None:
        self.index = index = grouping.columns.index
        gangs = grouping.problem.gangs
        bundles = [bundle for gang in gangs for option in gang.options for bundle in option]
        asked = {(name, units) for bundle in bundles for name, units in bundle.shape.key if units > 0}
        names = sorted({name for name, _ in asked})
        self.number = {index[name]: column for column, name in enumerate(names)}  # the problem's -> ours
        self.gpu_mark = grouping.columns.gpu_mark
        held = [{state.free[column] for state in states} for column in self.number]
        # Counted in grains, so that float64 holds every quantity.
        self.grain = [
            gcd(SCALE, *values, *(units for other, units in asked if other == name))
            for name, values in zip(names, held, strict=True)
        ]
        largest = [max(values, default=0) // g for values, g in zip(held, self.grain, strict=True)]
        self.fits = len(names) <= _MOST_COLUMNS and max(largest, default=0) < _EXACT
        matches = {match.key for bundle in bundles for selector in bundle.selectors for match in selector}
        avoided = {bundle.avoid[0] for bundle in bundles if bundle.avoid is not None}
        own = {name for gang in gangs for name in (gang.label, gang.locality_label)}
        self.labels = frozenset(matches | avoided | own)
        self._bits: dict[int, int] = {}

    def bits(self, used: int) -> int:
        """Return State.used with our column numbers; the GPU mark is the bit after them."""
        mine = self._bits.get(used)
        if mine is None:
            mine = 1 << len(self.number) if used & self.gpu_mark else 0
            mine |= sum(1 << ours for theirs, ours in self.number.items() if used >> theirs & 1)
            self._bits[used] = mine
        return mine


class RowKind(NamedTuple):
    """All that the score of a candidate for a gang depends on."""

    terms: tuple[tuple[int, float, float], ...]  # our column or -1, total, worth when fixed
    free: tuple[int, ...]  # in grains
    labels: Labels
    facts: tuple[int, ...]  # used columns, label score (-1: open), columns in the total, tail, two flags


def row_kind(state: State, columns: GangColumns) -> RowKind | None:
    """Return the kind; None for a state that only the rule itself can score."""
    frame, late = state.frame, state.frame.late
    terms = []
    for column, total, fixed in frame.terms:
        ours = columns.number.get(column, -1)
        if ours >= 0:
            if late >> column & 1 or state.free[column] > total * SCALE:
                return None
            terms.append((ours, total, 0.0))
        elif column < 0 or not late >> column & 1:
            terms.append((-1, total, fixed if column < 0 else worth(total, state.free[column])))
    lead = -1
    if state.lead:
        found = first_match(state.lead[0], dict(state.labels))
        lead = 0 if found is None else len(state.lead[0]) - found
    pairs = zip(columns.number, columns.grain, strict=True)
    used, in_total = columns.bits(state.used), columns.bits(frame.columns)
    return RowKind(
        tuple(terms),
        tuple(state.free[column] // grain for column, grain in pairs),
        tuple(pair for pair in state.labels if pair[0] in columns.labels),
        (used, lead, in_total, frame.tail, frame.saves_gpu, frame.set_aside),
    )


class AskedRun(NamedTuple):
    """One run of a gang in our columns."""

    units: tuple[tuple[int, int], ...]  # column, grains
    used: int
    run: NodeRun


class Asked:
    """What equal gangs ask for."""

    def __init__(self, filler: Filler, columns: GangColumns) -> None:
        self.filler = filler
        self.runs = []
        for run in filler.runs:
            pairs = [(columns.index[name], units) for name, units in run.shape.key if units > 0]
            used = sum(1 << column for column, _ in pairs)
            used |= columns.gpu_mark if "GPU" in run.shape else 0
            ours = [(columns.number[column], units) for column, units in pairs]
            asked = tuple((column, units // columns.grain[column]) for column, units in ours)
            self.runs.append(AskedRun(asked, columns.bits(used), run))
        self.columns = {column for run in self.runs for column, _ in run.units}
        self.spread = self.runs[0].run.avoid is not None

    def smallest(self) -> list[AskedRun]:
        """Return runs of which one fits wherever any run does."""
        sizes = [dict(run.units) for run in self.runs]
        return [
            run
            for run, size in zip(self.runs, sizes, strict=True)
            if not any(_is_less(other, size) for other in sizes)
        ]

    def least(self) -> AskedRun:
        """Return what every run that is left takes at least."""
        left = [run for run, amount in zip(self.runs, self.filler.left, strict=True) if amount]
        sizes = [dict(run.units) for run in left]
        units = {column: min(size.get(column, 0) for size in sizes) for column in sizes[0]}
        return left[0]._replace(units=tuple(units.items()))


def _is_less(one: dict[int, int], other: dict[int, int]) -> bool:
    return one != other and all(other.get(column, 0) >= units for column, units in one.items())


class RowsTaking(NamedTuple):
    """What some rows have after they took what they can."""

    free: list[Ints]  # per column
    used: Ints
    lead: Ints
    last: Ints  # the last run of which it took something; -1: nothing


class ScoredRows(NamedTuple):
    """Keys in parts: label, GPU and resource types; the lowest and the mean worth."""

    fits: Bools  # whether any shape fits, whatever the labels say; later on, whether one might
    head: Ints
    lowest: Floats
    mean: Floats
    last: Ints


class RowArrays:
    """Holds what the score of each row depends on, and compute the scores of many rows at once."""

    def __init__(self, columns: GangColumns) -> None:
        self._width = len(columns.number)
        self._divisors = [SCALE // grain for grain in columns.grain]
        self._ints: Ints = np.zeros((self._width + 7, 0), dtype=np.int64)
        self._floats: Floats = np.zeros((4 * self._width + 3, 0))
        self._labels: dict[Labels, int] = {}
        self._scores: dict[tuple[Selector, ...], list[int]] = {}  # label score by number of the labels

    def enlarge(self, more: int) -> None:
        self._ints = np.hstack([self._ints, np.zeros((len(self._ints), more), dtype=np.int64)])
        self._floats = np.hstack([self._floats, np.zeros((len(self._floats), more))])

    def may_be_set_aside(self) -> Bools:
        """Return per row whether its nodes are set aside when no shape fits."""
        aside: Bools = self._ints[self._width + _ASIDE] == 1
        return aside

    def write(self, row: int, kind: RowKind) -> None:
        """Fill in a row."""
        number = self._labels.setdefault(kind.labels, len(self._labels))
        used, lead, *rest = kind.facts
        self._ints[:, row] = (*kind.free, used, lead, number, *rest)
        width = self._width
        totals, factors, pads, worths = [1.0] * width, [0.0] * width, [np.inf] * width, [0.0] * width
        low, fixed = np.inf, 0.0
        for column, total, value in kind.terms:
            if column < 0:
                low, fixed = min(low, value), fixed + value
            else:
                totals[column] = factors[column] = total
                pads[column] = 0.0
                share = (total - kind.free[column] / self._divisors[column]) / total
                worths[column] = total * share * share * share
        low = low if kind.terms else 0.0
        self._floats[:, row] = (*totals, *factors, *pads, *worths, low, fixed, max(1, len(kind.terms)))

    def score(self, asked: Asked, rows: Ints) -> ScoredRows:
        """Return the scores for what is left of a gang."""
        width, size = self._width, len(rows)
        free, fits = [self._ints[column][rows] for column in range(width)], np.zeros(size, dtype=bool)
        # Before anything is taken it must be exact: nodes that fit nothing are set aside.
        for run in asked.smallest() if asked.filler.fresh else [asked.least()]:
            fits |= _fitting(run, free, rows)
        found = ScoredRows(fits, np.full(size, NOTHING), np.zeros(size), np.zeros(size), np.full(size, -1))
        rows = rows[fits]
        taking = self._taking(asked, rows)
        extra = self._floats[4 * width :]
        lowest, total = extra[_LOW][rows], extra[_SUM][rows]
        for column, (_, value) in enumerate(self._worths(asked, rows, taking)):
            np.minimum(lowest, value + self._floats[2 * width + column][rows], out=lowest)
            total += value
        facts = self._ints[self._width :]
        gpu_ok = (facts[_SAVES_GPU][rows] == 0) | (taking.used >> self._width & 1 == 1)
        kinds = _count_ones(taking.used & facts[_COLUMNS][rows])
        heads: Ints = -((np.maximum(taking.lead, 0) * 2 + gpu_ok) << TYPE_BITS | kinds)
        found.head[fits] = np.where(taking.last >= 0, heads, NOTHING)
        found.lowest[fits], found.mean[fits] = lowest, total / extra[_COUNT][rows]
        found.last[fits] = taking.last
        return found

    def _taking(self, asked: Asked, rows: Ints) -> RowsTaking:
        """Let every row take what it can: each run in order, as many requests of it as fit."""
        facts = self._ints[self._width :]
        free = [self._ints[column][rows] for column in range(self._width)]
        taking = RowsTaking(free, facts[_USED][rows], facts[_LEAD][rows], np.full(len(rows), -1))
        labels = facts[_LABELS][rows]
        waiting = np.arange(len(rows))  # rows that may take more
        if asked.spread:
            waiting = waiting[~self._barred(asked.runs[0].run)[labels]]
        for number, (run, left) in enumerate(zip(asked.runs, asked.filler.left, strict=True)):
            if left and len(waiting):
                fits = _fitting(run, free, waiting)
                scores = self._label_scores(run.run, labels[waiting])
                if scores is not None:
                    fits &= scores > 0
                able = waiting[fits]
                if scores is not None:
                    taking.lead[able] = np.where(taking.lead[able] < 0, scores[fits], taking.lead[able])
                _subtract(run, free, able, 1 if asked.spread else left)
                taking.used[able] |= run.used
                taking.last[able] = number
                if asked.spread:
                    waiting = waiting[~fits]
        return taking

    def _label_scores(self, run: NodeRun, labels: Ints) -> Ints | None:
        """Return the label score of each row for the run; 0: no selector holds."""
        selectors = run.selectors
        if not selectors:
            return None
        known = self._scores.setdefault(selectors, [])
        for values in list(self._labels)[len(known) :]:
            found = first_match(selectors, dict(values))
            known.append(0 if found is None else len(selectors) - found)
        return np.array(known, dtype=np.int64)[labels]

    def _barred(self, run: NodeRun) -> Bools:
        """Return, by number of the labels, whether a node with them may not take the run."""
        return np.array([run.avoid in labels for labels in self._labels], dtype=bool)

    def _worths(self, asked: Asked, rows: Ints, taking: RowsTaking) -> Iterator[tuple[Floats, Floats]]:
        """Yield, per column, the share in use and the worth."""
        width, floats = self._width, self._floats
        for column in range(width):
            if column not in asked.columns:
                value = floats[3 * width + column][rows]
                yield value, value
                continue
            total = floats[column][rows]
            share = (total - taking.free[column] / self._divisors[column]) / total
            yield share, share * share * share * floats[width + column][rows]

    def same_lowest(self, asked: Asked, rows: Ints, lowest: float) -> bool:
        """Return whether the lowest worths of these rows, all close to this, come from the same numbers."""
        width, limit = self._width, lowest * (1 + 2 * CLOSE)
        fixed = self._floats[4 * width + _LOW][rows]
        behind = [np.where(fixed <= limit, fixed, -1.0)]
        for column, (share, value) in enumerate(self._worths(asked, rows, self._taking(asked, rows))):
            near = value + self._floats[2 * width + column][rows] <= limit
            behind.append(np.where(near, share, -1.0))
            behind.append(np.where(near, self._floats[column][rows], -1.0))
        return all(bool((values == values[0]).all()) for values in behind)


def _fitting(run: AskedRun, free: Sequence[Ints], rows: Ints) -> Bools:
    fits: Bools = np.ones(len(rows), dtype=bool)
    is_all = bool(free) and len(rows) == len(free[0])
    for column, units in run.units:
        fits &= (free[column] if is_all else free[column][rows]) >= units
    return fits


def _subtract(run: AskedRun, free: Sequence[Ints], rows: Ints, most: int) -> None:
    amount: Ints | int = 1
    if most > 1:
        amount = np.full(len(rows), most)
        for column, units in run.units:
            np.minimum(amount, free[column][rows] // units, out=amount)
    for column, units in run.units:
        free[column][rows] -= amount * units


def _count_ones(bits: Ints) -> Ints:
    found: Ints = _ONES[bits & 0xFFFF]
    while (bits := bits >> 16).any():
        found = found + _ONES[bits & 0xFFFF]
    return found

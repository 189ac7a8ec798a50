"""How good a filled node is, and how good an unfilled one could still become.

Keys sort best first: (minus label, GPU and type part, minus lowest worth, minus mean worth, rank of the
node type's recovering availability, priority and availability).
"""

from __future__ import annotations

from typing import NamedTuple

from muster.base.resources import SCALE
from muster.cluster.binpack.utilization.fill import Fill, Filler
from muster.cluster.binpack.utilization.grouping import Frame, State, worth

Key = tuple[int, float, float, int]
_TYPES = 20  # bits for the number of resource types


class Bound(NamedTuple):
    """What an entry could still become."""

    key: Key
    within: int  # columns, and the GPU mark, of the runs it could take


def key_of(state: State, fill: Fill, filler: Filler) -> Key:
    """The key of a node after this fill."""
    frame, used, free = state.frame, fill.used, fill.free
    gpu_mark = filler.gpu_mark
    label = filler.label_score(fill.lead, fill.labels) if fill.lead else 0
    lowest, total, count = float("inf"), 0.0, 0
    for column, size, fixed in frame.terms:
        if column < 0:
            value = fixed
        elif frame.late >> column & 1 and not used >> column & 1:
            continue
        else:
            value = size * ((size - free[column] / SCALE) / size) ** 3
        if value < lowest:  # noqa: PLR1730 - hot
            lowest = value
        total += value
        count += 1
    if not count:
        return _head(label, used, frame, gpu_mark), 0.0, 0.0, frame.tail
    return _head(label, used, frame, gpu_mark), -lowest, -(total / count), frame.tail


def bound_of(state: State, filler: Filler, fitting: int, known: Bound | None) -> Bound | None:
    """A key at least as good as any fill can give from now on; None when nothing can be placed any more.

    Requests only get fewer, so a bound stays a bound; it is worked out again when fewer columns or labels
    are within reach than when it was `known`.
    """
    mask = filler.alive & fitting
    if not filler.entangled:
        mask &= filler.allowed(state.labels)
    if not mask:
        return None
    within = 0
    for bit, users in filler.users:
        if mask & users:
            within |= bit
    if known is not None and known.within == within:
        return known
    frame, used = state.frame, state.used | within
    lowest, mean = _best_worths(state, used, within)
    label = _label_bound(state, filler, mask)
    key = (_head(label, used, frame, filler.gpu_mark), -lowest, -mean, frame.tail)
    return Bound(key, within)


def _best_worths(state: State, used: int, within: int) -> tuple[float, float]:
    """Lowest and mean worth if every resource that can be used were used up."""
    frame, free, values = state.frame, state.free, []
    for column, size, fixed in frame.terms:
        if column < 0:
            values.append(fixed)
        elif within >> column & 1:
            values.append(size)
        elif not frame.late >> column & 1 or used >> column & 1:
            values.append(worth(size, free[column]))
    if not values:
        return 0.0, 0.0
    mean = 0.0
    for value in values:
        mean += value
    if frame.late:  # a resource that need not enter the mean: the highest one bounds it
        return max(values), max(values)
    return min(values), mean / len(values)


def _label_bound(state: State, filler: Filler, mask: int) -> int:
    if filler.entangled:
        return max(filler.longest, *(len(selectors) for selectors in state.lead), 0)
    if state.lead:
        return filler.label_score(state.lead, state.labels)
    return filler.longest if mask & filler.selecting else 0


def _head(label: int, used: int, frame: Frame, gpu_mark: int) -> int:
    gpu_ok = not frame.saves_gpu or bool(used & gpu_mark)
    return -((label * 2 + gpu_ok) << _TYPES | (used & frame.columns).bit_count())

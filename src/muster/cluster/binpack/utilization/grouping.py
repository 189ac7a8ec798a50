"""What the rule sees of a node: nodes that look the same share one State object.

A problem asks for few resources and few labels. Only those (the columns) are tracked; every other resource
of a node sits in its Frame as a constant of the score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from muster.base.resources import SCALE, implicit_units
from muster.cluster.binpack.request import PackProblem
from muster.cluster.binpack.utilization.growth import Sizes
from muster.cluster.model import Demand, Selector, Strategy

Labels = tuple[tuple[str, str], ...]  # sorted by key
Lead = tuple[tuple[Selector, ...], ...]  # selectors of the requests placed so far, oldest first


class Term(NamedTuple):
    """One resource in the utilization part of the score."""

    column: int  # -1: never asked for, its worth is fixed
    total: float
    worth: float  # total times the cube of the used share, when fixed


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """The part of a node that placing requests does not change. Compared by identity: see `States`."""

    terms: tuple[Term, ...]
    tail: int  # rank of the node type's availability and priority, best first
    columns: int  # which columns exist in its total
    late: int  # columns in its total that its book does not list until they are used
    saves_gpu: bool  # has GPUs that should be saved for requests that mention them
    set_aside: bool  # a running node: skipped, and moved back in the list, when no shape fits


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """How a node stands on one book. Made by `States` only, so equal states are the same object."""

    frame: Frame
    labels: Labels
    free: tuple[int, ...]  # units per column
    used: int  # columns of the requests placed so far, and the GPU mark
    lead: Lead


class Columns:
    """The resources and labels that the requests of a problem look at."""

    def __init__(self, problem: PackProblem) -> None:
        demands = list(all_demands(problem))
        names = sorted({name for demand in demands for name, value in demand.shape.key if value > 0})
        self.index = {name: column for column, name in enumerate(names)}
        self.defaults = tuple((name, implicit_units(name)) for name in names)
        self.gpu_mark = 1 << len(names)  # set in State.used by every request that mentions GPU
        selected = {m.key for d in demands for selector in d.selectors for m in selector}
        avoided = {d.avoid[0] for d in demands if d.avoid is not None}
        strict = Counter(gang.label for gang in problem.gangs if gang.strategy is Strategy.STRICT_SPREAD)
        local = {gang.locality_label for gang in problem.gangs if gang.locality_label}
        # Whether placing a request can change what a selector sees.
        self.entangled = not (avoided | strict.keys()).isdisjoint(selected | local)
        self.labels = frozenset(selected | local | avoided | strict.keys())
        # A gang's own label means nothing to anybody once the gang is placed.
        shared = {label for label, gangs in strict.items() if gangs > 1}
        self.lasting_labels = frozenset(selected | local | avoided | shared)

    def labels_of(self, labels: Mapping[str, str]) -> Labels:
        if not self.labels or not labels:
            return ()
        return tuple(sorted((key, value) for key, value in labels.items() if key in self.labels))

    def free_of(self, free: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(free.get(name, default) for name, default in self.defaults)


def all_demands(problem: PackProblem) -> Iterable[Demand]:
    yield from problem.constraints
    for gang in problem.gangs:
        for option in gang.options:
            yield from option
    yield from problem.demands


class States:
    """Makes frames and states, each different one once."""

    def __init__(self, columns: Columns, conserve_gpus: bool) -> None:
        self.columns = columns
        self._conserve_gpus = conserve_gpus
        self._frames: dict[tuple[tuple[Term, ...], int, int, int, bool, bool], Frame] = {}
        self._states: dict[tuple[object, ...], State] = {}

    def state(self, frame: Frame, labels: Labels, free: tuple[int, ...], used: int, lead: Lead) -> State:
        key = (frame, labels, free, used, lead)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = State(frame, labels, free, used, lead)
        return found

    def frame(self, sizes: Sizes, tail: int, runs: bool) -> Frame:
        index, free = self.columns.index, sizes.free
        columns = late = 0
        terms = []
        for name, units in sorted(sizes.total.items()):
            column = index.get(name, -1)
            if column >= 0:
                columns |= 1 << column
            if units <= 0:
                continue
            if name in free:
                total = units / SCALE
                terms.append(Term(column, total, worth(total, free[name]) if column < 0 else 0.0))
            elif column >= 0 and implicit_units(name):
                late |= 1 << column
                terms.append(Term(column, units / SCALE, 0.0))
        saves_gpu = self._conserve_gpus and sizes.total.get("GPU", 0) > 0
        key = (tuple(terms), tail, columns, late, saves_gpu, runs)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = Frame(*key)
        return found


def worth(total: float, free_units: int) -> float:
    """What one resource adds to the score: the total times the cube of the used share."""
    return float(total * ((total - free_units / SCALE) / total) ** 3)

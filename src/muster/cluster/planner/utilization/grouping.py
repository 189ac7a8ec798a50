"""Group nodes that are equal to the scoring rule: they share one State object.

A problem asks for few resources and few labels. Only those (the columns) are tracked; every other resource
of a node is a constant of the score in its NodeShape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import NamedTuple

from muster.base.resources import SCALE, Resources, implicit_units
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, NodeType, Selector, Strategy
from muster.cluster.planner.demand_classes import gang_size, names_of_no_type, nodes_by_name
from muster.cluster.planner.request import DemandKind, PackNode, PackProblem

Units = dict[str, int]


class Sizes(NamedTuple):
    """What a node has in all and what of it is free."""

    total: Units
    free: Units


def current_sizes(node: PackNode) -> Sizes:
    """Return the sizes as reported; while a resize is under way, those after it."""
    sizes = Sizes(dict(node.total.key), dict(node.available.key))
    if node.resize is not None and node.resize.in_progress:
        return grown(sizes, node.resize.desired)
    return sizes


def grown(sizes: Sizes, target: Mapping[str, int]) -> Sizes:
    """Return the sizes of the node with another size; what is in use stays in use."""
    total, free = dict(sizes.total), dict(sizes.free)
    for name, quantity in target.items():
        free[name] = max(0, free.get(name, 0) + quantity - total.get(name, 0))
        total[name] = quantity
    return Sizes(total, free)


def largest_size(node: PackNode, node_type: NodeType | None) -> Units | None:
    """Return what the node could be enlarged to; None when it cannot grow.

    A machine on its way of which the provider reports nothing yet counts as growable, because it was planned
    at its largest size when it was launched.
    """
    if node_type is None or node_type.resize is None:
        return None
    status, largest = node.resize, dict(node_type.resize.maximum.key)
    if status is None:
        if node.runs:
            return None
        current, largest = dict(node.total.key), dict(node_type.resize.planned.key)
    elif status.failed or status.in_progress:
        return None
    else:
        current = dict(status.current.key)
        if status.suggested_maximum is not None:
            largest.update(status.suggested_maximum.key)
    if all(current.get(name, 0) >= quantity for name, quantity in largest.items()):
        return None
    return {name: max(quantity, current.get(name, 0)) for name, quantity in largest.items()}


def new_size(node_type: NodeType) -> Units:
    """Return the size of a new machine, which counts with what it could be enlarged to."""
    total = dict(node_type.resources.key)
    if node_type.resize is not None:
        for name, quantity in node_type.resize.planned.key:
            total[name] = max(quantity, total.get(name, 0))
    return total


Labels = tuple[tuple[str, str], ...]  # sorted by key
Lead = tuple[tuple[Selector, ...], ...]  # selectors of the requests placed so far, oldest first


class Term(NamedTuple):
    """One resource in the utilization part of the score."""

    column: int  # -1: never asked for, its worth is fixed
    total: float
    worth: float  # total times the cube of the used share, when fixed


@dataclass(frozen=True, eq=False, slots=True)
class NodeShape:
    """The part of a node that placing requests does not change; compared by identity."""

    terms: tuple[Term, ...]
    tail: int  # rank of the node type's availability and priority, best first
    columns: int  # which columns exist in its total
    late: int  # columns in its total that are not listed as free until they are used
    saves_gpu: bool  # has GPUs that should be saved for requests that mention them
    set_aside: bool  # a running node: skipped, and moved back in the list, when no shape fits
    pins: tuple[str, ...] = ()  # resources in a shared column: which of them the node has


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """Describes a node for one kind of demand. Made by `States` only: equal states are one object."""

    frame: NodeShape
    labels: Labels
    free: tuple[int, ...]  # units per column
    used: int  # columns of the requests placed so far, and the GPU mark
    lead: Lead


class RelevantColumns:
    """The resources and labels that the requests of a problem use."""

    def __init__(self, problem: PackProblem) -> None:
        bundles = (bundle for gang in problem.gangs for option in gang.options for bundle in option)
        demands = [*problem.constraints, *bundles, *problem.demands]
        names = sorted({name for demand in demands for name, value in demand.shape.key if value > 0})
        self.pins = _pins(problem, names)
        wide = [name for name in names if name not in self.pins]
        self.defaults = tuple((name, implicit_units(name)) for name in wide)
        self.index = {name: column for column, name in enumerate(wide)}
        self.index.update((name, len(wide) + column) for name, column in self.pins.items())
        self.width = max(self.index.values(), default=-1) + 1
        self.gpu_mark = 1 << self.width  # set in State.used by every request that mentions GPU
        selected = {m.key for d in demands for selector in d.selectors for m in selector}
        avoided = {d.avoid[0] for d in demands if d.avoid is not None}
        strict = Counter(gang.label for gang in problem.gangs if gang.strategy is Strategy.STRICT_SPREAD)
        local = {gang.locality_label for gang in problem.gangs if gang.locality_label}
        # Whether placing a request can change what a selector sees.
        self.entangled = not (avoided | strict.keys()).isdisjoint(selected | local)
        self.labels = frozenset(selected | local | avoided | strict.keys())
        # A gang's own label has no meaning once the gang is placed.
        shared = {label for label, gangs in strict.items() if gangs > 1}
        self.lasting_labels = frozenset(selected | local | avoided | shared)

    def labels_of(self, labels: Mapping[str, str]) -> Labels:
        if not self.labels or not labels:
            return ()
        return tuple(sorted((key, value) for key, value in labels.items() if key in self.labels))

    def free_of(self, free: Mapping[str, int]) -> tuple[int, ...]:
        units = [free.get(name, default) for name, default in self.defaults]
        if self.pins:
            units += [0] * (self.width - len(units))
            for name in self.pins_of(free):
                units[self.index[name]] = free[name]
        return tuple(units)

    def pins_of(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name in self.pins) if self.pins else ()


def _pins(problem: PackProblem, names: Sequence[str]) -> dict[str, int]:
    """Return resources that no type has (`node:<ip>`) with their columns; shared where no node has both.

    A gang's resources are never among them.
    """
    bundles = (bundle for gang in problem.gangs for option in gang.options for bundle in option)
    of_gangs = {name for bundle in bundles for name in bundle.shape}
    rare = names_of_no_type((name for name in names if name not in of_gangs), problem.offers)
    if len(rare) < 2:
        return {}
    columns: dict[str, int] = {}
    taken: dict[int, set[int]] = {}  # per node
    for name, numbers in nodes_by_name(rare, problem.nodes).items():
        used = set().union(*(taken.setdefault(number, set()) for number in numbers))
        column = columns[name] = next(column for column in count() if column not in used)
        for number in numbers:
            taken[number].add(column)
    return columns


class States:
    """States makes node shapes and states, each different one once."""

    def __init__(self, columns: RelevantColumns, conserve_gpus: bool) -> None:
        self.columns = columns
        self._conserve_gpus = conserve_gpus
        self._frames: dict[
            tuple[tuple[Term, ...], int, int, int, bool, bool, tuple[str, ...]], NodeShape
        ] = {}
        self._states: dict[tuple[object, ...], State] = {}

    def state(self, frame: NodeShape, labels: Labels, free: tuple[int, ...], used: int, lead: Lead) -> State:
        key = (frame, labels, free, used, lead)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = State(frame, labels, free, used, lead)
        return found

    def frame(self, sizes: Sizes, tail: int, runs: bool) -> NodeShape:
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
        pins = self.columns.pins_of({**sizes.total, **free})
        key = (tuple(terms), tail, columns, late, saves_gpu, runs, pins)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = NodeShape(*key)
        return found


def worth(total: float, free_units: int) -> float:
    """Return what one resource adds to the score: the total times the cube of the used share."""
    return float(total * ((total - free_units / SCALE) / total) ** 3)


Avoid = tuple[str, str]  # a label and its value
SortKey = tuple[int, int, int, int, tuple[tuple[str, int], ...]]


class Request(NamedTuple):
    """A Request is `amount` equal requests of one item; `bundles` > 1 for merged ones (STRICT_PACK)."""

    shape: Resources
    selectors: tuple[Selector, ...]
    avoid: Avoid | None
    item: int
    amount: int
    bundles: int = 1


class Share(NamedTuple):
    """What one item has in a run."""

    item: int
    amount: int
    bundles: int


class NodeRun(NamedTuple):
    """A sequence of neighbouring requests that are equal in all that matters to a node."""

    shape: Resources
    selectors: tuple[Selector, ...]
    avoid: Avoid | None
    amount: int
    shares: tuple[Share, ...]


def runs_of(requests: Iterable[Request]) -> tuple[NodeRun, ...]:
    """Return runs in the order of trying: hardest to place first; equal keys keep their order."""
    ordered = sorted((r for r in requests if r.amount > 0), key=_sort_key, reverse=True)
    runs = []
    for _, group in groupby(ordered, key=lambda request: request[:3]):
        equal = list(group)
        shares = tuple(Share(request.item, request.amount, request.bundles) for request in equal)
        runs.append(NodeRun(*equal[0][:3], sum(share.amount for share in shares), shares))
    return tuple(runs)


def _sort_key(request: Request) -> SortKey:
    # Affinity is left out: within one attempt either every request has it or none does.
    shape = request.shape
    return (
        0 if request.avoid is None else 1,
        len(request.selectors[0]) if request.selectors else 0,
        len(shape),
        sum(value for _, value in shape.key),
        shape.key,
    )


def demand_requests(demands: Sequence[Demand]) -> Iterator[Request]:
    for item, demand in enumerate(demands):
        yield Request(demand.shape, demand.selectors, demand.avoid, item, demand.count)


def gang_order(gangs: Sequence[Gang]) -> list[int]:
    """Return the most constrained first, then the largest; equal ones keep their order."""
    return sorted(range(len(gangs)), key=lambda item: _gang_key(gangs[item]), reverse=True)


def _gang_key(gang: Gang) -> tuple[int, int]:
    bundles = gang.options[0] if gang.options else ()
    count = gang_size(gang)
    if gang.strategy in (Strategy.STRICT_PACK, Strategy.STRICT_SPREAD):
        return count, count
    return sum(bundle.count for bundle in bundles if bundle.avoid is not None), count


def gang_requests(item: int, gang: Gang, option: Sequence[Demand], locality: str | None) -> list[Request]:
    """Return one way to ask for the gang: this alternative, where the locality label has this value."""
    avoid = (gang.label, "") if gang.strategy is Strategy.STRICT_SPREAD else None
    match = None if locality is None else LabelMatch(gang.locality_label, LabelOperator.IN, (locality,))
    kinds: list[tuple[Resources, tuple[Selector, ...], Avoid | None]] = []
    counts: list[int] = []
    for bundle in option:
        selectors = bundle.selectors
        if match is not None:
            selectors = tuple((*selector, match) for selector in selectors or ((),))
        kind = (bundle.shape, selectors, avoid or bundle.avoid)
        if kinds and kinds[-1] == kind:  # many bundles of a gang are often equal
            counts[-1] += bundle.count
        else:
            kinds.append(kind)
            counts.append(bundle.count)
    requests = [Request(*kind, item, count) for kind, count in zip(kinds, counts, strict=True)]
    return _merged(requests) if gang.strategy is Strategy.STRICT_PACK else requests


def _merged(requests: Iterable[Request]) -> list[Request]:
    """Return bundles that must share a node as one big request; those with another selector stay apart."""
    whole: dict[tuple[object, ...], Request] = {}
    for request in requests:
        if request.amount <= 0:
            continue
        key = request[1:3]
        shape = request.shape.times(request.amount)
        before = whole.get(key)
        if before is None:
            whole[key] = request._replace(shape=shape, amount=1, bundles=request.amount)
        else:
            bundles = before.bundles + request.amount
            whole[key] = before._replace(shape=before.shape.plus(shape), bundles=bundles)
    return list(whole.values())


Tail = tuple[float, int, float]
_USUAL: Tail = (1.0, 0, 1.0)  # of a node type that is not offered


class NodeGrouping:
    """Reads every node once and gives equal nodes the same state."""

    def __init__(self, problem: PackProblem) -> None:
        self.problem = problem
        self.columns = RelevantColumns(problem)
        self.states = States(self.columns, problem.conserve_gpus)
        tails: dict[str, Tail] = {
            offer.node_type.name: (offer.recoverable, offer.node_type.priority, offer.availability)
            for offer in problem.offers
        }
        ranks = sorted({_USUAL, *tails.values()}, reverse=True)
        self._tail = {name: ranks.index(tail) for name, tail in tails.items()}
        self._usual_tail = ranks.index(_USUAL)
        self.largest = self._largest()
        self.known_labels = self.columns.lasting_labels | self._carried()
        self._seen: dict[tuple[object, ...], State] = {}

    def _carried(self) -> frozenset[str]:
        """Return the labels that requests use and that some node has."""
        wanted = self.columns.labels
        if not wanted:
            return frozenset()
        bearers = [node.labels for node in self.problem.nodes]
        bearers += [offer.node_type.labels for offer in self.problem.offers]
        return frozenset(key for labels in bearers for key in labels if key in wanted)

    def _largest(self) -> dict[int, Units]:
        """Return node number -> what it could be enlarged to, for those that can grow."""
        types = {
            offer.node_type.name: offer.node_type
            for offer in self.problem.offers
            if offer.node_type.resize is not None
        }
        sizes = {}
        for number, node in enumerate(self.problem.nodes) if types else ():
            largest = largest_size(node, types.get(node.node_type))
            if largest is not None:
                sizes[number] = largest
        return sizes

    def node_state(self, number: int, kind: DemandKind, is_grown: bool = False) -> State:
        """Return the state of a node before anything of this kind of demand is placed."""
        node = self.problem.nodes[number]
        labels = self.columns.labels_of(node.labels)
        if is_grown:
            return self._state(node, grown(current_sizes(node), self.largest[number]), kind, labels)
        if node.resize is not None:
            return self._state(node, current_sizes(node), kind, labels)
        free = node.available if kind is DemandKind.DEMAND else node.total
        key = (node.node_type, node.runs, node.total.key, free.key, labels)
        state = self._seen.get(key)
        if state is None:
            state = self._seen[key] = self._state(node, current_sizes(node), kind, labels)
        return state

    def grown_state(self, number: int, kind: DemandKind, state: State) -> State:
        """Return the state of the same node at its largest size, with what was placed on it."""
        node, target = self.problem.nodes[number], self.largest[number]
        sizes = current_sizes(node)
        frame = self._state(node, grown(sizes, target), kind, state.labels).frame
        free = list(state.free)
        for name, quantity in target.items():
            column = self.columns.index.get(name)
            if column is not None:
                free[column] = max(0, free[column] + quantity - sizes.total.get(name, 0))
        return self.states.state(frame, state.labels, tuple(free), state.used, state.lead)

    def offer_states(self) -> list[State]:
        """Return the state of a new machine of each type; equal for both kinds of demand."""
        made = []
        for offer in self.problem.offers:
            total = new_size(offer.node_type)
            frame = self.states.frame(Sizes(total, total), self._tail[offer.node_type.name], False)
            labels = self.columns.labels_of(offer.node_type.labels)
            made.append(self.states.state(frame, labels, self.columns.free_of(total), 0, ()))
        return made

    def _state(self, node: PackNode, sizes: Sizes, kind: DemandKind, labels: Labels) -> State:
        free = sizes.free if kind is DemandKind.DEMAND else sizes.total
        tail = self._tail.get(node.node_type, self._usual_tail)
        frame = self.states.frame(Sizes(sizes.total, free), tail, node.runs)
        return self.states.state(frame, labels, self.columns.free_of(free), 0, ())

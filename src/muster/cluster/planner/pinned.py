"""Place requests that only one node can hold, because it alone has a resource they ask for (`node:<ip>`).

Called by the `cost` engine, before anything else is placed: such a request has no other place. The problem
that is left has no column for these resources, so its size does not follow the number of pins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from muster.base.resources import ItemKey, Resources, implicit_units
from muster.cluster.model import Demand, Gang, Selector, Strategy
from muster.cluster.planner.demand_classes import first_match, gang_size, nodes_by_name
from muster.cluster.planner.request import DemandKind, PackNode, PackProblem, Placement, Unplaced

FEW_NODES = 8  # a resource of at most so many nodes is a pin too,
MANY_NAMES = 32  # when there are more such resources than this: a column for each would be too many
Pins = Mapping[str, Sequence[int]]  # resource -> the only nodes that have it


class GangPiece(NamedTuple):
    """A GangPiece is `amount` equal requests of a gang, each of which stands for `bundles` of its bundles."""

    shape: Resources
    selectors: tuple[Selector, ...]
    amount: int
    bundles: int


class PinnedPiece(NamedTuple):
    """Requests of one item on one node; several bundles in one with STRICT_PACK."""

    placement: Placement
    shape: ItemKey
    bundles: int


class PinnedSolution(NamedTuple):
    """Has what was placed and what cannot be, and the problem that is left.

    Indices stay valid: a demand that is dealt with has the count 0, a gang no options.
    """

    problem: PackProblem
    pieces: tuple[PinnedPiece, ...]
    unplaced: tuple[Unplaced, ...]


def place_pinned(problem: PackProblem, names: Sequence[str]) -> PinnedSolution:
    """Place what `names`, resources that are asked for and that no type has, pin to nodes."""
    pins = _pins(problem, names)
    work = _Work(problem, pins)
    gangs = tuple(work.gang(item, gang) for item, gang in enumerate(problem.gangs))
    demands = work.demands(problem.demands, DemandKind.DEMAND)
    constraints = work.demands(problem.constraints, DemandKind.CONSTRAINT)
    left = replace(problem, nodes=work.nodes(), gangs=gangs, demands=demands, constraints=constraints)
    return PinnedSolution(left, tuple(work.pieces), tuple(work.unplaced))


def _pins(problem: PackProblem, names: Sequence[str]) -> Pins:
    """Return per resource the nodes that have it; without those that need the whole engine."""
    homes = nodes_by_name(names, problem.nodes)
    shared = [name for name, rows in homes.items() if 1 < len(rows) <= FEW_NODES]
    most = FEW_NODES if len(shared) > MANY_NAMES else 1
    pins = {name: rows for name, rows in homes.items() if len(rows) <= most}
    while open_ := [gang for gang in problem.gangs if _pinned_options(gang, pins) is None]:
        # These gangs need the engine, and compete with demands for what they ask of a node.
        asked = {
            name for gang in open_ for option in gang.options for bundle in option for name in bundle.shape
        }
        if not any(pins.get(name) for name in asked):
            break
        pins = {name: rows for name, rows in pins.items() if not rows or name not in asked}
    return pins


def _pinned_options(gang: Gang, pins: Pins) -> list[list[GangPiece]] | None:
    """Return the options that could be placed; None when a bundle could lie on more than one node."""
    able = []
    for option in gang.options:
        pieces = _gang_pieces(gang, option)
        rows = [_rows(piece.shape, pins) for piece in pieces]
        if any(each is not None and not each for each in rows):
            continue
        if any(each is None or len(each) > 1 for each in rows) or any(bundle.avoid for bundle in option):
            return None
        able.append(pieces)
    return able


def _gang_pieces(gang: Gang, option: Sequence[Demand]) -> list[GangPiece]:
    """Return bundles one by one, those that must share a node as one."""
    asked = [bundle for bundle in option if bundle.count > 0]
    if gang.strategy is not Strategy.STRICT_PACK or len({bundle.selectors for bundle in asked}) > 1:
        return [GangPiece(bundle.shape, bundle.selectors, bundle.count, 1) for bundle in asked]
    whole = Resources()
    for bundle in asked:
        whole = whole.plus(bundle.shape.times(bundle.count))
    return [GangPiece(whole, asked[0].selectors, 1, gang_size(gang))] if asked else []


def _rows(shape: Resources, pins: Pins) -> Sequence[int] | None:
    """Return the only nodes that could hold the request; None when nothing pins it."""
    homes = [pins[name] for name, units in shape.items() if units > 0 and name in pins]
    if len(homes) < 2:
        return homes[0] if homes else None
    return [row for row in homes[0] if all(row in rows for rows in homes[1:])]


class _Work:
    """What is free while pieces are placed, per kind of demand."""

    def __init__(self, problem: PackProblem, pins: Pins) -> None:
        self._nodes, self._pins = problem.nodes, pins
        self._free: dict[tuple[DemandKind, int], Resources] = {}
        self.pieces: list[PinnedPiece] = []
        self.unplaced: list[Unplaced] = []

    def nodes(self) -> tuple[PackNode, ...]:
        """Return the nodes with what is left of them."""
        left = list(self._nodes)
        for (kind, row), free in self._free.items():
            is_demand = kind is DemandKind.DEMAND
            left[row] = replace(left[row], **{"available" if is_demand else "total": free})
        return tuple(left)

    def demands(self, asked: Sequence[Demand], kind: DemandKind) -> tuple[Demand, ...]:
        """Place the smallest first, so that the most is served; returns the demands with what is left."""
        left = list(asked)
        for _, item, rows in sorted(self._by_share(asked, kind)):
            demand = asked[item]
            missing = demand.count
            for row in rows:
                if missing and _admits(demand.selectors, self._nodes[row]):
                    amount = min(missing, _fitting(self._left(kind, row), demand.shape))
                    missing -= amount
                    self._put((kind, False, item, row), demand.shape, amount)
            if missing:
                self.unplaced.append(Unplaced(kind, False, item, missing))
            left[item] = replace(demand, count=0)
        return tuple(left)

    def _by_share(
        self, asked: Sequence[Demand], kind: DemandKind
    ) -> Iterator[tuple[float, int, Sequence[int]]]:
        """Yield each pinned demand with its nodes and the largest share that it takes of the first."""
        for item, demand in enumerate(asked):
            rows = _rows(demand.shape, self._pins)
            # The engine alone knows what is avoided where; but without a node there is no place anyway.
            if rows is not None and demand.count > 0 and (demand.avoid is None or not rows):
                free = self._left(kind, rows[0]) if rows else Resources()
                yield max(n / max(free.units(name), 1) for name, n in demand.shape.items()), item, rows

    def gang(self, item: int, gang: Gang) -> Gang:
        """Place a gang whose bundles are all pinned, or finds no place for it; returns what is left."""
        options = _pinned_options(gang, self._pins)
        if options is None or not gang_size(gang):
            return gang
        if not any(self._place(item, gang, pieces) for pieces in options):
            self.unplaced.append(Unplaced(DemandKind.DEMAND, True, item, gang_size(gang)))
        return replace(gang, options=())

    def _place(self, item: int, gang: Gang, pieces: Sequence[GangPiece]) -> bool:
        """Place all pieces or none."""
        rows = [row for piece in pieces for row in _rows(piece.shape, self._pins) or ()]
        need: dict[int, Resources] = {}
        for row, piece in zip(rows, pieces, strict=True):
            if not _admits(piece.selectors, self._nodes[row]):
                return False
            need[row] = need.get(row, Resources()).plus(piece.shape.times(piece.amount))
        if not all(self._left(DemandKind.DEMAND, row).holds(whole) for row, whole in need.items()):
            return False
        count = sum(piece.amount for piece in pieces)
        if not _may_lie_on(gang, count, [self._nodes[row] for row in need]):
            return False
        for row, piece in zip(rows, pieces, strict=True):
            self._put((DemandKind.DEMAND, True, item, row), piece.shape, piece.amount, piece.bundles)
        return True

    def _left(self, kind: DemandKind, row: int) -> Resources:
        free = self._free.get((kind, row))
        if free is not None:
            return free
        node = self._nodes[row]
        return node.available if kind is DemandKind.DEMAND else node.total

    def _put(
        self, where: tuple[DemandKind, bool, int, int], shape: Resources, count: int, bundles: int = 1
    ) -> None:
        kind, is_gang, item, row = where
        if count:
            self._free[kind, row] = self._left(kind, row).minus(shape.times(count))
            placement = Placement(kind, is_gang, item, row, self._nodes[row].node_type, count * bundles)
            self.pieces.append(PinnedPiece(placement, shape.positive().key, bundles))


def _may_lie_on(gang: Gang, pieces: int, nodes: Sequence[PackNode]) -> bool:
    """Return whether the gang's strategy and locality allow these different nodes."""
    if gang.strategy is Strategy.STRICT_SPREAD and (
        len(nodes) < pieces or any(gang.label in node.labels for node in nodes)
    ):
        return False
    places = {node.labels.get(gang.locality_label) for node in nodes}
    return not gang.locality_label or (len(places) == 1 and None not in places)


def _admits(selectors: tuple[Selector, ...], node: PackNode) -> bool:
    return not selectors or first_match(selectors, node.labels) is not None


def _fitting(free: Resources, shape: Resources) -> int:
    """Return how many fit; the shape asks for something."""
    return min(free.get(name, implicit_units(name)) // units for name, units in shape.items() if units > 0)

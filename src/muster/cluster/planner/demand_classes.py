"""Merge equal demands into one for the engine, and distributes the answer to the original ones.

Called by `pack`, so that planning costs by kinds of request and not by requests. Which of several equal
requests gets a place first is their order. Also: whether a node type could ever hold a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from msgspec.structs import replace

from muster.base.resources import SCALE, ItemKey, Resources, implicit_units
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, NodeType, Selector
from muster.cluster.plan import Reason
from muster.cluster.planner.request import (
    DemandKind,
    ItemOutcome,
    PackNode,
    PackRequest,
    PackSolution,
    TypeOffer,
    labels_of,
)

Counts = dict[str, int]
NONE: Counts = {}  # shared by the many outcomes that have nothing of a kind; outcomes are never changed


class PlacementTally:
    """Counts where the requests of one kind (demands, gangs, constraints) went, by item."""

    def __init__(self) -> None:
        self.placed: dict[int, Counts] = {}
        self.coming: dict[int, Counts] = {}
        self.launched: dict[int, Counts] = {}
        self.unplaced: dict[int, int] = {}

    def outcome(self, index: int, position: int) -> ItemOutcome:
        """Return the outcome of the item that is `index` for the caller and `position` for the engine."""
        return ItemOutcome(
            index=index,
            placed=self.placed.get(position, NONE),
            coming=self.coming.get(position, NONE),
            launched=self.launched.get(position, NONE),
            unplaced=self.unplaced.get(position, 0),
        )

    def parts(self, position: int) -> Iterator[PlacedPart]:
        """Yield the requests that found a place, as parts: running nodes first."""
        for kind, counts in enumerate((self.placed, self.coming, self.launched)):
            for where, amount in counts.get(position, NONE).items():
                yield PlacedPart(kind, where, amount)


PLACED, COMING, LAUNCHED, UNPLACED = range(4)


class PlacedPart(NamedTuple):
    """A PlacedPart is `amount` requests that went the same way."""

    kind: int  # PLACED, COMING, LAUNCHED or UNPLACED
    where: str
    amount: int


class PlacementTallies:
    """PlacementTallies count a solution: one tally per kind of item, and the nodes that are needed."""

    def __init__(self) -> None:
        self.demands = PlacementTally()
        self.gangs = PlacementTally()
        self.constraints = PlacementTally()
        self.needed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, solution: PackSolution, nodes: Sequence[PackNode]) -> PlacementTallies:
        tallies = cls()
        plain, in_demand = tallies.demands, DemandKind.DEMAND
        used: set[int] = set()
        for kind, is_gang, item, node, node_type, amount in solution.placements:
            tally = plain if kind is in_demand and not is_gang else tallies._kind(kind, is_gang)
            if node < 0:
                _add(tally.launched, item, node_type, amount)
                continue
            used.add(node)
            where = nodes[node]
            if not where.key:
                _add(tally.launched, item, where.node_type, amount)
            else:
                _add(tally.placed if where.runs else tally.coming, item, where.key, amount)
        for kind, is_gang, item, amount in solution.unplaced:
            unplaced = tallies._kind(kind, is_gang).unplaced
            unplaced[item] = unplaced.get(item, 0) + amount
        tallies.needed = frozenset(nodes[node].key for node in used) - {""}
        return tallies

    def _kind(self, kind: DemandKind, is_gang: bool) -> PlacementTally:
        if kind is DemandKind.CONSTRAINT:
            return self.constraints
        return self.gangs if is_gang else self.demands


def _add(counts: dict[int, Counts], item: int, where: str, amount: int) -> None:
    of_item = counts.get(item)
    if of_item is None:
        counts[item] = {where: amount}
    else:
        of_item[where] = of_item.get(where, 0) + amount


DemandKey = tuple[ItemKey, tuple[Selector, ...], tuple[str, str] | None]


def demand_key(demand: Demand) -> DemandKey:
    """Return a key; requests with the same key are placed alike."""
    return demand.shape.key, demand.selectors, demand.avoid


_NO_REQUEST = ItemOutcome(index=-1)


class MergedDemands:
    """Holds equal demands as one, without empty ones, and can distribute the outcome again."""

    def __init__(self, asked: Sequence[Demand]) -> None:
        self._asked = asked
        places: dict[DemandKey, list[int]] = {}
        for index, demand in enumerate(asked):
            if demand.count > 0:
                key = demand_key(demand)
                members = places.get(key)
                if members is None:
                    places[key] = [index]
                else:
                    members.append(index)
        self._members = list(places.values())  # per kind of demand, the places of its members in `asked`
        self.demands = tuple(self._whole(members) for members in self._members)

    def _whole(self, members: Sequence[int]) -> Demand:
        first = self._asked[members[0]]
        if len(members) == 1:
            return first
        return replace(first, count=sum(self._asked[index].count for index in members))

    def outcomes(self, tally: PlacementTally) -> tuple[ItemOutcome, ...]:
        """Return one outcome per original demand; counts are distributed in the original order."""
        found = [_NO_REQUEST] * len(self._asked)
        for place, members in enumerate(self._members):
            if len(members) == 1:
                found[members[0]] = tally.outcome(members[0], place)
                continue
            count = self.demands[place].count
            # What is left when all places are given has none; were an engine to lose a request, that one too.
            parts = chain(tally.parts(place), (PlacedPart(UNPLACED, "", count),))
            if count == len(members):
                _share_among_singles(members, parts, found)
            else:
                self._share(members, parts, found)
        if sum(map(len, self._members)) == len(found):
            return tuple(found)
        return tuple(
            ItemOutcome(index=index) if outcome is _NO_REQUEST else outcome
            for index, outcome in enumerate(found)
        )

    def _share(self, members: Sequence[int], parts: Iterator[PlacedPart], found: list[ItemOutcome]) -> None:
        kind, where, left = next(parts)
        for index in members:
            needs = self._asked[index].count
            got: list[Counts] = [{}, {}, {}, {}]
            while needs > 0:
                while left == 0:
                    kind, where, left = next(parts)
                taken = min(needs, left)
                got[kind][where] = got[kind].get(where, 0) + taken
                needs, left = needs - taken, left - taken
            placed, coming, launched, unplaced = got
            found[index] = ItemOutcome(
                index=index, placed=placed, coming=coming, launched=launched, unplaced=unplaced.get("", 0)
            )


def _share_among_singles(
    members: Sequence[int], parts: Iterable[PlacedPart], found: list[ItemOutcome]
) -> None:
    """Handle demands of one request each, often very many: those placed alike share one mapping."""
    waiting = iter(members)
    for kind, where, amount in parts:
        single = {where: 1}
        placed = single if kind == PLACED else NONE
        coming = single if kind == COMING else NONE
        launched = single if kind == LAUNCHED else NONE
        unplaced = 1 if kind == UNPLACED else 0
        for index in islice(waiting, amount):
            found[index] = ItemOutcome(
                index=index, placed=placed, coming=coming, launched=launched, unplaced=unplaced
            )


def gang_size(gang: Gang) -> int:
    """Return how many bundles the gang has, by its first option."""
    return sum(bundle.count for bundle in gang.options[0]) if gang.options else 0


class CountedGangs:
    """Holds the gangs that have bundles, and can restore the original order."""

    def __init__(self, asked: Sequence[Gang]) -> None:
        self.gangs = tuple(gang for gang in asked if gang_size(gang) > 0)
        places = iter(range(len(self.gangs)))
        self._places = [next(places) if gang_size(gang) > 0 else -1 for gang in asked]

    def outcomes(self, tally: PlacementTally) -> tuple[ItemOutcome, ...]:
        return tuple(tally.outcome(index, place) for index, place in enumerate(self._places))


def selector_holds(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether every condition holds; the empty selector holds everywhere."""
    return all(_match_holds(match, labels) for match in selector)


def first_match(selectors: Sequence[Selector], labels: Mapping[str, str]) -> int | None:
    """Return the index of the first selector that holds; None when none does, or there is none."""
    for index, selector in enumerate(selectors):
        if selector_holds(selector, labels):
            return index
    return None


def _match_holds(match: LabelMatch, labels: Mapping[str, str]) -> bool:
    """A missing label is in no set: IN fails, NOT_IN passes; an unknown operator fails."""
    value = labels.get(match.key)
    if match.operator is LabelOperator.IN:
        return value is not None and value in match.values
    return match.operator is LabelOperator.NOT_IN and (value is None or value not in match.values)


class Nearest(NamedTuple):
    """The type that is closest to holding a request that no type can hold."""

    name: str  # empty: there is no type at all
    lacks: Mapping[str, float]
    detail: str


def capacity(node_type: NodeType) -> Resources:
    """Return all that a machine of this type can have, grown in place as far as is expected of it."""
    if node_type.resize is None:
        return node_type.resources
    grown = dict(node_type.resources)
    for name, units in node_type.resize.planned.items():
        grown[name] = max(units, grown.get(name, 0))
    return Resources(grown)


def why_not(demand: Demand, node_type: NodeType) -> Reason | None:
    """Return why no machine of this type could ever hold one of these requests; None when one could."""
    if not capacity(node_type).holds(demand.shape):
        return Reason.TYPE_LACKS_RESOURCES
    suits = any(labels_suit(demand, labels_of(offer, node_type)) for offer in node_type.offers or (None,))
    return None if suits else Reason.TYPE_LABELS_DIFFER


def machines_for(demand: Demand, node_type: NodeType) -> int:
    """Return how many machines of this type hold all of these requests; 0 when one cannot hold any."""
    size = capacity(node_type)
    most = min((size.units(name) // units for name, units in demand.shape.items() if units), default=0)
    return -(-demand.count // most) if most else 0


def labels_suit(demand: Demand, labels: Mapping[str, str]) -> bool:
    if demand.avoid is not None and labels.get(demand.avoid[0]) == demand.avoid[1]:
        return False
    return not demand.selectors or first_match(demand.selectors, labels) is not None


def nearest(demand: Demand, offers: Sequence[TypeOffer]) -> Nearest:
    """Return the type that is short of the smallest shares of what is asked; then the first listed."""
    wanted = f"{{{demand.shape}}}"
    if not offers:
        return Nearest("", {}, f"no node type can hold {wanted}: the config has no node types")
    ranked = [_shortfall(demand, offer.node_type) for offer in offers]
    best = min(range(len(offers)), key=lambda index: (ranked[index], index))
    chosen = offers[best].node_type
    lacks = capacity(chosen).lacks(demand.shape)
    if not lacks:
        has = ", ".join(f"{key}={value}" for key, value in sorted(chosen.labels.items())) or "none"
        asks = " or ".join(_selector_text(selector) for selector in demand.selectors) or f"not {demand.avoid}"
        detail = f"no node type that can hold {wanted} has labels {asks}: {chosen.name} has {has}"
        return Nearest(chosen.name, {}, detail)
    short = Resources(lacks)
    detail = f"no node type can hold {wanted}: nearest is {chosen.name}, which lacks {short}"
    return Nearest(chosen.name, {name: units / SCALE for name, units in lacks.items()}, detail)


def _shortfall(demand: Demand, node_type: NodeType) -> tuple[float, bool]:
    lacks = capacity(node_type).lacks(demand.shape)
    share = sum(units / demand.shape[name] for name, units in lacks.items())
    return share, not labels_suit(demand, node_type.labels)


def _selector_text(selector: Selector) -> str:
    parts = (
        f"{match.key} {'in' if match.operator is LabelOperator.IN else 'not in'} {', '.join(match.values)}"
        for match in selector
    )
    return " and ".join(parts)


def names_of_no_type(names: Iterable[str], offers: Iterable[TypeOffer]) -> list[str]:
    """Return the resources that no new machine could have: only nodes that exist, if any, offer them."""
    offered = {name for offer in offers for name in capacity(offer.node_type)}
    return [name for name in names if name not in offered and not implicit_units(name)]


def nodes_by_name(names: Iterable[str], nodes: Sequence[PackNode]) -> dict[str, list[int]]:
    """Return per resource the nodes that have it; without resources of nodes that are or may be resized."""
    homes: dict[str, list[int]] = {name: [] for name in names}
    for number, node in enumerate(nodes):
        for name in (*node.total, *node.available):
            if name in homes and (not homes[name] or homes[name][-1] != number):
                homes[name].append(number)
    for node in nodes:
        if node.resize is not None:
            target = node.resize.suggested_maximum or ()
            for name in (*node.total, *node.available, *node.resize.desired, *target):
                homes.pop(name, None)
    return homes


def fitting(demand: Demand, offers: Iterable[TypeOffer]) -> list[TypeOffer]:
    """Return the offers whose machines could hold one of these requests, whatever the limits say."""
    able = (offer for offer in offers if why_not(demand, offer.node_type) is None)
    return [_narrowed(demand, offer) if demand.selectors and offer.choices else offer for offer in able]


def _narrowed(demand: Demand, offer: TypeOffer) -> TypeOffer:
    """Return a type with the offers alone whose labels suit the request."""
    suiting = tuple(c for c in offer.choices if labels_suit(demand, labels_of(c.offer, offer.node_type)))
    return replace(offer, choices=suiting, room=min(offer.room, sum(each.room for each in suiting)))


def could_hold(demand: Demand, request: PackRequest) -> bool:
    """Return whether a node of this cluster, or a machine of any type, could hold one of these requests."""
    return bool(fitting(demand, request.offers)) or any(
        node.total.holds(demand.shape) and labels_suit(demand, node.labels) for node in request.nodes
    )

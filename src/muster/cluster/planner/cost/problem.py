"""Describe the problem of the cost objective as arrays: item classes, what can be launched, what exists.

Quantities are whole numbers in int64, so that what fits is counted exactly. Counts of items and machines are
float64, where infinity means "no limit". Column r < `real` is a resource; later columns count members of a
group that exclude each other on a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.base.resources import ItemKey, Resources
from muster.cluster.model import Demand, NodeType, Selector
from muster.cluster.planner.demand_classes import selector_holds
from muster.cluster.planner.request import TypeOffer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Items(NamedTuple):
    """Classes of equal requests: what one takes of each column."""

    size: Ints  # classes x columns
    real: int  # how many of the columns are resources


class PurchasableTypes(NamedTuple):
    """The machine types that can be launched."""

    size: Ints  # types x columns
    cost: Floats  # per machine; always > 0
    allowed: Bools  # types x classes
    room: Floats  # how many machines of each type
    total_room: float

    def only(self, keep: Ints) -> PurchasableTypes:
        return PurchasableTypes(
            self.size[keep], self.cost[keep], self.allowed[keep], self.room[keep], self.total_room
        )


class Bins(NamedTuple):
    """Nodes that exist, are on their way, or were launched earlier; using them costs nothing."""

    free: Ints  # bins x columns
    allowed: Bools | None  # bins x classes; None: everything
    tier: Ints  # lower tiers are filled first
    growth: Ints | None = None  # by how much each could grow in place, free of charge


class MachinePurchase(NamedTuple):
    """A MachinePurchase is `copies` machines of one type, each loaded with `load` (items of each class)."""

    type: int
    load: Floats
    copies: int


class BinLayout(NamedTuple):
    """Says where everything goes."""

    loads: Floats  # bins x classes
    launched: tuple[MachinePurchase, ...]
    unserved: Floats  # per class
    cost: float


def counts_that_fit(free: Ints, size: Ints) -> Floats:
    """Return how many of each item fit alone on each row: rows x items."""
    fits = np.full((len(free), len(size)), np.inf)
    for column in range(size.shape[1]):
        users = np.flatnonzero(size[:, column])
        if len(users):
            held = free[:, column, None] // size[users, column]
            fits[:, users] = np.minimum(fits[:, users], held)
    return fits


def group_columns(items: Items) -> tuple[Ints, Ints]:
    """Return the classes that belong to a group, and per class the column of its group (0: none).

    A class is in at most one group and takes one place of it; column 0 is always a resource.
    """
    marks = items.size[:, items.real :]
    if not marks.shape[1]:
        return np.zeros(0, dtype=np.int64), np.zeros(len(items.size), dtype=np.int64)
    grouped = marks.any(axis=1)
    return np.flatnonzero(grouped), np.where(grouped, items.real + marks.argmax(axis=1), 0)


def load_size(loads: Floats, items: Items) -> Ints:
    """Return what each row of loads takes of each column; loads are mostly zeros."""
    rows, classes = np.nonzero(loads)
    amounts = loads[rows, classes].astype(np.int64)
    taken: Ints = np.zeros((len(loads), items.size.shape[1]), dtype=np.int64)
    taken[:, : items.real] = sums_by_row(
        rows, amounts[:, None] * items.size[classes, : items.real], len(loads)
    )
    grouped, group = group_columns(items)
    if len(grouped):
        marked = np.flatnonzero(group[classes])
        np.add.at(taken, (rows[marked], group[classes[marked]]), amounts[marked])
    return taken


def sums_by_row(rows: Ints, parts: Ints, count: int) -> Ints:
    """Return the sum of the parts of each of `count` rows; `rows`, one per part, are sorted."""
    sums: Ints = np.zeros((count, parts.shape[1]), dtype=np.int64)
    if len(rows):
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        sums[rows[starts]] = np.add.reduceat(parts, starts, axis=0)
    return sums


class Avoidance(NamedTuple):
    """Allows at most `most` requests of a group on one node, and none on a node with `label`.

    `value` None: whatever the label's value. `number` separates groups of equal gangs.
    """

    label: str
    value: str | None
    most: int = 1
    number: int = -1


class Ask(NamedTuple):
    """One class of equal requests."""

    shape: ItemKey  # without zeros
    selectors: tuple[Selector, ...] = ()  # none: any node
    apart: Avoidance | None = None


def shape_key(shape: Resources) -> ItemKey:
    key = shape.key
    return key if all(units for _, units in key) else tuple(pair for pair in key if pair[1])


def ask_of(demand: Demand) -> Ask:
    apart = Avoidance(*demand.avoid) if demand.avoid is not None else None
    return Ask(shape_key(demand.shape), selectors_of(demand.selectors), apart)


def selectors_of(selectors: tuple[Selector, ...]) -> tuple[Selector, ...]:
    """Return the selectors up to one that holds everywhere; none at all when that is the first."""
    for index, selector in enumerate(selectors):
        if not selector:
            return selectors[: index + 1] if index else ()
    return selectors


def admits(ask: Ask, labels: Mapping[str, str]) -> bool:
    """Return whether the selectors allow a node with these labels to hold the request."""
    return not ask.selectors or any(selector_holds(selector, labels) for selector in ask.selectors)


def carries(labels: Mapping[str, str], apart: Avoidance) -> bool:
    """Return whether a node with these labels is closed to the group."""
    value = labels.get(apart.label)
    return value is not None and (apart.value is None or value == apart.value)


TIE = 1e-6  # of a price: decides between equals, never against a real difference


def machine_costs(offers: Sequence[TypeOffer]) -> Floats:
    """Return the cost per offer, always > 0; ties of price are broken by Ray's rules, then by order."""
    types = [offer.node_type for offer in offers]
    prices = np.array([_price(node_type, types) for node_type in types])
    least = prices[prices > 0].min(initial=1.0)
    ranked = sorted(range(len(offers)), key=lambda i: _standing(offers[i], i))
    rank = np.zeros(len(offers))
    rank[ranked] = np.arange(len(offers)) / max(1, len(offers))
    # A machine that costs nothing still counts a little, so that no more than needed are started.
    costs: Floats = (prices + TIE * least) * (1.0 + TIE * rank)
    return costs


def _standing(offer: TypeOffer, index: int) -> tuple[bool, float, int, float, int]:
    unpriced = offer.node_type.price_per_hour is None
    return (unpriced, -offer.recoverable, -offer.node_type.priority, -offer.availability, index)


def _price(node_type: NodeType, types: Sequence[NodeType]) -> float:
    if node_type.price_per_hour is not None:
        return node_type.price_per_hour
    dominant = _dominant_resource(node_type, types)
    units = node_type.resources.units(dominant)
    priced = [t for t in types if t.price_per_hour is not None]
    alike = [t for t in priced if t.resources.units(dominant)]
    if alike and units:
        return max((t.price_per_hour or 0.0) * units / t.resources.units(dominant) for t in alike)
    if priced:
        return max(t.price_per_hour or 0.0 for t in priced)
    most = max((t.resources.units(dominant) for t in types), default=0)
    return units / most if most else 1.0  # nothing has a price: by size


def _dominant_resource(node_type: NodeType, types: Sequence[NodeType]) -> str:
    """Return the resource of which the type has the largest share of what any type has."""
    shares = {}
    for name, units in node_type.resources.key:
        most = max(t.resources.units(name) for t in types)
        shares[name] = units / most if most else 0.0
    return min(shares, key=lambda name: (-shares[name], name)) if shares else ""

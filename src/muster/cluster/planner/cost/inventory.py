"""Hold what one kind of demand may use: bins with their free capacity, and types that can still be launched.

Called by `solve`; only `take` changes an inventory. `propose` returns where asks would go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from muster.base.resources import EMPTY, Resources, implicit_units
from muster.cluster.model import NodeType
from muster.cluster.planner.cost.column_generation import LARGEST_MASTER
from muster.cluster.planner.cost.layout import lay_out
from muster.cluster.planner.cost.problem import (
    Ask,
    Avoidance,
    BinLayout,
    Bins,
    Bools,
    Floats,
    Ints,
    Items,
    PurchasableTypes,
    admits,
    carries,
    machine_costs,
    sums_by_row,
)
from muster.cluster.planner.demand_classes import capacity
from muster.cluster.planner.request import DemandKind, PackNode, PackProblem

MORE_THAN_ANY = 2**63 - 1  # of any column: no node and no type has as much


class Quantization(NamedTuple):
    """Has the columns and the grain of each: the largest unit in which all needs are whole."""

    names: tuple[str, ...]
    grain: tuple[int, ...]

    @classmethod
    def of(cls, asks: Sequence[Ask]) -> Quantization:
        amounts: dict[str, list[int]] = {}
        for ask in asks:
            for name, units in ask.shape:
                amounts.setdefault(name, []).append(units)
        names = tuple(sorted(amounts)) or ("CPU",)
        return cls(names, tuple(math.gcd(*amounts.get(name, [1])) for name in names))

    def need(self, ask: Ask) -> list[int]:
        shape = dict(ask.shape)
        needs = (-(-shape.get(name, 0) // g) for name, g in zip(self.names, self.grain, strict=True))
        return [min(need, MORE_THAN_ANY) for need in needs]

    def rooms(self, have: Sequence[Resources]) -> Ints:
        """Return what nodes have, one row each; an implicit resource that is not listed counts 1.0."""
        columns: Ints = np.zeros((len(have), len(self.names)), dtype=np.int64)
        for column, (name, grain) in enumerate(zip(self.names, self.grain, strict=True)):
            default = implicit_units(name)
            if default:
                units = [bag.get(name, default) for bag in have]
            else:
                units = [bag.units(name) for bag in have]
            columns[:, column] = np.array(units, dtype=np.int64) // grain
        return columns


class Proposal(NamedTuple):
    """Puts `amounts[k]` of ask `asks[k]` into bin `rows[k]`, sorted by ask and bin.

    Bins from `old` on are machines to buy, of `types`.
    """

    rows: Ints
    asks: Ints
    amounts: Ints
    old: int
    types: Ints
    cost: float


def no_proposal(bins: int) -> Proposal:
    """Return the proposal that uses none of the bins and buys nothing."""
    none = np.zeros(0, dtype=np.int64)
    return Proposal(none, none, none, bins, none, 0.0)


class Inventory:
    """Has bins: first the nodes of the problem, then the machines that were launched."""

    def __init__(
        self, scale: Quantization, types: Sequence[Resources], labels: Sequence[Mapping[str, str]]
    ) -> None:
        self.scale = scale
        self.type_size = scale.rooms(types)
        self.type_labels = labels
        self.cost: Floats = np.zeros(len(types))
        self.room: Floats = np.zeros(len(types))
        self.total_room = np.inf
        self.free = scale.rooms([])
        self.growth = scale.rooms([])  # by how much a bin could grow in place
        self.grown: list[int] = []
        self.machines: list[int] = []  # types of the bins after the nodes
        self.tier: Ints = np.zeros(0, dtype=np.int64)
        self.bin_labels: list[Mapping[str, str]] = []
        self.carried: dict[tuple[str, str | None], set[int]] = {}

    def copy(self) -> Inventory:
        """Return a copy that can be changed independently."""
        twin = copy(self)
        twin.free, twin.growth = self.free.copy(), self.growth.copy()
        twin.grown, twin.bin_labels = list(self.grown), list(self.bin_labels)
        twin.carried = {key: set(rows) for key, rows in self.carried.items()}
        return twin

    def add_bins(self, free: Ints, growth: Ints, tier: Ints, labels: Sequence[Mapping[str, str]]) -> None:
        self.free = np.vstack([self.free, free])
        self.growth = np.vstack([self.growth, growth])
        self.tier = np.concatenate([self.tier, tier])
        self.bin_labels.extend(labels)

    def add_machines(self, types: Ints) -> None:
        """Add bins for machines that were launched (or will be, by the other kind of demand)."""
        self.machines = [*self.machines, *types.tolist()]
        self.room = self.room - np.bincount(types, minlength=len(self.room))
        self.total_room -= len(types)
        labels = [self.type_labels[t] for t in types.tolist()]
        size = self.type_size[types]
        self.add_bins(size, np.zeros_like(size), np.zeros(len(types), dtype=np.int64), labels)

    def holds(self, ask: Ask) -> bool:
        """Return whether some empty bin or type on sale could hold one request."""
        need = np.array(self.scale.need(ask))
        can_buy = self.total_room >= 1
        types = np.flatnonzero((self.type_size >= need).all(axis=1) & (self.room >= 1) & can_buy)
        if any(admits(ask, self.type_labels[t]) for t in types.tolist()):
            return True
        bins = np.flatnonzero((self.free + self.growth >= need).all(axis=1))
        return any(admits(ask, self.bin_labels[row]) for row in bins.tolist())

    def most_room(self) -> Floats:
        """Return a bound on what bins and new machines can hold together, per column."""
        most = np.zeros(len(self.scale.names))
        for column in range(len(most)):
            ranked = np.argsort(-self.type_size[:, column], kind="stable")
            before = np.cumsum(np.maximum(self.room[ranked], 0.0)) - np.maximum(self.room[ranked], 0.0)
            copies = np.clip(self.total_room - before, 0.0, np.maximum(self.room[ranked], 0.0))
            most[column] = float((self.type_size[ranked, column] * copies).sum())
        most += (self.free + self.growth).sum(axis=0)
        return most

    def bins_for(self, asks: Sequence[Ask]) -> tuple[Items, Bins]:
        """Return every bin as these asks see it."""
        items, apart = self._items(asks)
        return items, self._bins(asks, apart, np.arange(len(self.free)))

    def market_for(self, asks: Sequence[Ask]) -> PurchasableTypes:
        """Return what can be launched, as these asks see it."""
        return self._market(asks, self._items(asks)[1])

    def propose(self, asks: Sequence[Ask], wanted: Floats) -> Proposal:
        """Return the cheapest way to serve the most of `wanted`."""
        items, apart = self._items(asks)
        # Bins that could hold the smallest part of each resource: the others take nothing.
        least = items.size[:, : items.real].min(axis=0, initial=MORE_THAN_ANY)
        rows = np.flatnonzero((self.free + self.growth >= least).all(axis=1))
        bins = self._bins(asks, apart, rows)
        layout = _lay_out(items, bins, self._market(asks, apart), wanted)
        return self._proposal(layout, rows)

    def take(self, proposal: Proposal, asks: Sequence[Ask]) -> None:
        """Apply the proposal."""
        self.add_machines(proposal.types)
        rows, which = proposal.rows, proposal.asks
        need = np.array([self.scale.need(ask) for ask in asks]).reshape(len(asks), len(self.scale.names))
        order = np.argsort(rows, kind="stable")
        used = proposal.amounts[order, None] * need[which[order]]
        self.free -= sums_by_row(rows[order], used, len(self.free))
        short = np.flatnonzero((self.free < 0).any(axis=1))
        self.free[short] += self.growth[short]
        self.growth[short] = 0
        self.grown.extend(short.tolist())
        for index, ask in enumerate(asks):
            if ask.apart is not None and ask.apart.number < 0:
                key = (ask.apart.label, ask.apart.value)
                self.carried.setdefault(key, set()).update(rows[which == index].tolist())

    def _items(self, asks: Sequence[Ask]) -> tuple[Items, list[Avoidance]]:
        apart = list(dict.fromkeys(ask.apart for ask in asks if ask.apart is not None))
        size: Ints = np.zeros((len(asks), len(self.scale.names) + len(apart)), dtype=np.int64)
        for index, ask in enumerate(asks):
            size[index, : len(self.scale.names)] = self.scale.need(ask)
            if ask.apart is not None:
                size[index, len(self.scale.names) + apart.index(ask.apart)] = 1
        return Items(size, len(self.scale.names)), apart

    def _bins(self, asks: Sequence[Ask], apart: list[Avoidance], rows: Ints) -> Bins:
        marks = np.array([self._places_left(group)[rows] for group in apart], dtype=np.int64)
        marks = marks.reshape(len(apart), len(rows)).T
        growth = np.hstack([self.growth[rows], np.zeros_like(marks)])
        allowed = _allowed(asks, [self.bin_labels[row] for row in rows])
        free = np.hstack([self.free[rows], marks])
        return Bins(free, allowed, self.tier[rows], growth if growth.any() else None)

    def _places_left(self, group: Avoidance) -> Ints:
        closed = self.carried.get((group.label, group.value), ())
        places = [0 if carries(labels, group) else group.most for labels in self.bin_labels]
        for row in closed:
            places[row] = 0
        return np.array(places, dtype=np.int64)

    def _market(self, asks: Sequence[Ask], apart: list[Avoidance]) -> PurchasableTypes:
        marks = np.array(
            [[0 if carries(labels, a) else a.most for a in apart] for labels in self.type_labels],
            dtype=np.int64,
        ).reshape(len(self.type_labels), len(apart))
        allowed = _allowed(asks, self.type_labels)
        if allowed is None:
            allowed = np.ones((len(self.type_labels), len(asks)), dtype=bool)
        size = np.hstack([self.type_size, marks])
        return PurchasableTypes(
            size, self.cost, allowed, np.maximum(self.room, 0.0), max(self.total_room, 0.0)
        )

    def _proposal(self, layout: BinLayout, rows: Ints) -> Proposal:
        where, which = np.nonzero(layout.loads)
        parts = [(rows[where], which, layout.loads[where, which])]
        types: list[int] = []
        for launched in layout.launched:
            first = len(self.free) + len(types)
            held = np.flatnonzero(launched.load)
            machines = np.arange(first, first + launched.copies)
            loads = np.tile(launched.load[held], launched.copies)
            parts.append((np.repeat(machines, len(held)), np.tile(held, launched.copies), loads))
            types += [launched.type] * launched.copies
        all_rows, all_asks, amounts = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((all_rows, all_asks))
        return Proposal(
            all_rows[order],
            all_asks[order],
            amounts[order].astype(np.int64),
            len(self.free),
            np.array(types, dtype=np.int64),
            layout.cost,
        )


FEWEST_CLASSES = 16
MOST_OF_EACH = (
    128  # requests per class, on average: with more of each, rounding a linear program loses little
)
MOST_COLUMNS = 12
THOROUGH = 100  # classes up to which both methods are tried


def _lay_out(items: Items, bins: Bins, market: PurchasableTypes, wanted: Floats) -> BinLayout:
    """Choose the method by the number of classes and by how much there is of each."""
    classes = int(np.count_nonzero(wanted))
    few_of_each = classes >= FEWEST_CLASSES and float(wanted.sum()) <= MOST_OF_EACH * classes
    if items.size.shape[1] > MOST_COLUMNS or not (few_of_each or classes > LARGEST_MASTER):
        return lay_out(items, bins, market, wanted)
    from muster.cluster.planner.cost.many_shapes import lay_out_many

    layout = lay_out_many(items, bins, market, wanted)
    if classes > THOROUGH and not layout.unserved.any():
        return layout
    other = lay_out(items, bins, market, wanted)
    return min(layout, other, key=lambda each: (float(each.unserved.sum()), round(each.cost, 9)))


def _allowed(asks: Sequence[Ask], labels: Sequence[Mapping[str, str]]) -> Bools | None:
    """Return rows x asks; None when no ask has a selector. Each distinct set of labels is checked once."""
    picky = [index for index, ask in enumerate(asks) if ask.selectors]
    if not picky:
        return None
    allowed = np.ones((len(labels), len(asks)), dtype=bool)
    known: dict[tuple[tuple[str, str], ...], list[bool]] = {}
    for row, have in enumerate(labels):
        key = tuple(sorted(have.items()))
        if key not in known:
            known[key] = [admits(asks[index], have) for index in picky]
        allowed[row, picky] = known[key]
    return allowed


GPU = "GPU"


def inventory_of(problem: PackProblem, kind: DemandKind, asks: Sequence[Ask]) -> Inventory:
    """Return everything that this kind of demand may use; `asks` decide which resources matter."""
    scale = Quantization.of(asks)
    types = [offer.node_type for offer in problem.offers]
    inventory = Inventory(scale, [capacity(t) for t in types], [t.labels for t in types])
    inventory.cost = machine_costs(problem.offers)
    inventory.room = np.array([float(max(offer.room, 0)) for offer in problem.offers])
    inventory.total_room = np.inf if problem.room is None else float(max(problem.room, 0))
    nodes, conserve_gpus = problem.nodes, problem.conserve_gpus
    # Running nodes come before those on their way; GPU nodes are spared while others will do.
    tiers = [2 * (conserve_gpus and node.total.units(GPU) > 0) + (not node.runs) for node in nodes]
    inventory.add_bins(
        scale.rooms([free_of(node, kind) for node in nodes]),
        _growth(problem, kind, scale),
        np.array(tiers, dtype=np.int64),
        [node.labels for node in nodes],
    )
    return inventory


def grow(inventory: Inventory, grown: Sequence[int]) -> None:
    """Apply the growth of nodes that the other kind of demand resizes."""
    rows = list(grown)
    inventory.free[rows] += inventory.growth[rows]
    inventory.growth[rows] = 0


def free_of(node: PackNode, kind: DemandKind) -> Resources:
    """Return what this kind of demand may use of a node; a resize under way counts as done."""
    have = node.available if kind is DemandKind.DEMAND else node.total
    if node.resize is None or not node.resize.in_progress:
        return have
    more = {name: units - node.total.units(name) for name, units in node.resize.desired.items()}
    return Resources({**have, **{name: max(0, have.units(name) + units) for name, units in more.items()}})


def growth_limit(node: PackNode, limits: Mapping[str, NodeType]) -> Resources:
    """Return how large the node may be asked to become; empty when it may not grow now."""
    status, node_type = node.resize, limits.get(node.node_type)
    if status is None or status.failed or status.in_progress or node_type is None or node_type.resize is None:
        return EMPTY
    limit = Resources({**node_type.resize.maximum, **(status.suggested_maximum or {})})
    grows = any(units > node.total.units(name) for name, units in limit.items())
    if not grows:
        return EMPTY
    return Resources({name: max(units, node.total.units(name)) for name, units in limit.items()})


def _growth(problem: PackProblem, kind: DemandKind, scale: Quantization) -> Ints:
    """Return how much more each node would offer at its full size."""
    growth: Ints = np.zeros((len(problem.nodes), len(scale.names)), dtype=np.int64)
    limits = {offer.node_type.name: offer.node_type for offer in problem.offers}
    for row, node in enumerate(problem.nodes):
        limit = EMPTY if node.resize is None else growth_limit(node, limits)
        if limit:
            free = free_of(node, kind)
            more = Resources({name: max(0, units - node.total.units(name)) for name, units in limit.items()})
            growth[row] = scale.rooms([free.plus(more)]) - scale.rooms([free])
    return growth

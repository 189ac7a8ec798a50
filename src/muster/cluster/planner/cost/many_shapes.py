"""Imported lazily: lays out demand of many shapes, where rounding a linear program loses too much.

Called by `inventory`. Prices come from a relaxation without whole machines; classes are dealt into groups,
and each group fills its own machine at the same time. Worst used machines are given up and launched again.
Budgets are counts, never seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.cluster.planner.cost.column_generation import fluid_prices, start_values
from muster.cluster.planner.cost.knapsack import TINY, FillRows, fill_rows
from muster.cluster.planner.cost.layout import Filled, fill_nodes, useful_types
from muster.cluster.planner.cost.problem import (
    BinLayout,
    Bins,
    Bools,
    Floats,
    Ints,
    Items,
    MachinePurchase,
    PurchasableTypes,
)

GROUP = 64  # classes of one group
MOST_WEIGHTINGS = 6
NOT_WORTH_IT = 0.95  # of a machine's cost: below it, groups are joined before they buy more
GIVEN_UP = 0.3  # of the cost, in one round of giving up
CLOSE = 0.98  # to the leader
ALIKE = 1.05  # how much better than the first group another may be at first
PASSES = 3
MOST_ROUNDS = 12  # of giving up
FEWEST_ROUNDS = 3
ROUND_CLASSES = 2_400  # classes x rounds
NODE_CELLS = 250_000  # nodes x classes; more than this are dealt into groups too
NODE_GROUP = 128  # classes of one group
NODE_BLOCKS = 8
NODE_ROUNDS = 5
REFILLS = 6
SHIFTS = 3  # times that nodes meet another group of classes


class Purchases(NamedTuple):
    """Machines with their loads; load k puts `amounts[k]` of `classes[k]` on `owner[k]`."""

    types: Ints
    copies: Ints
    owner: Ints
    classes: Ints
    amounts: Floats

    @classmethod
    def of(cls, parts: list[tuple[Ints, Ints, Ints, Floats]]) -> Purchases:
        """Join (types, copy, classes of each, loads of each)."""
        if not parts:
            none = np.zeros(0, dtype=np.int64)
            return cls(none, none, none, none, np.zeros(0))
        first, found = 0, []
        for types, copies, classes, loads in parts:
            row, column = np.nonzero(loads)
            found.append((types, copies, row + first, classes[row, column], loads[row, column]))
            first += len(types)
        return cls(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def only(self, keep: Bools) -> Purchases:
        number = np.cumsum(keep) - 1
        some = keep[self.owner]
        return Purchases(
            self.types[keep],
            self.copies[keep],
            number[self.owner[some]],
            self.classes[some],
            self.amounts[some],
        )

    def and_(self, other: Purchases) -> Purchases:
        moved = other._replace(owner=other.owner + len(self.types))
        return Purchases(*(np.concatenate(pair) for pair in zip(self, moved, strict=True)))

    def held(self, classes: int) -> Floats:
        """Return how many of each class all machines hold."""
        amounts = self.amounts * self.copies[self.owner]
        return np.asarray(np.bincount(self.classes, amounts, minlength=classes), dtype=np.float64)

    def worth(self, value: Floats) -> Floats:
        worth = np.bincount(self.owner, self.amounts * value[self.classes], minlength=len(self.types))
        return np.asarray(worth, dtype=np.float64)

    def cost(self, market: PurchasableTypes) -> float:
        return float((market.cost[self.types] * self.copies).sum())

    def rank(self, market: PurchasableTypes) -> tuple[float, float]:
        """Sort the better purchase first: what serves more, then what costs less."""
        return -float((self.amounts * self.copies[self.owner]).sum()), self.cost(market)


class _Groups:
    """Classes dealt into groups; each keeps one pattern per type and buys the best value per dollar.

    What a pattern is worth only falls while demand does, so a pattern is filled again only when it leads.
    """

    def __init__(
        self, items: Items, market: PurchasableTypes, left: Floats, value: Floats, count: int
    ) -> None:
        active = np.flatnonzero(left > 0)
        dealt = _dealt(_by_likeness(items, active), count, -1)
        width = dealt.shape[1]
        self.classes: Ints = np.maximum(dealt, 0)
        self.left = np.where(dealt >= 0, left[self.classes], 0.0)
        self.value = np.maximum(value[self.classes], TINY)
        self.sizes = [np.ascontiguousarray(column[self.classes]) for column in items.size.T]
        self.market, self.room, self.total_room = market, market.room.copy(), market.total_room
        self.weights = _directions(items)
        shape = (count, len(market.cost))
        self.ratio = np.full(shape, np.inf)
        self.fresh: Bools = np.zeros(shape, dtype=bool)
        self.loads = np.zeros((*shape, width))
        self.parts: list[tuple[Ints, Ints, Ints, Floats]] = []
        every = np.arange(shape[1])
        self._refill(np.zeros_like(every), every)
        # Groups are alike: what the first one gets is where the others start, until they lead.
        self.ratio[1:] = ALIKE * self.ratio[0]

    def _refill(self, groups: Ints, types: Ints) -> None:
        tries = len(self.weights)
        of, kind = np.repeat(groups, tries), np.repeat(types, tries)
        value = self.value[of]
        if not self.market.allowed.all():
            value = value * self.market.allowed[kind[:, None], self.classes[of]]
        rows = FillRows(
            self.market.size[kind],
            [size[of] for size in self.sizes],
            self.left[of],
            value,
            np.tile(self.weights, (len(groups), 1)),
        )
        loads = fill_rows(rows)
        worth = (loads * value).sum(axis=1).reshape(len(groups), tries)
        best = np.arange(len(groups)) * tries + worth.argmax(axis=1)
        self.loads[groups, types] = loads[best]
        self.ratio[groups, types] = worth.max(axis=1) / self.market.cost[types]
        self.fresh[groups, types] = True

    def buy(self, least: float) -> None:
        """Launch until no group has a pattern worth more than `least` of its machine."""
        while True:
            self.ratio[:, (self.room < 1) | (self.total_room < 1)] = -1.0
            types = self.ratio.argmax(axis=1)
            groups = np.flatnonzero(self.ratio[np.arange(len(types)), types] > least)
            if not len(groups):
                return
            types = types[groups]
            fresh = self.fresh[groups, types]
            if not fresh.all():
                self._refill(*self._leaders(groups[~fresh], types[~fresh]))
            if fresh.any():
                self._take(groups[fresh], types[fresh])

    def _leaders(self, groups: Ints, types: Ints) -> tuple[Ints, Ints]:
        """Return the stale patterns that lead or nearly do: one call for several costs little more."""
        close = self.ratio[groups] >= CLOSE * self.ratio[groups, types][:, None]
        which, kinds = np.nonzero(close & ~self.fresh[groups])
        return groups[which], kinds

    def _take(self, groups: Ints, types: Ints) -> None:
        loads = self.loads[groups, types]
        held = np.divide(self.left[groups], loads, out=np.full_like(loads, np.inf), where=loads > 0)
        copies = np.floor(held).min(axis=1)
        for index, kind in enumerate(types.tolist()):
            copies[index] = max(0.0, min(copies[index], self.room[kind], self.total_room))
            self.room[kind] -= copies[index]
            self.total_room -= copies[index]
        self.left[groups] -= copies[:, None] * loads
        self.parts.append((types, copies.astype(np.int64), self.classes[groups], loads))
        self.fresh[groups] &= (self.loads[groups] <= self.left[groups][:, None]).all(axis=2)


def buy_in_groups(items: Items, market: PurchasableTypes, wanted: Floats, value: Floats) -> Purchases:
    """Return machines for `wanted`: first many groups side by side, what they leave in fewer."""
    launched = Purchases.of([])
    left = wanted.copy()
    count = -(-int(np.count_nonzero(left)) // GROUP)
    for least in (NOT_WORTH_IT, 0.0):
        classes = int(np.count_nonzero(left))
        if not classes:
            break
        used = np.bincount(launched.types, launched.copies, minlength=len(market.cost))
        beside = market._replace(room=market.room - used, total_room=market.total_room - used.sum())
        groups = _Groups(items, beside, left, value, max(1, min(count, classes)))
        groups.buy(least)
        more = Purchases.of(groups.parts)
        launched = launched.and_(more.only(more.copies > 0))
        left -= more.held(len(left))
        count = max(1, min(count // 4, int(np.count_nonzero(left)) // GROUP + 1))
    return launched


def learnt_prices(launched: Purchases, market: PurchasableTypes, value: Floats) -> Floats:
    """Move prices toward what was paid: a machine's cost is shared by its items in proportion to price."""
    worth = np.maximum(launched.worth(value), TINY)
    factor = market.cost[launched.types] / worth
    counts = launched.amounts * launched.copies[launched.owner]
    held = np.bincount(launched.classes, counts, minlength=len(value))
    paid = np.bincount(launched.classes, counts * factor[launched.owner], minlength=len(value))
    ratio = np.divide(paid, held, out=np.ones(len(value)), where=held > 0)
    learnt: Floats = value * np.clip(ratio, 0.5, 2.0) ** 0.8
    return learnt


def _given_up(launched: Purchases, market: PurchasableTypes, value: Floats) -> Bools:
    """Return the machines with the least value per dollar, as many as `GIVEN_UP` of the cost."""
    cost = market.cost[launched.types]
    worst = np.argsort(launched.worth(value) / cost, kind="stable")
    spent = np.cumsum((cost * launched.copies)[worst])
    gone: Bools = np.zeros(len(worst), dtype=bool)
    gone[worst[spent <= GIVEN_UP * spent[-1]]] = True
    return gone


def launched_again(
    launched: Purchases, items: Items, market: PurchasableTypes, value: Floats, rounds: int
) -> Purchases:
    """Give the worst used machines up and launch again for what they held, as often as `rounds`."""
    for _ in range(rounds if len(launched.types) else 0):
        gone = _given_up(launched, market, value)
        kept = launched.only(~gone)
        left = launched.only(gone).held(len(value))
        used = np.bincount(kept.types, kept.copies, minlength=len(market.cost))
        beside = market._replace(room=market.room - used, total_room=market.total_room - used.sum())
        again = kept.and_(buy_in_groups(items, beside, left, value))
        if again.rank(market) < launched.rank(market):
            launched = again
        value = learnt_prices(again, market, value)
    return launched


def fill_nodes_in_groups(bins: Bins, items: Items, wanted: Floats, value: Floats) -> Filled:
    """Serve value on the nodes; where there are many, each group of nodes sees some classes at a time."""
    classes = np.flatnonzero(wanted > 0)
    if len(bins.free) * len(classes) <= NODE_CELLS or len(classes) < 2 * NODE_GROUP:
        return fill_nodes(bins, items, wanted, value)
    filling = _NodeFilling(bins, items, wanted, value)
    for tier in np.unique(bins.tier):
        rows = np.flatnonzero(bins.tier == tier)
        filling.run(rows[np.lexsort(bins.free[rows].T[::-1])])
    if bins.growth is None or not filling.left.any():
        return Filled(filling.loads[:, :-1], filling.left)
    last = fill_nodes(bins._replace(free=filling.free), items, filling.left, value)
    return Filled(filling.loads[:, :-1] + last.loads, last.left)


class _NodeFilling:
    """Nodes and classes dealt into as many groups; each group fills a block of its nodes at the same time."""

    def __init__(self, bins: Bins, items: Items, wanted: Floats, value: Floats) -> None:
        self.allowed, self.items = bins.allowed, items
        self.free, self.left = bins.free.copy(), wanted.copy()
        self.loads = np.zeros((len(bins.free), len(wanted) + 1))  # the last column is for padding
        classes = _by_likeness(items, np.flatnonzero(wanted > 0))
        self.classes = _dealt(classes, len(classes) // NODE_GROUP, len(wanted))
        self.value = np.append(np.maximum(value, TINY), 0.0)[self.classes]
        self.sizes = [np.append(column, 0)[self.classes] for column in items.size.T]
        self.weights = _directions(items)

    def run(self, rows: Ints) -> None:
        """Fill the nodes; each meets several groups of classes, one after another."""
        count = len(self.classes)
        for shift in range(SHIFTS):
            for start in range(NODE_BLOCKS):
                block = _dealt(rows[start::NODE_BLOCKS], count, -1)
                self._fill_block(np.roll(block, shift, axis=0))

    def _fill_block(self, rows: Ints) -> None:
        left = np.append(self.left, 0.0)[self.classes]
        going = rows >= 0
        for _ in range(REFILLS):
            some_left = np.asarray(left.any(axis=1))
            group, place = np.nonzero(going & some_left[:, None])
            if not len(group):
                break
            taken = np.zeros((*rows.shape, left.shape[1]))
            taken[group, place] = self._fills(group, rows[group, place], left)
            kept = np.clip(left[:, None] - (np.cumsum(taken, axis=1) - taken), 0.0, taken)
            left -= kept.sum(axis=1)
            here, load = rows[group, place], kept[group, place]
            self.loads[here[:, None], self.classes[group]] += load
            for column, size in enumerate(self.sizes):
                self.free[here, column] -= (load.astype(np.int64) * size[group]).sum(axis=1)
            going[:] = False
            going[group, place] = (load < taken[group, place]).any(axis=1)
        self.left[self.classes[self.classes < len(self.left)]] = left[self.classes < len(self.left)]

    def _fills(self, group: Ints, rows: Ints, left: Floats) -> Floats:
        tries = len(self.weights)
        of, at = np.repeat(group, tries), np.repeat(rows, tries)
        value = self.value[of]
        if self.allowed is not None:
            value = value * np.hstack([self.allowed, self.allowed[:, :1]])[at[:, None], self.classes[of]]
        weights = np.tile(self.weights, (len(group), 1))
        filled = fill_rows(
            FillRows(self.free[at], [size[of] for size in self.sizes], left[of], value, weights)
        )
        worth = (filled * value).sum(axis=1).reshape(len(group), tries)
        best: Floats = filled[np.arange(len(group)) * tries + worth.argmax(axis=1)]
        return best


def _directions(items: Items) -> Floats:
    """Return weights of the columns: all resources alike, then each of them stressed."""
    rows = np.vstack([np.ones(items.real), np.full((items.real, items.real), 0.3) + 0.7 * np.eye(items.real)])
    return np.hstack([rows, np.zeros((len(rows), items.size.shape[1] - items.real))])[:MOST_WEIGHTINGS]


def _by_likeness(items: Items, classes: Ints) -> Ints:
    """Sort classes so that neighbours are alike: dealt out in turn, every group gets some of each sort."""
    size = items.size[classes]
    order: Ints = np.lexsort((*size.T, (size > 0).sum(axis=1)))
    return classes[order]


def _dealt(order: Ints, count: int, padding: int) -> Ints:
    """Deal `order` out to `count` rows in turn."""
    width = -(-len(order) // count)
    padded = np.concatenate([order, np.full(count * width - len(order), padding, dtype=np.int64)])
    dealt: Ints = padded.reshape(width, count).T
    return dealt


def lay_out_many(items: Items, bins: Bins, market: PurchasableTypes, wanted: Floats) -> BinLayout:
    """Serve the most of `wanted`, then pays the least."""
    useful = useful_types(items, market, wanted)
    market = market.only(useful)
    alone = start_values(items, market, np.ones(len(wanted)))  # infinite: no type can hold one
    buyable = np.isfinite(alone)
    dearest = float(market.cost.max(initial=1.0))
    value = np.where(buyable, fluid_prices(items, market, np.where(buyable, wanted, 0.0)), dearest)
    filled = _best_on_nodes(bins, items, wanted, value)
    left = np.where(buyable, filled.left, 0.0)
    launched = _buy(items, market, left) if left.any() else Purchases.of([])
    return _layout(filled, launched, market, useful)


def _best_on_nodes(bins: Bins, items: Items, wanted: Floats, price: Floats) -> Filled:
    """Fill the nodes several times; what goes there as a whole is worth less, so that other things may."""
    best = Filled(np.zeros((len(bins.free), len(wanted))), wanted)
    value, saved = price, -1.0
    for _ in range(NODE_ROUNDS if len(bins.free) else 0):
        filled = fill_nodes_in_groups(bins, items, wanted, value)
        if float(((wanted - filled.left) * price).sum()) > saved:
            best, saved = filled, float(((wanted - filled.left) * price).sum())
        if not filled.left.any():
            break
        value = np.where(filled.left > 0, np.minimum(value * 1.11, price), value * 0.8)
    return best


def _buy(items: Items, market: PurchasableTypes, left: Floats) -> Purchases:
    """Launch several times at better and better prices, and improve the best purchase."""
    value = fluid_prices(items, market, left)
    found: list[tuple[Purchases, Floats]] = []
    for _ in range(PASSES):
        launched = buy_in_groups(items, market, left, value)
        value = learnt_prices(launched, market, value)
        found.append((launched, value))
    launched, value = min(found, key=lambda pair: pair[0].rank(market))
    rounds = int(np.clip(ROUND_CLASSES // np.count_nonzero(left), FEWEST_ROUNDS, MOST_ROUNDS))
    return launched_again(launched, items, market, value, rounds)


def _layout(filled: Filled, launched: Purchases, market: PurchasableTypes, useful: Ints) -> BinLayout:
    machines = []
    starts = np.searchsorted(launched.owner, np.arange(len(launched.types) + 1))
    kinds, all_copies = launched.types.tolist(), launched.copies.tolist()
    for index, (kind, copies) in enumerate(zip(kinds, all_copies, strict=True)):
        load = np.zeros(len(filled.left))
        part = slice(starts[index], starts[index + 1])
        load[launched.classes[part]] = launched.amounts[part]
        machines.append(MachinePurchase(int(useful[kind]), load, copies))
    unserved = filled.left - launched.held(len(filled.left))
    return BinLayout(filled.loads, tuple(machines), unserved, launched.cost(market))

"""Lay out one kind of demand, gangs relaxed to their bundles: nodes first, then machines, in rounds.

Called by `inventory`. Each round fills the nodes at the current prices, buys for the rest and learns better
prices from that purchase; the best plan seen is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from muster.cluster.planner.cost.column_generation import (
    UNSERVED,
    Fractional,
    generate,
    start_values,
    weightings_for,
)
from muster.cluster.planner.cost.knapsack import TINY, KnapsackItems, best_fill
from muster.cluster.planner.cost.problem import (
    BinLayout,
    Bins,
    Bools,
    Floats,
    Ints,
    Items,
    MachinePurchase,
    PurchasableTypes,
    counts_that_fit,
    load_size,
)

LARGEST = 2.0**63 * (1 - 2.0**-40)  # below the end of int64 by more than a sum in float64 can be wrong
BLOCKS = 4
REFILLS = 12


class Filled(NamedTuple):
    """Has the loads per bin, and the demand that is left."""

    loads: Floats  # bins x classes
    left: Floats


def fill_nodes(bins: Bins, items: Items, wanted: Floats, value: Floats) -> Filled:
    """Serve as much value as possible on the bins; those that can grow do so for what is left then."""
    filled = _fill_as_they_are(bins, items, wanted, value)
    if bins.growth is None or not filled.left.any():
        return filled
    rows = np.flatnonzero(bins.growth.any(axis=1))
    free = bins.free[rows] - load_size(filled.loads[rows], items) + bins.growth[rows]
    allowed = None if bins.allowed is None else bins.allowed[rows]
    more = _fill_as_they_are(Bins(free, allowed, bins.tier[rows]), items, filled.left, value)
    filled.loads[rows] += more.loads
    return Filled(filled.loads, more.left)


def _fill_as_they_are(bins: Bins, items: Items, wanted: Floats, value: Floats) -> Filled:
    loads = np.zeros((len(bins.free), len(wanted)))
    left = wanted.copy()
    free = bins.free.copy()
    for block in _blocks(bins):
        _fill_block(block, Bins(free, bins.allowed, bins.tier), items, (loads, left), value)
    return Filled(loads, left)


def _blocks(bins: Bins) -> list[Ints]:
    """Return interleaved slices of the bins by tier, the fullest first: so that free nodes stay free."""
    blocks: list[Ints] = []
    for tier in np.unique(bins.tier):
        rows = np.flatnonzero(bins.tier == tier)
        ranked = rows[np.lexsort(bins.free[rows].T[::-1])]
        count = BLOCKS if len(rows) >= 8 * BLOCKS else 1
        blocks += [ranked[start::count] for start in range(count)]
    return [block for block in blocks if len(block)]


def _fill_block(rows: Ints, bins: Bins, items: Items, tally: tuple[Floats, Floats], value: Floats) -> None:
    loads, left = tally
    for _ in range(REFILLS):
        if not len(rows) or not left.any():
            return
        # Computes one fill per distinct bin.
        free = bins.free[rows]
        allowed = None if bins.allowed is None else bins.allowed[rows]
        first, same = _distinct_rows(free if allowed is None else np.hstack([free, allowed]))
        weights = weightings_for(items, len(first))
        some = None if allowed is None else allowed[first]
        filled: Floats = best_fill(free[first], items, some, KnapsackItems(left, value), weights)[same]
        taken = filled
        before = np.cumsum(taken, axis=0) - taken
        kept = np.clip(left - before, 0.0, taken)
        loads[rows] += kept
        bins.free[rows] -= load_size(kept, items)
        left -= kept.sum(axis=0)
        rows = rows[(kept < taken).any(axis=1)]


def _distinct_rows(table: Ints) -> tuple[list[int], list[int]]:
    """Return the first row of each kind, and the kind of every row."""
    data, width = table.tobytes(), table.itemsize * table.shape[1]
    kinds: dict[bytes, int] = {}
    first: list[int] = []
    same: list[int] = []
    for index in range(len(table)):
        kind = kinds.setdefault(data[index * width : (index + 1) * width], len(first))
        if kind == len(first):
            first.append(index)
        same.append(kind)
    return first, same


class PurchaseState:
    """Tracks what is still wanted and what may still be launched."""

    def __init__(self, items: Items, market: PurchasableTypes, wanted: Floats) -> None:
        self.items, self.market = items, market
        self.left = wanted.copy()
        self.room = market.room.copy()
        self.total_room = market.total_room
        self.launched: list[MachinePurchase] = []

    def buy(self, type_: int, load: Floats, most: float = np.inf) -> int:
        """Launch as many copies as are wanted whole and there is room for; returns how many."""
        held = load > 0
        wanted = np.floor(self.left[held] / load[held]).min(initial=np.inf)
        copies = min(most, self.room[type_], self.total_room, wanted)
        if not held.any() or copies < 1:
            return 0
        self.left -= copies * load
        self.room[type_] -= copies
        self.total_room -= copies
        self.launched.append(MachinePurchase(type_, load, int(copies)))
        return int(copies)

    def undo(self, keep: int) -> None:
        """Take back every purchase after the first `keep`."""
        for purchase in self.launched[keep:]:
            self.left += purchase.copies * purchase.load
            self.room[purchase.type] += purchase.copies
            self.total_room += purchase.copies
        del self.launched[keep:]

    @property
    def spent(self) -> float:
        return float(sum(self.market.cost[p.type] * p.copies for p in self.launched))

    def open_types(self) -> Bools:
        is_open: Bools = (self.room >= 1) & (self.total_room >= 1)
        return is_open

    def last_machine(self) -> int | None:
        """Return the cheapest type of which one machine holds all that is still wanted."""
        used = self.left > 0
        left, size = self.left[used, None], self.items.size[used]
        if (left * size).sum(axis=0).max(initial=0.0) > LARGEST:  # not in int64, and on no machine either
            return None
        need = (left.astype(np.int64) * size).sum(axis=0)
        able = self.open_types() & (self.market.size >= need).all(axis=1)
        able &= self.market.allowed[:, used].all(axis=1)
        types = np.flatnonzero(able)
        return int(types[self.market.cost[types].argmin()]) if len(types) else None


def whole_machines(purchase: PurchaseState, plan: Fractional, up_from: float) -> None:
    """Launch each pattern in whole numbers, most used first; fractions >= `up_from` are rounded up."""
    for index in np.lexsort((np.arange(len(plan.amounts)), -plan.amounts)):
        copies = float(np.floor(plan.amounts[index] + 1.0 - up_from))
        while copies >= 1:
            launched = purchase.buy(
                int(plan.types[index]), np.minimum(plan.loads[index], purchase.left), copies
            )
            copies = copies - launched if launched else 0.0


def buy_greedily(purchase: PurchaseState, value: Floats, rent: Floats) -> None:
    """Launch the best value per dollar first, until nothing is wanted or nothing can be launched.

    Whenever one machine could hold all the rest, that end is remembered; the cheapest end is taken.
    """
    greedy = _Greedy(purchase, value, rent)
    best: tuple[float, int, int] | None = None  # spent in all, purchases before the end, type of the last
    while purchase.left.any():
        last = purchase.last_machine()
        if last is not None:
            end = (purchase.spent + float(purchase.market.cost[last]), len(purchase.launched), last)
            best = end if best is None or end < best else best
        if not greedy.step():
            break
    if best is not None and (purchase.left.any() or best[0] < purchase.spent):
        purchase.undo(best[1])
        purchase.buy(best[2], purchase.left.copy(), 1)


class _Greedy:
    """One pattern per type, filled again only when less than the pattern is wanted."""

    def __init__(self, purchase: PurchaseState, value: Floats, rent: Floats) -> None:
        self.purchase, self.value = purchase, value
        self.cost = purchase.market.cost + rent
        self.weights = weightings_for(purchase.items, len(self.cost))
        self.loads = np.zeros((len(self.cost), len(purchase.left)))
        self.stale: Bools = np.ones(len(self.cost), dtype=bool)

    def step(self) -> bool:
        purchase, market = self.purchase, self.purchase.market
        is_open = purchase.open_types()
        rows = np.flatnonzero(self.stale & is_open)
        if len(rows):
            knapsack = KnapsackItems(purchase.left, self.value)
            allowed = market.allowed[rows]
            self.loads[rows] = best_fill(market.size[rows], purchase.items, allowed, knapsack, self.weights)
        worth = np.einsum("ij,j->i", self.loads, np.maximum(self.value, TINY))
        ratio = np.where(is_open, worth / self.cost, 0.0)
        best = int(ratio.argmax()) if len(ratio) else -1
        if best < 0 or ratio[best] <= 0 or not purchase.buy(best, self.loads[best].copy()):
            return False
        self.stale = np.asarray((self.loads > purchase.left).any(axis=1))
        return True


LOOSE = 32  # machines that may be given up, the worst used ones
MOST_TRIES = 14
_SEARCH_CELLS = 60_000  # types x classes, over all tries
MOST_BINS = 300  # nodes whose left-over room is considered
WORTH_IT = 1.002  # over the relaxed cost; nearer than this there is nothing to gain


class _Machines(NamedTuple):
    types: Ints
    loads: Floats


def improve(
    layout: BinLayout, bins: Bins, items: Items, market: PurchasableTypes, plan: Fractional
) -> BinLayout:
    """Look for a cheaper layout that serves the same."""
    relaxed = float((market.cost[plan.types] * plan.amounts).sum())
    if not layout.launched or layout.cost <= WORTH_IT * relaxed:
        return layout
    search = _Search(layout, bins, items, market, plan)
    search.run()
    return search.result()


class _Search:
    def __init__(
        self, layout: BinLayout, bins: Bins, items: Items, market: PurchasableTypes, plan: Fractional
    ) -> None:
        self.layout, self.items, self.market, self.plan = layout, items, market, plan
        self.fixed, self.loose = _split(layout.launched, market, plan.value)
        self.loads = layout.loads.copy()
        few = bins.growth is None and len(bins.free) <= MOST_BINS
        self.rows = np.arange(len(bins.free)) if few else np.zeros(0, dtype=np.int64)
        self.bins = bins

    def run(self) -> None:
        tries = _windows()
        cells = self.market.allowed.size
        for _ in range(int(np.clip(_SEARCH_CELLS // cells, 2, MOST_TRIES))):
            size, offset = next(tries)
            # The value held per dollar.
            use: Floats = (
                np.einsum("ij,j->i", self.loose.loads, self.plan.value) / self.market.cost[self.loose.types]
            )
            worst = np.argsort(use, kind="stable")
            chosen = worst[offset : offset + size]
            if len(chosen) and self._do_without(chosen):
                tries = _windows()

    def _do_without(self, chosen: Ints) -> bool:
        keep = np.ones(len(self.loose.types), dtype=bool)
        keep[chosen] = False
        kept = _Machines(self.loose.types[keep], self.loose.loads[keep])
        filled = fill_nodes(
            self._spare_room(kept), self.items, self.loose.loads[chosen].sum(axis=0), self.plan.value
        )
        purchase = PurchaseState(self.items, self._market_beside(kept), filled.left)
        buy_greedily(purchase, self.plan.value, self.plan.rent)
        if purchase.left.any() or purchase.spent >= self.market.cost[self.loose.types[chosen]].sum() - 1e-9:
            return False
        self.loads[self.rows] += filled.loads[: len(self.rows)]
        grown = _Machines(kept.types, kept.loads + filled.loads[len(self.rows) :])
        self.loose = _joined(grown, purchase.launched)
        return True

    def _spare_room(self, kept: _Machines) -> Bins:
        nodes = self.bins.free[self.rows] - load_size(self.loads[self.rows], self.items)
        machines = self.market.size[kept.types] - load_size(kept.loads, self.items)
        at_nodes: Bools = np.ones((len(self.rows), self.loads.shape[1]), dtype=bool)
        if self.bins.allowed is not None:
            at_nodes = self.bins.allowed[self.rows]
        allowed = np.vstack([at_nodes, self.market.allowed[kept.types]])
        return Bins(np.vstack([nodes, machines]), allowed, np.zeros(len(allowed), dtype=np.int64))

    def _market_beside(self, kept: _Machines) -> PurchasableTypes:
        room = self.market.room - np.bincount(kept.types, minlength=len(self.market.room))
        total = self.market.total_room - len(kept.types)
        for purchase in self.fixed:
            room[purchase.type] -= purchase.copies
            total -= purchase.copies
        return self.market._replace(room=room, total_room=total)

    def result(self) -> BinLayout:
        pairs = zip(self.loose.types.tolist(), self.loose.loads, strict=True)
        launched = (*self.fixed, *(MachinePurchase(type_, load, 1) for type_, load in pairs))
        cost = float(sum(self.market.cost[p.type] * p.copies for p in launched))
        return BinLayout(self.loads, launched, self.layout.unserved, cost)


def _windows() -> Iterator[tuple[int, int]]:
    """Yield how many machines to give up, and how many of the worst to skip; small steps first."""
    while True:
        for size in (1, 2, 3, 5, 8):
            for offset in (0, size, 2 * size):
                yield size, offset


def _split(
    launched: tuple[MachinePurchase, ...], market: PurchasableTypes, value: Floats
) -> tuple[list[MachinePurchase], _Machines]:
    """Return the worst used machines one by one, the others as they were launched."""
    ranked = sorted(launched, key=lambda p: float((p.load * value).sum()) / float(market.cost[p.type]))
    fixed: list[MachinePurchase] = []
    loose: list[MachinePurchase] = []
    left = LOOSE
    for purchase in ranked:
        taken = min(left, purchase.copies)
        left -= taken
        loose += [purchase._replace(copies=1)] * taken
        if taken < purchase.copies:
            fixed.append(purchase._replace(copies=purchase.copies - taken))
    return fixed, _joined(_Machines(np.zeros(0, dtype=np.int64), np.zeros((0, len(value)))), loose)


def _joined(machines: _Machines, launched: list[MachinePurchase]) -> _Machines:
    types = [p.type for p in launched for _ in range(p.copies)]
    loads = [p.load for p in launched for _ in range(p.copies)]
    if not types:
        return machines
    return _Machines(
        np.concatenate([machines.types, np.array(types, dtype=np.int64)]), np.vstack([machines.loads, *loads])
    )


MOST_ROUNDS = 10
FEWEST_ROUNDS = 3
ITEMS_PER_ROUND = 40
ROUND_UP_FROM = (1.0 - 1e-6, 0.5)  # fractions of a machine: never up, then from one half on
_ROUND_CELLS = 60_000  # bins x classes, over all rounds


def lay_out(items: Items, bins: Bins, market: PurchasableTypes, wanted: Floats) -> BinLayout:
    """Serve the most of `wanted`, then pays the least."""
    useful = useful_types(items, market, wanted)
    market = market.only(useful)
    prices = start_values(items, market, wanted)
    dearest = float(market.cost.max(initial=1.0))
    prices = np.where(np.isfinite(prices), prices, UNSERVED * dearest)  # only nodes can hold these
    best: tuple[BinLayout, Fractional] | None = None
    plan: Fractional | None = None
    for _ in range(_rounds(bins, wanted)):
        layout, plan, learnt = _one_round(items, bins, market, wanted, (prices, plan))
        if best is None or _rank(layout) < _rank(best[0]):
            best = (layout, plan)
        if not layout.launched and not layout.unserved.any():
            break
        prices = learnt
    assert best is not None
    layout = improve(best[0], bins, items, market, best[1])
    return layout._replace(launched=tuple(p._replace(type=int(useful[p.type])) for p in layout.launched))


def _rounds(bins: Bins, wanted: Floats) -> int:
    """Return one when nothing can be learnt, few when there is little to place or the problem is large."""
    cells = len(bins.free) * len(wanted)
    if not cells:
        return 1
    useful = min(MOST_ROUNDS, FEWEST_ROUNDS + int(wanted.sum()) // ITEMS_PER_ROUND)
    return int(np.clip(_ROUND_CELLS // cells, 2, useful))


def _rank(layout: BinLayout) -> tuple[float, float]:
    return (float(layout.unserved.sum()), round(layout.cost, 9))


def _one_round(
    items: Items,
    bins: Bins,
    market: PurchasableTypes,
    wanted: Floats,
    known: tuple[Floats, Fractional | None],
) -> tuple[BinLayout, Fractional, Floats]:
    prices, earlier = known
    filled = fill_nodes(bins, items, wanted, prices)
    alone = start_values(items, market, np.ones(len(items.size)))  # infinite: no type can hold one
    buyable = np.where(np.isfinite(alone), filled.left, 0.0)
    plan = generate(items, market, buyable, prices, earlier)
    layouts = []
    for up_from in ROUND_UP_FROM:
        purchase = PurchaseState(items, market, buyable)
        whole_machines(purchase, plan, up_from)
        buy_greedily(purchase, plan.value, plan.rent)
        unserved = filled.left - buyable + purchase.left
        layouts.append(BinLayout(filled.loads, tuple(purchase.launched), unserved, purchase.spent))
    # Moves prices toward what was paid; an item that fits wholly on nodes is worth less there.
    target = np.where(filled.left > 0, plan.value, prices * 0.7)
    learned = np.where(wanted > 0, np.sqrt(np.maximum(prices, 1e-12) * np.maximum(target, 1e-12)), prices)
    return min(layouts, key=_rank), plan, learned


def useful_types(items: Items, market: PurchasableTypes, wanted: Floats) -> Ints:
    """Return types on sale, without those that another type replaces: as large, as open, no dearer."""
    alone = np.minimum(counts_that_fit(market.size, items.size), np.maximum(wanted, 1.0))
    alone[~market.allowed] = 0
    machines = np.where(alone > 0, np.ceil(wanted / np.maximum(alone, 1.0)), 0.0).sum(axis=1)
    plenty = market.room >= machines
    useful = (market.room >= 1) & (market.total_room >= 1) & alone.any(axis=1)
    for index in np.flatnonzero(useful):
        better = useful & plenty & (market.cost <= market.cost[index])
        better[index] = False
        better &= (market.size >= market.size[index]).all(axis=1)
        better &= (market.allowed >= market.allowed[index]).all(axis=1)
        useful[index] = not better.any()
    return np.flatnonzero(useful)

"""One book of the problem, gangs relaxed to their bundles: nodes first, then machines, improved in rounds.

Called by `engine`. Each round fills the nodes at the current prices, buys for the rest and learns better
prices from that purchase; the best plan seen is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.column_generation import Fractional, generate, start_values
from muster.cluster.binpack.cost.nodes import Filled, fill_nodes
from muster.cluster.binpack.cost.problem import (
    Bins,
    Bools,
    Floats,
    Ints,
    Items,
    Layout,
    Market,
    Purchase,
    counts_that_fit,
    load_size,
)
from muster.cluster.binpack.cost.rounding import Till, buy_greedily, whole_machines

LOOSE = 32  # machines that may be given up, the worst used ones
MOST_TRIES = 14
_SEARCH_CELLS = 60_000  # types x classes, over all tries
MOST_BINS = 300  # nodes whose left-over room is looked at
WORTH_IT = 1.002  # over the relaxed cost; nearer than this there is nothing to gain


class _Machines(NamedTuple):
    types: Ints
    loads: Floats


def improve(layout: Layout, bins: Bins, items: Items, market: Market, plan: Fractional) -> Layout:
    """The same service, perhaps cheaper."""
    relaxed = float((market.cost[plan.types] * plan.amounts).sum())
    if not layout.bought or layout.cost <= WORTH_IT * relaxed:
        return layout
    search = _Search(layout, bins, items, market, plan)
    search.run()
    return search.result()


class _Search:
    def __init__(self, layout: Layout, bins: Bins, items: Items, market: Market, plan: Fractional) -> None:
        self.layout, self.items, self.market, self.plan = layout, items, market, plan
        self.fixed, self.loose = _split(layout.bought, market, plan.value)
        self.loads = layout.loads.copy()
        few = bins.growth is None and len(bins.free) <= MOST_BINS
        self.rows = np.arange(len(bins.free)) if few else np.zeros(0, dtype=np.int64)
        self.bins = bins

    def run(self) -> None:
        tries = _windows()
        cells = self.market.allowed.size
        for _ in range(int(np.clip(_SEARCH_CELLS // cells, 2, MOST_TRIES))):
            size, offset = next(tries)
            worst = np.argsort(_use(self.loose, self.market, self.plan.value), kind="stable")
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
        till = Till(self.items, self._market_beside(kept), filled.left)
        buy_greedily(till, self.plan.value, self.plan.rent)
        if till.left.any() or till.spent >= self.market.cost[self.loose.types[chosen]].sum() - 1e-9:
            return False
        self.loads[self.rows] += filled.loads[: len(self.rows)]
        grown = _Machines(kept.types, kept.loads + filled.loads[len(self.rows) :])
        self.loose = _joined(grown, till.bought)
        return True

    def _spare_room(self, kept: _Machines) -> Bins:
        nodes = self.bins.free[self.rows] - load_size(self.loads[self.rows], self.items)
        machines = self.market.size[kept.types] - load_size(kept.loads, self.items)
        at_nodes: Bools = np.ones((len(self.rows), self.loads.shape[1]), dtype=bool)
        if self.bins.allowed is not None:
            at_nodes = self.bins.allowed[self.rows]
        allowed = np.vstack([at_nodes, self.market.allowed[kept.types]])
        return Bins(np.vstack([nodes, machines]), allowed, np.zeros(len(allowed), dtype=np.int64))

    def _market_beside(self, kept: _Machines) -> Market:
        room = self.market.room - np.bincount(kept.types, minlength=len(self.market.room))
        total = self.market.total_room - len(kept.types)
        for purchase in self.fixed:
            room[purchase.type] -= purchase.copies
            total -= purchase.copies
        return self.market._replace(room=room, total_room=total)

    def result(self) -> Layout:
        pairs = zip(self.loose.types.tolist(), self.loose.loads, strict=True)
        bought = (*self.fixed, *(Purchase(type_, load, 1) for type_, load in pairs))
        cost = float(sum(self.market.cost[p.type] * p.copies for p in bought))
        return Layout(self.loads, bought, self.layout.unserved, cost)


def _windows() -> Iterator[tuple[int, int]]:
    """How many to give up, and how many of the worst to leave alone: small steps first, then for ever."""
    while True:
        for size in (1, 2, 3, 5, 8):
            for offset in (0, size, 2 * size):
                yield size, offset


def _use(machines: _Machines, market: Market, value: Floats) -> Floats:
    """Value held per dollar."""
    use: Floats = np.einsum("ij,j->i", machines.loads, value) / market.cost[machines.types]
    return use


def _split(bought: tuple[Purchase, ...], market: Market, value: Floats) -> tuple[list[Purchase], _Machines]:
    """The worst used machines one by one, the others as they were bought."""
    ranked = sorted(bought, key=lambda p: float((p.load * value).sum()) / float(market.cost[p.type]))
    fixed: list[Purchase] = []
    loose: list[Purchase] = []
    left = LOOSE
    for purchase in ranked:
        taken = min(left, purchase.copies)
        left -= taken
        loose += [purchase._replace(copies=1)] * taken
        if taken < purchase.copies:
            fixed.append(purchase._replace(copies=purchase.copies - taken))
    return fixed, _joined(_Machines(np.zeros(0, dtype=np.int64), np.zeros((0, len(value)))), loose)


def _joined(machines: _Machines, bought: list[Purchase]) -> _Machines:
    types = [p.type for p in bought for _ in range(p.copies)]
    loads = [p.load for p in bought for _ in range(p.copies)]
    if not types:
        return machines
    return _Machines(
        np.concatenate([machines.types, np.array(types, dtype=np.int64)]), np.vstack([machines.loads, *loads])
    )


MOST_ROUNDS = 10
FEWEST_ROUNDS = 3
ITEMS_PER_ROUND = 40
ROUND_UP_FROM = (1.0 - 1e-6, 0.5)  # parts of a machine: never, then as in school
_ROUND_CELLS = 60_000  # bins x classes, over all rounds


def lay_out(items: Items, bins: Bins, market: Market, wanted: Floats) -> Layout:
    """Serve the most of `wanted`, then pay the least."""
    useful = _useful_types(items, market, wanted)
    market = market.only(useful)
    prices = start_values(items, market, wanted)
    dearest = float(market.cost.max(initial=1.0))
    prices = np.where(np.isfinite(prices), prices, dearest)  # only nodes can hold these
    best: tuple[Layout, Fractional] | None = None
    plan: Fractional | None = None
    for _ in range(_rounds(bins, wanted)):
        layout, plan, learnt = _one_round(items, bins, market, wanted, (prices, plan))
        if best is None or _rank(layout) < _rank(best[0]):
            best = (layout, plan)
        if not layout.bought and not layout.unserved.any():
            break
        prices = learnt
    assert best is not None
    layout = improve(best[0], bins, items, market, best[1])
    return layout._replace(bought=tuple(p._replace(type=int(useful[p.type])) for p in layout.bought))


def _rounds(bins: Bins, wanted: Floats) -> int:
    """One when nothing can be learnt, few when there is little to place, and fewer the larger the problem."""
    cells = len(bins.free) * len(wanted)
    if not cells:
        return 1
    useful = min(MOST_ROUNDS, FEWEST_ROUNDS + int(wanted.sum()) // ITEMS_PER_ROUND)
    return int(np.clip(_ROUND_CELLS // cells, 2, useful))


def _rank(layout: Layout) -> tuple[float, float]:
    return (float(layout.unserved.sum()), round(layout.cost, 9))


def _one_round(
    items: Items, bins: Bins, market: Market, wanted: Floats, known: tuple[Floats, Fractional | None]
) -> tuple[Layout, Fractional, Floats]:
    prices, earlier = known
    filled = fill_nodes(bins, items, wanted, prices)
    buyable = np.where(_can_hold(items, market), filled.left, 0.0)
    plan = generate(items, market, buyable, prices, earlier)
    layouts = []
    for up_from in ROUND_UP_FROM:
        till = Till(items, market, buyable)
        whole_machines(till, plan, up_from)
        buy_greedily(till, plan.value, plan.rent)
        layouts.append(_layout(filled, till, buyable))
    return min(layouts, key=_rank), plan, _learn(prices, plan.value, wanted, filled)


def _learn(old: Floats, new: Floats, wanted: Floats, filled: Filled) -> Floats:
    """Toward what was paid; an item that fits wholly on nodes is worth less there than it was thought."""
    target = np.where(filled.left > 0, new, old * 0.7)
    return np.where(wanted > 0, np.sqrt(np.maximum(old, 1e-12) * np.maximum(target, 1e-12)), old)


def _layout(filled: Filled, till: Till, buyable: Floats) -> Layout:
    unserved = filled.left - buyable + till.left
    cost = float(sum(till.market.cost[p.type] * p.copies for p in till.bought))
    return Layout(filled.loads, tuple(till.bought), unserved, cost)


def _can_hold(items: Items, market: Market) -> Floats:
    prices = start_values(items, market, np.ones(len(items.size)))
    return np.isfinite(prices)


def _useful_types(items: Items, market: Market, wanted: Floats) -> Ints:
    """Types on sale, without those of which another is as large, as open, no dearer and there is enough."""
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

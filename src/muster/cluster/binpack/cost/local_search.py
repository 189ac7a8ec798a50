"""Improve the end of a plan: give up a few of the worst used machines and try to do without some of them.

Called by `book` on its best plan. What they held first goes into room that others have left, the rest is
bought anew; the change is kept when it is cheaper. A fixed number of tries, so the answer is repeatable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.column_generation import Fractional
from muster.cluster.binpack.cost.nodes import fill_nodes
from muster.cluster.binpack.cost.problem import (
    Bins,
    Bools,
    Floats,
    Ints,
    Items,
    Layout,
    Market,
    Purchase,
    load_size,
)
from muster.cluster.binpack.cost.rounding import Till, buy_greedily

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

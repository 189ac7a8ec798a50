"""From the relaxed purchase to whole machines, and the greedy that buys for what is left over.

Called by `book` and `tail`. Takes prices as given; never looks at existing nodes.
"""

from __future__ import annotations

import numpy as np

from muster.cluster.binpack.cost.arrays import Bools, Floats, Items, Market, Purchase
from muster.cluster.binpack.cost.columns import Fractional, weightings_for
from muster.cluster.binpack.cost.fill import Wish, best_fill


class Till:
    """What is still wanted and what may still be bought."""

    def __init__(self, items: Items, market: Market, wanted: Floats) -> None:
        self.items, self.market = items, market
        self.left = wanted.copy()
        self.room = market.room.copy()
        self.total_room = market.total_room
        self.bought: list[Purchase] = []

    def buy(self, type_: int, load: Floats, most: float = np.inf) -> bool:
        """As many copies as are wanted whole and there is room for; False when that is none."""
        held = load > 0
        copies = min(
            most,
            self.room[type_],
            self.total_room,
            np.floor(self.left[held] / load[held]).min(initial=np.inf),
        )
        if not held.any() or copies < 1:
            return False
        self.left -= copies * load
        self.room[type_] -= copies
        self.total_room -= copies
        self.bought.append(Purchase(type_, load, int(copies)))
        return True

    def open_types(self) -> Bools:
        is_open: Bools = (self.room >= 1) & (self.total_room >= 1)
        return is_open


def whole_machines(till: Till, plan: Fractional) -> None:
    """The whole part of every pattern of the relaxed purchase, most used first."""
    for index in np.lexsort((np.arange(len(plan.amounts)), -plan.amounts)):
        copies = float(np.floor(plan.amounts[index] + 1e-6))
        if copies >= 1:
            load = np.minimum(plan.loads[index], till.left)
            till.buy(int(plan.types[index]), load, copies)


def buy_greedily(till: Till, value: Floats, rent: Floats) -> None:
    """Best value per dollar first, until nothing is wanted or nothing can be bought."""
    items, market = till.items, till.market
    weights = weightings_for(items, len(market.cost))
    cost = market.cost + rent
    loads = np.zeros((len(cost), len(till.left)))
    stale = np.ones(len(cost), dtype=bool)
    while till.left.any():
        stale &= till.open_types()
        rows = np.flatnonzero(stale)
        if len(rows):
            wish = Wish(till.left, value)
            loads[rows] = best_fill(market.size[rows], items, market.allowed[rows], wish, weights)
        ratio = np.where(till.open_types(), np.einsum("ij,j->i", loads, value) / cost, 0.0)
        best = int(ratio.argmax())
        if ratio[best] <= 0 or not till.buy(best, loads[best].copy()):
            return
        stale = (loads > till.left).any(axis=1)

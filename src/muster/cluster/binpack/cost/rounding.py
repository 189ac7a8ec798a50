"""From the relaxed purchase to whole machines, and the greedy that buys for what is left over.

Called by `book` and `tail`. Takes prices as given; never looks at existing nodes.
"""

from __future__ import annotations

import numpy as np

from muster.cluster.binpack.cost.column_generation import Fractional, weightings_for
from muster.cluster.binpack.cost.knapsack import TINY, Wish, best_fill
from muster.cluster.binpack.cost.problem import Bools, Floats, Items, Market, Purchase


class Till:
    """What is still wanted and what may still be bought."""

    def __init__(self, items: Items, market: Market, wanted: Floats) -> None:
        self.items, self.market = items, market
        self.left = wanted.copy()
        self.room = market.room.copy()
        self.total_room = market.total_room
        self.bought: list[Purchase] = []

    def buy(self, type_: int, load: Floats, most: float = np.inf) -> int:
        """As many copies as are wanted whole and there is room for; returns how many."""
        held = load > 0
        wanted = np.floor(self.left[held] / load[held]).min(initial=np.inf)
        copies = min(most, self.room[type_], self.total_room, wanted)
        if not held.any() or copies < 1:
            return 0
        self.left -= copies * load
        self.room[type_] -= copies
        self.total_room -= copies
        self.bought.append(Purchase(type_, load, int(copies)))
        return int(copies)

    def undo(self, keep: int) -> None:
        """Take back every purchase after the first `keep`."""
        for purchase in self.bought[keep:]:
            self.left += purchase.copies * purchase.load
            self.room[purchase.type] += purchase.copies
            self.total_room += purchase.copies
        del self.bought[keep:]

    @property
    def spent(self) -> float:
        return float(sum(self.market.cost[p.type] * p.copies for p in self.bought))

    def open_types(self) -> Bools:
        is_open: Bools = (self.room >= 1) & (self.total_room >= 1)
        return is_open

    def last_machine(self) -> int | None:
        """The cheapest type of which one machine holds all that is still wanted."""
        used = self.left > 0
        need = (self.left[used, None] * self.items.size[used]).sum(axis=0)
        able = self.open_types() & (self.market.size >= need).all(axis=1)
        able &= self.market.allowed[:, used].all(axis=1)
        types = np.flatnonzero(able)
        return int(types[self.market.cost[types].argmin()]) if len(types) else None


def whole_machines(till: Till, plan: Fractional, up_from: float) -> None:
    """Each pattern of the relaxed purchase in whole numbers, most used first; parts >= `up_from` go up."""
    for index in np.lexsort((np.arange(len(plan.amounts)), -plan.amounts)):
        copies = float(np.floor(plan.amounts[index] + 1.0 - up_from))
        while copies >= 1:
            bought = till.buy(int(plan.types[index]), np.minimum(plan.loads[index], till.left), copies)
            copies = copies - bought if bought else 0.0


def buy_greedily(till: Till, value: Floats, rent: Floats) -> None:
    """Best value per dollar first, until nothing is wanted or nothing can be bought.

    Whenever one machine could hold all the rest, that end is remembered; the cheapest end is taken.
    """
    greedy = _Greedy(till, value, rent)
    best: tuple[float, int, int] | None = None  # spent in all, purchases before the end, type of the last
    while till.left.any():
        last = till.last_machine()
        if last is not None:
            end = (till.spent + float(till.market.cost[last]), len(till.bought), last)
            best = end if best is None or end < best else best
        if not greedy.step():
            break
    if best is not None and (till.left.any() or best[0] < till.spent):
        till.undo(best[1])
        till.buy(best[2], till.left.copy(), 1)


class _Greedy:
    """One pattern per type, filled anew only when the demand no longer has it."""

    def __init__(self, till: Till, value: Floats, rent: Floats) -> None:
        self.till, self.value = till, value
        self.cost = till.market.cost + rent
        self.weights = weightings_for(till.items, len(self.cost))
        self.loads = np.zeros((len(self.cost), len(till.left)))
        self.stale: Bools = np.ones(len(self.cost), dtype=bool)

    def step(self) -> bool:
        till, market = self.till, self.till.market
        is_open = till.open_types()
        rows = np.flatnonzero(self.stale & is_open)
        if len(rows):
            wish = Wish(till.left, self.value)
            allowed = market.allowed[rows]
            self.loads[rows] = best_fill(market.size[rows], till.items, allowed, wish, self.weights)
        worth = np.einsum("ij,j->i", self.loads, np.maximum(self.value, TINY))
        ratio = np.where(is_open, worth / self.cost, 0.0)
        best = int(ratio.argmax()) if len(ratio) else -1
        if best < 0 or ratio[best] <= 0 or not till.buy(best, self.loads[best].copy()):
            return False
        self.stale = np.asarray((self.loads > till.left).any(axis=1))
        return True

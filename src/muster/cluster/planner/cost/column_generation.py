"""Find how often to buy each way of filling a machine, as fractions, and what items are worth.

Called by `layout`. The master problem picks among known patterns; its duals price the items; a fill at those
prices gives new patterns, until none is worth more than its machine. Leaving an item unserved costs more
than any machine, so the most is served first. Budgets are counts, never seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.cluster.planner.cost.knapsack import TINY, KnapsackItems, best_fill, fill, weightings
from muster.cluster.planner.cost.problem import Bools, Floats, Ints, Items, PurchasableTypes, counts_that_fit

EPSILON = 1e-9
REFACTOR_EVERY = 250
SHORT_LIST = 24  # columns tried between two passes over all of them


class MasterProblem:
    """The linear program over the known patterns.

    Minimizes cost·x with A x >= rhs in the first `cover` rows and <= rhs in the others, x >= 0.
    """

    def __init__(self, rhs: Floats, cover: int, unserved_cost: float) -> None:
        rows = len(rhs)
        # A small perturbation of the right-hand side keeps degenerate bases from cycling.
        perturbation = 1e-10 * max(float(rhs.max(initial=1.0)), 1.0)
        self._rhs = rhs + perturbation * (1.0 + np.arange(rows) / max(rows, 1))
        self.rows = rows
        self.own = rows + cover  # columns before this one are slack, not patterns
        # Columns 0..rows-1 are the first basis: unserved items and unused room; then surplus.
        self._columns = np.vstack(
            [np.eye(rows), -np.eye(rows)[:cover]]
        )  # one row per column: rows are cheap to read
        self._cost = np.concatenate([np.full(cover, unserved_cost), np.zeros(rows - cover), np.zeros(cover)])
        self.basis: Ints = np.arange(rows)
        self._inverse = np.eye(rows)
        self._amounts = self._rhs.copy()
        self.duals: Floats = self._cost[:rows].copy()

    def add(self, columns: Floats, cost: Floats) -> None:
        """Append patterns, one per row of `columns`."""
        self._columns = np.vstack([self._columns, columns])
        self._cost = np.concatenate([self._cost, cost])

    def amounts(self) -> tuple[Ints, Floats]:
        """Return basic patterns (numbered from 0 in the order of `add`) and how often each is used."""
        used = (self.basis >= self.own) & (self._amounts > 1e-6)
        return self.basis[used] - self.own, self._amounts[used]

    def run(self, most_pivots: int) -> None:
        """Pivot to the optimum of the known columns."""
        scale = np.maximum(self._cost, self._cost[self._cost > 0].min(initial=1.0))
        pivots = 0
        while pivots < most_pivots:
            reduced = (self._cost - np.einsum("ij,j->i", self._columns, self.duals)) / scale
            listed = np.argsort(reduced, kind="stable")[:SHORT_LIST]
            listed = listed[reduced[listed] < -EPSILON]
            made = self._exhaust(listed, scale[listed], most_pivots - pivots)
            if not made:
                return
            pivots += made
            if pivots // REFACTOR_EVERY > (pivots - made) // REFACTOR_EVERY:
                self._refactor()

    def _exhaust(self, listed: Ints, scale: Floats, most: int) -> int:
        """Pivot among a few columns until none of them helps; returns how often."""
        columns, cost = self._columns[listed], self._cost[listed]
        made = 0
        while len(listed) and made < most:
            reduced = cost - np.einsum("ij,j->i", columns, self.duals)
            best = int((reduced / scale).argmin())
            if reduced[best] > -EPSILON * scale[best]:
                break
            if not self._pivot(int(listed[best]), float(reduced[best])):
                break
            made += 1
        return made

    def _pivot(self, entering: int, reduced: float) -> bool:
        column = self._columns[entering]
        used = np.flatnonzero(column)
        direction = np.einsum("ij,j->i", self._inverse[:, used], column[used])
        rising = direction > EPSILON
        if not rising.any():
            return False
        ratios = np.full(self.rows, np.inf)
        np.divide(self._amounts, direction, out=ratios, where=rising)
        leaving = int(ratios.argmin())
        step = max(float(ratios[leaving]), 0.0)
        self._amounts -= step * direction
        self._amounts[leaving] = step
        row = self._inverse[leaving] / direction[leaving]
        direction[leaving] = 0.0
        touched = np.flatnonzero(direction)
        self._inverse[touched] -= direction[touched, None] * row
        self._inverse[leaving] = row
        self.duals += reduced * row
        self.basis[leaving] = entering
        return True

    def _refactor(self) -> None:
        """Remove the rounding errors that pivots left behind."""
        try:
            self._inverse = np.asarray(np.linalg.inv(self._columns[self.basis].T), dtype=np.float64)
        except np.linalg.LinAlgError:
            return  # the basis is all but singular: the inverse at hand is the better one
        self._amounts = np.maximum(np.einsum("ij,j->i", self._inverse, self._rhs), 0.0)
        self.duals = np.einsum("ij,i->j", self._inverse, self._cost[self.basis])


MOST_WEIGHTINGS = 13
CELLS_PER_FILL = 60_000  # rows x classes x weightings of one pricing step
CELLS_IN_ALL = 1_200_000
ROUNDS_ONCE_KNOWN = 6
LARGEST_MASTER = 400  # classes; beyond it the greedy prices have to do
UNSERVED = 100.0  # in machines of the dearest type
PRICE_STEPS = 200
GOOD_ENOUGH = 1.003  # a pattern this close to its machine's cost is not worth another round


class Fractional(NamedTuple):
    """The purchase in fractions of machines."""

    value: Floats  # per class: what one more item would cost
    rent: Floats  # per type: what one more place under a binding limit would save
    types: Ints  # per pattern
    loads: Floats  # patterns x classes
    amounts: Floats  # how often each pattern is launched


def start_values(items: Items, market: PurchasableTypes, wanted: Floats) -> Floats:
    """Return per class the cheapest machine per item that fits alone; infinite when no type holds it."""
    fits = np.minimum(counts_that_fit(market.size, items.size), np.maximum(wanted, 1.0))
    fits[~market.allowed | (market.room <= 0)[:, None]] = 0
    with np.errstate(divide="ignore"):
        each: Floats = np.where(fits > 0, market.cost[:, None] / fits, np.inf)
    cheapest: Floats = each.min(axis=0, initial=np.inf)
    return cheapest


def fluid_prices(items: Items, market: PurchasableTypes, wanted: Floats) -> Floats:
    """Return what one item of each class costs when machines can be launched and filled in fractions.

    Each type shares its price out over its resources; an item costs the least that any type asks for it.
    Shares move toward the resource that runs out first (mirror ascent): the value of all items rises to its
    maximum, and is a lower bound on the cost at every step.
    """
    closed = ~market.allowed | (items.size[None] > market.size[:, None]).any(axis=2)
    cost = market.cost
    size, have = (each[:, : items.real].astype(np.float64) for each in (items.size, market.size))
    per_unit = np.divide(cost[:, None], have, out=np.zeros_like(have), where=have > 0)
    share: Floats = (have > 0) / np.maximum((have > 0).sum(axis=1, keepdims=True), 1)
    best, value = -1.0, np.zeros(len(size))
    here, is_wanted = np.arange(len(size)), wanted > 0
    amounts = [wanted * column for column in size.T]
    load: Floats = np.zeros(have.shape)
    for step in range(PRICE_STEPS if len(cost) else 0):
        asked = np.einsum("tr,ir->ti", share * per_unit, size)
        asked[closed] = np.inf
        pick = asked.argmin(axis=0)
        least = np.where(is_wanted, asked[pick, here], 0.0)
        total = float((wanted * least).sum())
        if total > best:
            best, value = total, least
        for column, amount in enumerate(amounts):
            load[:, column] = np.bincount(pick, amount, minlength=len(cost))
        load *= per_unit
        load /= np.maximum(load.max(axis=1, keepdims=True), TINY)
        share = share * np.exp(0.5 / np.sqrt(1.0 + step) * (load - 1.0))
        share /= np.maximum(share.sum(axis=1, keepdims=True), TINY)
    return value


def weightings_for(items: Items, rows: int, most: int = MOST_WEIGHTINGS) -> Floats:
    """Return as many directions as the size of the problem allows."""
    cells = max(1, rows * len(items.size))
    groups = items.size.shape[1] - items.real
    return weightings(items.real, groups, int(np.clip(CELLS_PER_FILL // cells, 1, most)))


def generate(
    items: Items, market: PurchasableTypes, wanted: Floats, value: Floats, known: Fractional | None = None
) -> Fractional:
    """Return the fractional purchase for `wanted`; prices start from `value` (finite where wanted > 0).

    `known` is an earlier answer for other amounts: its patterns are a better start than none.
    """
    classes = np.flatnonzero(wanted > 0)
    if not len(classes) or not len(market.cost) or len(classes) > LARGEST_MASTER:
        types = np.zeros(0, dtype=np.int64)
        return Fractional(
            value, np.zeros(len(market.cost)), types, np.zeros((0, len(items.size))), np.zeros(0)
        )
    generator = _Generator(
        Items(items.size[classes], items.real),
        market._replace(allowed=market.allowed[:, classes]),
        wanted[classes],
    )
    if known is not None and len(known.types):
        generator.add(known.types, np.minimum(known.loads[:, classes], wanted[classes]))
        generator.rounds = min(generator.rounds, ROUNDS_ONCE_KNOWN)
    generator.start(value[classes])
    generator.improve()
    return generator.result(classes, value)


class _Generator:
    def __init__(self, items: Items, market: PurchasableTypes, wanted: Floats) -> None:
        self.items, self.market, self.wanted = items, market, wanted
        self.weights = weightings_for(items, len(market.cost))
        cells = len(self.weights) * len(market.cost) * len(wanted)
        self.rounds = int(np.clip(CELLS_IN_ALL // max(cells, 1), 4, 30))
        self.alone = np.minimum(counts_that_fit(market.size, items.size), wanted)
        self.alone[~market.allowed] = 0
        # Types whose room could matter, and whether the room for all could: the others need no row.
        with np.errstate(divide="ignore", invalid="ignore"):
            machines = np.where(self.alone > 0, np.ceil(wanted / self.alone), 0.0)
        capped: Bools = market.room < machines.sum(axis=1)
        self.capped, total_binds = (
            np.flatnonzero(capped),
            bool(market.total_room < machines.max(axis=0, initial=0.0).sum()),
        )
        limits = market.room[self.capped]
        if total_binds:
            limits = np.append(limits, market.total_room)
        self.total_binds = total_binds
        self.unserved = UNSERVED * float(market.cost.max())
        self.master = MasterProblem(np.concatenate([wanted, limits]), len(wanted), self.unserved)
        self.types: list[Ints] = []
        self.loads: list[Floats] = []

    def start(self, value: Floats) -> None:
        """Add each class alone on its best type, and each type filled along every direction."""
        per_item = np.where(self.alone > 0, self.market.cost[:, None] / np.maximum(self.alone, 1), np.inf)
        best = per_item.argmin(axis=0)
        classes = np.arange(len(self.wanted))
        self.add(best, np.diag(self.alone[best, classes]))
        tries = len(self.weights)
        types = np.repeat(np.arange(len(self.market.cost)), tries)
        weights = np.tile(self.weights, (len(self.market.cost), 1))
        knapsack = KnapsackItems(self.wanted, value)
        self.add(
            types, fill(self.market.size[types], self.items, self.market.allowed[types], knapsack, weights)
        )

    def improve(self) -> None:
        for _ in range(self.rounds):
            self.master.run(20 + 4 * self.master.rows)
            value, rent = self.prices()
            knapsack = KnapsackItems(self.wanted, value)
            loads = best_fill(self.market.size, self.items, self.market.allowed, knapsack, self.weights)
            worth = np.einsum("ij,j->i", loads, value)
            better = np.flatnonzero(worth > GOOD_ENOUGH * (self.market.cost + rent))
            if not len(better):
                return
            self.add(better, loads[better])
        self.master.run(20 + 4 * self.master.rows)

    def add(self, types: Ints, loads: Floats) -> None:
        """Add new patterns; those that hold nothing or are repeated are left out."""
        rows = np.unique(np.hstack([types[:, None], loads]), axis=0)
        rows = rows[rows[:, 1:].any(axis=1)]
        types, loads = rows[:, 0].astype(np.int64), rows[:, 1:].astype(np.float64)
        limits = (types[:, None] == self.capped).astype(float)
        if self.total_binds:
            limits = np.hstack([limits, np.ones((len(types), 1))])
        self.master.add(np.hstack([loads, limits]), self.market.cost[types])
        self.types.append(types)
        self.loads.append(loads)

    def prices(self) -> tuple[Floats, Floats]:
        """Return the value per class and the rent per type."""
        duals = self.master.duals
        value = np.clip(duals[: len(self.wanted)], 0.0, self.unserved)
        rent = np.zeros(len(self.market.cost))
        rest = np.maximum(-duals[len(self.wanted) :], 0.0)
        rent[self.capped] = rest[: len(self.capped)]
        return value, rent + (rest[-1] if self.total_binds else 0.0)

    def result(self, classes: Ints, old: Floats) -> Fractional:
        value, rent = self.prices()
        whole = old.copy()
        whole[classes] = value
        index, amounts = self.master.amounts()
        loads = np.zeros((len(index), len(old)))
        loads[:, classes] = np.concatenate(self.loads)[index]
        return Fractional(whole, rent, np.concatenate(self.types)[index], loads, amounts)

"""Fill machines with items so that the value of what they hold is high; vectorised over machines.

Called for existing nodes and for types on sale. One step takes, per machine, the item with the best value
per weighted share of the capacity that is left, and places half of what fits: halving and trying several
weightings brings the result close to the best knapsack.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from muster.cluster.planner.cost.problem import Bools, Floats, Ints, Items, group_columns

TINY = 1e-12
ENDLESS = 2**62
MOST_WEIGHED_GROUPS = 16
FANCY = 8  # how much dearer it is to compare chosen classes than all of them


class KnapsackItems(NamedTuple):
    """KnapsackItems limit how many of each class to use, and say what one of it is worth."""

    limit: Floats
    value: Floats


@lru_cache(maxsize=64)
def weightings(real: int, groups: int, most: int) -> Floats:
    """Return directions over the columns: equal, then each resource stressed or slighted; at most `most`.

    Places of groups weigh nothing, except in two directions for when they are what runs out.
    """
    rows = [np.ones(real)]
    for others in (0.3, 0.05):
        for column in range(real if real > 1 else 0):
            stressed = np.full(real, others)
            stressed[column] = 1.0
            slighted = np.ones(real)
            slighted[column] = others
            rows += [stressed, slighted] if real > 2 else [stressed]
    plain = np.hstack([np.array(rows), np.zeros((len(rows), groups))])
    if not 0 < groups <= MOST_WEIGHED_GROUPS:
        return plain[: max(1, most)]
    crowded = np.ones((2, real + groups))
    crowded[1, :real] = 0.2
    return np.vstack([plain[:1], crowded, plain[1:]])[: max(1, most)]


def best_fill(
    free: Ints, items: Items, allowed: Bools | None, knapsack: KnapsackItems, weights: Floats
) -> Floats:
    """Return per row of `free` the most valuable of its fills, one per weighting: rows x classes."""
    rows, tries = len(free), len(weights)
    columns = np.flatnonzero((knapsack.limit > 0) & (items.size <= free.max(axis=0, initial=0)).all(axis=1))
    result = np.zeros((rows, len(items.size)))
    if not rows or not len(columns):
        return result
    some = Items(items.size[columns], items.real)
    few = KnapsackItems(knapsack.limit[columns], np.maximum(knapsack.value[columns], TINY))
    open_to = None if allowed is None else np.repeat(allowed[:, columns], tries, axis=0)
    loads = fill(np.repeat(free, tries, axis=0), some, open_to, few, np.tile(weights, (rows, 1)))
    if tries > 1:
        worth = (loads * few.value).sum(axis=1).reshape(rows, tries)
        loads = loads[np.arange(rows) * tries + worth.argmax(axis=1)]
    result[:, columns] = loads
    return result


def fill(free: Ints, items: Items, allowed: Bools | None, knapsack: KnapsackItems, weights: Floats) -> Floats:
    """Return one fill per row, along the row's own weights."""
    state = _Filling(free, items, allowed, knapsack, weights)
    while state.step():
        pass
    return state.loads


class _Filling:
    """The rows that still take something; finished rows leave the arrays."""

    def __init__(
        self, free: Ints, items: Items, allowed: Bools | None, knapsack: KnapsackItems, weights: Floats
    ) -> None:
        self.items = items
        self.knapsack = knapsack
        self.value = np.maximum(knapsack.value, TINY)
        self.loads = np.zeros((len(free), len(items.size)))
        self.rows: Ints = np.arange(len(free))
        self.free = free.copy()
        self.weights = weights
        self.weighed = items.size.shape[1] if weights[:, items.real :].any() else items.real
        self.by_column = np.ascontiguousarray(items.size[:, : self.weighed].T, dtype=np.float64)
        real = np.ascontiguousarray(items.size[:, : items.real])
        self.real = real
        # What an item does not take never runs out: such a column counts as good as infinity.
        self.divisor = np.maximum(real, 1)
        self.unbounded = np.where(real > 0, 0, ENDLESS)
        self.columns = np.ascontiguousarray(real.T)
        self.users = [column.nonzero()[0] for column in real.T]
        self.grouped, self.group = group_columns(items)
        self.fits = np.ones(self.loads.shape, dtype=bool) if allowed is None else allowed.copy()
        self.fits &= knapsack.limit > 0
        self._drop_what_no_longer_fits()

    def step(self) -> bool:
        """Place one batch on every row; False when no row takes anything more."""
        going = self.fits.any(axis=1)
        if not going.all():
            self.rows, self.free = self.rows[going], self.free[going]
            self.fits, self.weights = self.fits[going], self.weights[going]
        if not len(self.rows):
            return False
        chosen = self._best_item()
        left = self.free[:, : self.items.real]
        held = left // self.divisor.take(chosen, axis=0)
        held = np.maximum(held, self.unbounded.take(chosen, axis=0), out=held).min(axis=1)
        if len(self.grouped):
            marked = self.group[chosen].nonzero()[0]
            places = (marked, self.group[chosen[marked]])
            held[marked] = np.minimum(held[marked], self.free[places])
        at = (self.rows, chosen)
        before, limit = self.loads[at], self.knapsack.limit.take(chosen)
        wanted = np.minimum(limit - before, ENDLESS).astype(np.int64)
        amount = np.minimum((held + 1) // 2, wanted)
        after = before + amount
        self.loads[at] = after
        left -= amount[:, None] * self.real.take(chosen, axis=0)
        if len(self.grouped):
            self.free[places] -= amount[marked]
        self._drop_what_no_longer_fits()
        self.fits[(after >= limit).nonzero()[0], chosen[after >= limit]] = False
        return True

    def _best_item(self) -> Ints:
        left = self.free[:, : self.weighed]
        scarcity = np.divide(self.weights[:, : self.weighed], left, out=np.zeros(left.shape), where=left > 0)
        share = np.einsum("ik,kj->ij", scarcity, self.by_column)
        np.maximum(share, TINY, out=share)
        np.divide(self.value, share, out=share)
        np.multiply(share, self.fits, out=share)  # values are above 0, and every row here takes something
        best: Ints = share.argmax(axis=1)
        return best

    def _drop_what_no_longer_fits(self) -> None:
        for column, users in enumerate(self.users):
            if FANCY * len(users) >= self.fits.shape[1]:
                self.fits &= self.columns[column] <= self.free[:, column, None]
            elif len(users):
                self.fits[:, users] &= self.free[:, column, None] >= self.items.size[users, column]
        if len(self.grouped):
            self.fits[:, self.grouped] &= self.free[:, self.group[self.grouped]] >= 1


class FillRows(NamedTuple):
    """Machines to fill, one per row; each sees the classes of its group."""

    free: Ints  # rows x columns
    sizes: list[Ints]  # per column: rows x classes of the group
    limit: Floats  # rows x classes
    value: Floats  # rows x classes; 0: must not be used
    weights: Floats  # rows x columns


def fill_rows(rows: FillRows) -> Floats:
    """Return one fill per row: the best value per weighted share of what is left, by halves of what fits."""
    free, sizes, limit, weights = rows.free.copy(), rows.sizes, rows.limit.copy(), rows.weights
    value = rows.value * (limit > 0)
    loads = np.zeros(value.shape)
    live: Ints = np.arange(len(free))
    while True:
        for column, size in enumerate(sizes):
            value *= size <= free[:, column, None]
        going = value.any(axis=1)
        if not going.all():
            live, free, limit, value = live[going], free[going], limit[going], value[going]
            sizes, weights = [size[going] for size in sizes], weights[going]
        if not len(live):
            return loads
        scarcity = np.divide(weights, free, out=np.zeros(free.shape), where=free > 0)
        share = sizes[0] * scarcity[:, :1]
        for column, size in enumerate(sizes[1:], 1):
            share += size * scarcity[:, column, None]
        np.maximum(share, TINY, out=share)
        np.divide(value, share, out=share)
        chosen = share.argmax(axis=1)
        at = (np.arange(len(live)), chosen)
        need = np.stack([size[at] for size in sizes], axis=1)
        held = np.where(need > 0, free // np.maximum(need, 1), ENDLESS).min(axis=1)
        amount = np.minimum((held + 1) // 2, np.minimum(limit[at], ENDLESS).astype(np.int64))
        loads[live, chosen] += amount
        limit[at] -= amount
        free -= amount[:, None] * need
        value[at] *= limit[at] > 0

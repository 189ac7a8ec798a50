"""Put demand on nodes that are there: free of charge, so before anything is bought.

Called by `book`. All nodes of a block are filled at the same prices as if the demand were theirs alone;
where their sum exceeds it, the later nodes are trimmed and filled again with what remains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.column_generation import weightings_for
from muster.cluster.binpack.cost.knapsack import Wish, best_fill
from muster.cluster.binpack.cost.problem import Bins, Bools, Floats, Ints, Items, load_size

BLOCKS = 4
REFILLS = 12


class Filled(NamedTuple):
    """Loads per bin, and what of the demand is left."""

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
    """Interleaved slices of the bins, tier by tier, the fullest first: so that free nodes stay free."""
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
        taken = _fill_alike(
            bins.free[rows], None if bins.allowed is None else bins.allowed[rows], items, Wish(left, value)
        )
        before = np.cumsum(taken, axis=0) - taken
        kept = np.clip(left - before, 0.0, taken)
        loads[rows] += kept
        bins.free[rows] -= load_size(kept, items)
        left -= kept.sum(axis=0)
        rows = rows[(kept < taken).any(axis=1)]


def _fill_alike(free: Floats, allowed: Bools | None, items: Items, wish: Wish) -> Floats:
    """One fill per distinct bin."""
    key = free if allowed is None else np.hstack([free, allowed])
    _, first, same = np.unique(key, axis=0, return_index=True, return_inverse=True)
    weights = weightings_for(items, len(first))
    some = None if allowed is None else allowed[first]
    filled: Floats = best_fill(free[first], items, some, wish, weights)[same.reshape(-1)]
    return filled

"""One book of the problem, gangs relaxed to their bundles: nodes first, then machines, improved in rounds.

Called by `engine`. Each round fills the nodes at the current prices, buys for the rest and learns better
prices from that purchase; the best plan seen is kept.
"""

from __future__ import annotations

import numpy as np

from muster.cluster.binpack.cost.column_generation import Fractional, generate, start_values
from muster.cluster.binpack.cost.local_search import improve
from muster.cluster.binpack.cost.nodes import Filled, fill_nodes
from muster.cluster.binpack.cost.problem import (
    Bins,
    Floats,
    Ints,
    Items,
    Layout,
    Market,
    counts_that_fit,
)
from muster.cluster.binpack.cost.rounding import Till, buy_greedily, whole_machines

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

"""What people would like if it costs nothing: the first selector of a fallback list that anything matches.

Called by `engine` for its second, wishful plan; spreading SPREAD gangs strictly is the other wish (`forms`).
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.cluster.binpack.cost.asks import ask_of
from muster.cluster.binpack.cost.inventory import Stock
from muster.cluster.model import Demand, Gang, Strategy


def narrowed(demand: Demand, stock: Stock) -> Demand:
    """The demand with its first selector under which some node or type could hold it."""
    if len(demand.selectors) < 2:
        return demand
    for selector in demand.selectors:
        narrow = replace(demand, selectors=(selector,))
        if stock.holds(ask_of(narrow)):
            return narrow
    return demand


def narrowed_gang(gang: Gang, stock: Stock) -> Gang:
    """Every bundle narrowed; strict packing merges by the selectors as asked, so those stay."""
    if gang.strategy is Strategy.STRICT_PACK:
        return gang
    options = tuple(tuple(narrowed(demand, stock) for demand in option) for option in gang.options)
    return replace(gang, options=options)

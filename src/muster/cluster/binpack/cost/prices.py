"""What a machine of each type counts for: its price, a stand-in where there is none, and tie-breaks.

Called by `stock`. A type without a price is taken to be dear: the highest known price per unit of its
dominant resource. So an unpriced type is bought when no priced one will do, never because it looks free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.cluster.binpack.cost.problem import Floats
from muster.cluster.binpack.request import Offer
from muster.cluster.model import NodeType

TIE = 1e-6  # of a price: decides between equals, never against a real difference


def machine_costs(offers: Sequence[Offer]) -> Floats:
    """Per offer, in the order given; > 0. Equal prices are told apart by Ray's tie-breaks, then by order."""
    types = [offer.node_type for offer in offers]
    prices = np.array([_price(node_type, types) for node_type in types])
    least = prices[prices > 0].min(initial=1.0)
    ranked = sorted(range(len(offers)), key=lambda i: _standing(offers[i], i))
    rank = np.zeros(len(offers))
    rank[ranked] = np.arange(len(offers)) / max(1, len(offers))
    # A machine that costs nothing still counts a little, so that no more than needed are started.
    costs: Floats = (prices + TIE * least) * (1.0 + TIE * rank)
    return costs


def _standing(offer: Offer, index: int) -> tuple[bool, float, int, float, int]:
    unpriced = offer.node_type.price_per_hour is None
    return (unpriced, -offer.recoverable, -offer.node_type.priority, -offer.availability, index)


def _price(node_type: NodeType, types: Sequence[NodeType]) -> float:
    if node_type.price_per_hour is not None:
        return node_type.price_per_hour
    dominant = _dominant_resource(node_type, types)
    units = node_type.resources.units(dominant)
    priced = [t for t in types if t.price_per_hour is not None]
    alike = [t for t in priced if t.resources.units(dominant)]
    if alike and units:
        return max((t.price_per_hour or 0.0) * units / t.resources.units(dominant) for t in alike)
    if priced:
        return max(t.price_per_hour or 0.0 for t in priced)
    most = max((t.resources.units(dominant) for t in types), default=0)
    return units / most if most else 1.0  # nothing has a price: by size


def _dominant_resource(node_type: NodeType, types: Sequence[NodeType]) -> str:
    """The resource of which it has the largest part of what any type has."""
    shares = {}
    for name, units in node_type.resources.key:
        most = max(t.resources.units(name) for t in types)
        shares[name] = units / most if most else 0.0
    return min(shares, key=lambda name: (-shares[name], name)) if shares else ""

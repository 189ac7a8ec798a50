"""Fill the stock of one book from the problem: nodes, machines the other book buys, types on sale.

Called by `engine`. The demand book starts from what is free, the constraint book from totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from muster.base.resources import EMPTY, Resources
from muster.cluster.binpack.cost.asks import Ask
from muster.cluster.binpack.cost.inventory import Scale, Stock
from muster.cluster.binpack.cost.prices import machine_costs
from muster.cluster.binpack.cost.problem import Floats
from muster.cluster.binpack.request import Book, PackNode, PackProblem
from muster.cluster.model import NodeType

GPU = "GPU"


def stock_of(problem: PackProblem, book: Book, asks: Sequence[Ask]) -> Stock:
    """Everything the book may use; `asks` decide which resources matter."""
    scale = Scale.of(asks)
    types = [offer.node_type for offer in problem.offers]
    stock = Stock(scale, [size_when_bought(t) for t in types], [t.labels for t in types])
    stock.cost = machine_costs(problem.offers)
    stock.room = np.array([float(max(offer.room, 0)) for offer in problem.offers])
    stock.total_room = np.inf if problem.room is None else float(max(problem.room, 0))
    nodes = problem.nodes
    stock.add_bins(
        scale.rooms([free_of(node, book) for node in nodes]),
        _growth(problem, book, scale),
        np.array([_tier(node, problem.conserve_gpus) for node in nodes], dtype=np.int64),
        [node.labels for node in nodes],
    )
    return stock


def _tier(node: PackNode, conserve_gpus: bool) -> int:
    """Nodes that run come before those on their way; GPU nodes are spared while others will do."""
    return 2 * int(conserve_gpus and node.total.units(GPU) > 0) + int(not node.runs)


def grow(stock: Stock, grown: Sequence[int]) -> None:
    """Nodes that the other book resizes have grown for this one too."""
    rows = list(grown)
    stock.free[rows] += stock.growth[rows]
    stock.growth[rows] = 0.0


def size_when_bought(node_type: NodeType) -> Resources:
    """A type that can be resized in place is as large as it may become."""
    if node_type.resize is None:
        return node_type.resources
    return _at_least(node_type.resources, node_type.resize.maximum)


def free_of(node: PackNode, book: Book) -> Resources:
    """What the book may use of a node; a resize under way counts as done."""
    have = node.available if book is Book.DEMAND else node.total
    if node.resize is None or not node.resize.in_progress:
        return have
    more = {name: units - node.total.units(name) for name, units in node.resize.desired.items()}
    return Resources({**have, **{name: max(0, have.units(name) + units) for name, units in more.items()}})


def growth_limit(node: PackNode, limits: Mapping[str, NodeType]) -> Resources:
    """How large the node may be asked to become; empty when it may not grow now."""
    status, node_type = node.resize, limits.get(node.node_type)
    if status is None or status.failed or status.in_progress or node_type is None or node_type.resize is None:
        return EMPTY
    limit = status.suggested_maximum or node_type.resize.maximum
    grows = any(units > node.total.units(name) for name, units in limit.items())
    return _at_least(limit, Resources({name: node.total.units(name) for name in limit})) if grows else EMPTY


def _growth(problem: PackProblem, book: Book, scale: Scale) -> Floats:
    """How much more each node would offer the book at its full size."""
    growth = np.zeros((len(problem.nodes), len(scale.names)))
    limits = {offer.node_type.name: offer.node_type for offer in problem.offers}
    for row, node in enumerate(problem.nodes):
        limit = EMPTY if node.resize is None else growth_limit(node, limits)
        if limit:
            free = free_of(node, book)
            more = Resources({name: max(0, units - node.total.units(name)) for name, units in limit.items()})
            growth[row] = scale.rooms([free.plus(more)]) - scale.rooms([free])
    return growth


def _at_least(one: Resources, other: Resources) -> Resources:
    return Resources({**one, **{name: max(units, one.units(name)) for name, units in other.items()}})

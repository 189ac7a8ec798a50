"""In-place resize: how large a node counts now, and how large it could become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from muster.cluster.binpack.request import PackNode
from muster.cluster.model import NodeType

Units = dict[str, int]


class Sizes(NamedTuple):
    """What a node has in all and what of it is free."""

    total: Units
    free: Units


def current_sizes(node: PackNode) -> Sizes:
    """As reported; while a resize is under way, as large as it will be."""
    sizes = Sizes(dict(node.total.key), dict(node.available.key))
    if node.resize is not None and node.resize.in_progress:
        return grown(sizes, node.resize.desired)
    return sizes


def grown(sizes: Sizes, target: Mapping[str, int]) -> Sizes:
    """The node with another size; what is in use stays in use."""
    total, free = dict(sizes.total), dict(sizes.free)
    for name, quantity in target.items():
        free[name] = max(0, free.get(name, 0) + quantity - total.get(name, 0))
        total[name] = quantity
    return Sizes(total, free)


def largest_size(node: PackNode, node_type: NodeType | None) -> Units | None:
    """What the node could be enlarged to; None when it cannot grow.

    A machine on its way of which the provider says nothing yet counts as growable, because it was planned
    at its largest size when it was bought.
    """
    if node_type is None or node_type.resize is None:
        return None
    status, largest = node.resize, dict(node_type.resize.maximum.key)
    if status is None:
        if node.runs:
            return None
        current = dict(node.total.key)
    elif status.failed or status.in_progress:
        return None
    else:
        current = dict(status.current.key)
        if status.suggested_maximum is not None:
            largest.update(status.suggested_maximum.key)
    if all(current.get(name, 0) >= quantity for name, quantity in largest.items()):
        return None
    return {name: max(quantity, current.get(name, 0)) for name, quantity in largest.items()}


def new_size(node_type: NodeType) -> Units:
    """A new machine counts with what it could be enlarged to."""
    total = dict(node_type.resources.key)
    if node_type.resize is not None:
        for name, quantity in node_type.resize.maximum.key:
            total[name] = max(quantity, total.get(name, 0))
    return total

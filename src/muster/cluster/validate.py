"""Whether what an adapter handed over is what it says it is: types only; what it means is for the rules.

Called by the Observer on everything from outside. Records of msgspec do not check their fields when built.
"""

from __future__ import annotations

from muster.base.resources import Resources
from muster.cluster.model import CloudInstance, Constraint, Demand, Gang, NodeKind, NodeReport, NodeStatus


def is_sound_machine(key: object, item: object) -> bool:
    return (
        isinstance(item, CloudInstance)
        and isinstance(key, str)
        and key != ""
        and item.cloud_id == key
        and isinstance(item.kind, NodeKind)
        and isinstance(item.node_type, str)
    )


def is_sound_node(item: object) -> bool:
    return (
        isinstance(item, NodeReport)
        and isinstance(item.node_id, str)
        and isinstance(item.status, NodeStatus)
        and _is_sound_size(item.total)
        and _is_sound_size(item.available)
        and isinstance(item.idle_s, int | float)
    )


def bare_node(item: NodeReport) -> NodeReport:
    """Nothing but the name, so that its record does not take it for gone."""
    return NodeReport(node_id=item.node_id, status=NodeStatus.UNSPECIFIED)


def is_sound_demand(item: object) -> bool:
    return isinstance(item, Demand) and isinstance(item.count, int) and _is_sound_size(item.shape)


def is_sound_gang(item: object) -> bool:
    return (
        isinstance(item, Gang)
        and isinstance(item.options, tuple)
        and all(isinstance(option, tuple) and all(map(is_sound_demand, option)) for option in item.options)
    )


def is_sound_constraint(item: object) -> bool:
    return (
        isinstance(item, Constraint)
        and isinstance(item.demands, tuple)
        and all(map(is_sound_demand, item.demands))
    )


def _is_sound_size(size: object) -> bool:
    """Resources refuse nonsense when made from quantities; made from units they take what they get."""
    return isinstance(size, Resources) and all(isinstance(n, int) and n >= 0 for n in size.values())

"""Define the functions of `ray.util` that libraries call; placement groups are accepted and ignored."""

from __future__ import annotations

from muster.host.machine import node_ip
from muster.ray_api.finder import overlay
from muster.ray_api.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_node_ip_address",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]


def get_node_ip_address() -> str:
    """Return the address at which other machines reach this one."""
    return node_ip()


__getattr__, _ = overlay("ray.util", "", {})  # submodules, without an import of each

"""NodeLaunch: everything a provider is told to make one machine of a type, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from muster.config.launch_hash import launch_hash
from muster.config.machine_type import machine_type
from muster.config.schema import ClusterConfig


class NodeLaunch(Struct, frozen=True, kw_only=True):
    """One node type, ready for a provider's create call."""

    node_type: str
    node_config: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    launch_hash: str = ""
    machine_type: str = ""


def node_launches(config: ClusterConfig) -> dict[str, NodeLaunch]:
    """Every type of the config, the head's included, in the order of the file."""
    auth = config.auth.settings()
    return {
        name: NodeLaunch(
            node_type=name,
            node_config=entry.node_config or {},
            resources=entry.resources,
            labels=entry.labels,
            launch_hash=launch_hash(entry.node_config or {}, auth),
            machine_type=machine_type(config.provider.type, entry.node_config or {}),
        )
        for name, entry in config.available_node_types.items()
    }

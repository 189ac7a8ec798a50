"""NodeLaunch: everything a provider is told to make one machine of a type, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from muster.config.hashes import launch_hash
from muster.config.schema import ClusterConfig

# Where each provider's node_config names its machine type.
_PATHS: dict[str, tuple[str, ...]] = {
    "aws": ("InstanceType",),
    "aliyun": ("InstanceType",),
    "azure": ("azure_arm_parameters", "vmSize"),
    "gcp": ("machineType",),
}


def machine_type(provider: str, node_config: Mapping[str, Any]) -> str:
    """ "" when the provider has no such names or the config does not say."""
    path = _PATHS.get(provider, ())
    found: Any = node_config if path else ""
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


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

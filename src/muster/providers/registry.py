"""From `provider: {type: ...}` to something that buys machines; a provider is imported when it is named.

Called by composition roots. Providers we build ourselves are `cls(provider_config, cluster_name,
surroundings)`; those of users are `cls(provider_config, cluster_name)`, as under Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from muster.cluster.ports import CloudProvider
from muster.config.node_launch import NodeLaunch
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError
from muster.providers.surroundings import ProviderSurroundings

__all__ = ["Launches", "ManagedProvider", "ProviderSurroundings", "build_provider"]

Launches = Callable[[], Mapping[str, NodeLaunch]]  # today's node types, asked again for every launch


class ManagedProvider(CloudProvider, Protocol):
    """A provider that has threads or files to let go of."""

    def close(self) -> None: ...


def build_provider(
    config: ClusterConfig,
    launches: Launches,
    surroundings: ProviderSurroundings,
    provider_config: Mapping[str, Any] | None = None,
) -> ManagedProvider:
    """The provider of a cluster file; ConfigError names the key and the fix.

    `provider_config` is the `provider` section as it was written, with the keys only the provider knows.
    """
    raise ConfigError(f"provider type {config.provider.type!r} is not built yet", path="provider.type")

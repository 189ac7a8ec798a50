"""The cluster YAML as types: every key of `ray up`, and ours.

One class per section; docs/cluster-yaml.md tells people the same. `prepare` makes a file complete before it
becomes one of these. Our keys are `muster` and, per node type, `price_per_hour` and `market`.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from muster.config.check import Section
from muster.config.schema_kinds import Count, Market, Minutes, Price, Priority, Quantity, Seconds, Speed
from muster.config.schema_machines import (
    AuthConfig,
    DockerConfig,
    LegacyMachine,
    NodeTypeDocker,
    ProviderConfig,
)
from muster.config.schema_muster import MusterConfig


class NodeTypeConfig(Section, frozen=True, kw_only=True):
    """One entry of `available_node_types`. Counts are of workers: a head of this type comes on top."""

    resources: dict[str, Quantity]  # Ray takes whole numbers only; so does `ray start` for CPU and GPU
    node_config: dict[str, Any] | None = None  # Ray demands it; providers without settings need none
    min_workers: Count = 0
    max_workers: Count | None = None  # None: the cluster's max_workers, 0 for the head's type
    idle_timeout_s: Seconds | None = None
    priority: Priority = 0
    labels: dict[str, str] = field(default_factory=dict)
    initialization_commands: tuple[str, ...] | None = None  # None: the cluster's
    worker_setup_commands: tuple[str, ...] | None = None  # None: the cluster's
    docker: NodeTypeDocker = NodeTypeDocker()
    price_per_hour: Price | None = None  # ours: $ for one machine
    market: Market = Market.ON_DEMAND  # ours


class ClusterConfig(Section, frozen=True, kw_only=True):
    """The whole file."""

    cluster_name: str = "default"
    provider: ProviderConfig
    max_workers: Count = 2
    upscaling_speed: Speed = 1.0
    idle_timeout_minutes: Minutes = 5.0
    auth: AuthConfig = AuthConfig()
    docker: DockerConfig = DockerConfig()
    head_node_type: str | None = None  # may be left out when there is one type
    available_node_types: dict[str, NodeTypeConfig] = field(default_factory=dict)
    file_mounts: dict[str, str] = field(default_factory=dict)
    cluster_synced_files: tuple[str, ...] = ()
    file_mounts_sync_continuously: bool = False
    rsync_exclude: tuple[str, ...] = ()
    rsync_filter: tuple[str, ...] = ()
    initialization_commands: tuple[str, ...] = ()
    setup_commands: tuple[str, ...] = ()
    head_setup_commands: tuple[str, ...] = ()  # once prepared: with setup_commands before them
    worker_setup_commands: tuple[str, ...] = ()  # once prepared: with setup_commands before them
    head_start_ray_commands: tuple[str, ...] = ()
    worker_start_ray_commands: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    no_restart: bool = False
    min_workers: Count | None = None  # the old form, like the two below: gone once prepared
    head_node: LegacyMachine = LegacyMachine()
    worker_nodes: LegacyMachine = LegacyMachine()
    muster: MusterConfig = MusterConfig()

    @property
    def head_type(self) -> str:
        """The head's node type, given or the only one."""
        return self.head_node_type or next(iter(self.available_node_types), "")

    def type_max_workers(self, name: str) -> int:
        """How many workers of a type there may be, defaults applied."""
        own = self.available_node_types[name].max_workers
        if own is not None:
            return own
        return 0 if name == self.head_type else self.max_workers

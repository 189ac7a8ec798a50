"""The cluster YAML as types: `ray up`'s keys that planning needs, and ours.

One class per section. Keys of the full file that planning does not read are listed as `ignored`, so that a
file written for `ray up` works here unchanged while a misspelt key is still an error.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, ClassVar

from msgspec import Meta, field, to_builtins

from muster.base.resources import MAX_QUANTITY
from muster.cluster.model import Backoff, Objective, Timeouts
from muster.config.check import Section

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Quantity = Annotated[float, Meta(ge=0, le=MAX_QUANTITY)]
Price = Annotated[float, Meta(ge=0, le=1_000_000)]
Speed = Annotated[float, Meta(ge=0, le=1_000_000)]
Minutes = Annotated[float, Meta(ge=0, le=5_256_000)]  # ten years
Seconds = Annotated[float, Meta(ge=0, le=315_360_000)]
Priority = Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)]


class Market(Enum):
    """How a machine is bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


class NodeTypeConfig(Section, frozen=True, kw_only=True):
    """One entry of `available_node_types`. Counts are of workers: a head of this type comes on top."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"docker", "initialization_commands", "setup_commands", "worker_setup_commands"}
    )

    resources: dict[str, Quantity]
    node_config: dict[str, Any] | None = None
    min_workers: Count = 0
    max_workers: Count | None = None  # None: the cluster's max_workers, 0 for the head's type
    idle_timeout_s: Seconds | None = None
    priority: Priority = 0
    labels: dict[str, str] = field(default_factory=dict)
    price_per_hour: Price | None = None  # ours: $ for one machine
    market: Market = Market.ON_DEMAND  # ours


class ProviderConfig(Section, frozen=True, kw_only=True):
    """`provider`: its own keys are the provider's business."""

    takes_any_key: ClassVar[bool] = True

    type: str
    disable_launch_config_check: bool = True
    disable_node_updaters: bool = False


class AuthConfig(Section, frozen=True, kw_only=True, omit_defaults=True):
    """`auth`: how machines are logged into."""

    ssh_user: str | None = None
    ssh_private_key: str | None = None
    ssh_public_key: str | None = None
    ssh_proxy_command: str | None = None
    ssh_proxy_use_node_id: bool | None = None

    def given(self) -> dict[str, Any]:
        """The keys that are set, as plain data."""
        found: dict[str, Any] = to_builtins(self)
        return found


class LimitsConfig(Section, frozen=True, kw_only=True):
    """How many machines may be on their way at once."""

    max_concurrent: Count = 10
    max_request_retries: Count = 3


class RetentionConfig(Section, frozen=True, kw_only=True):
    """How long the ledger keeps records of machines that are gone: whichever bites first."""

    max_age_s: Seconds = 86_400.0
    max_records: Count = 10_000


class MusterConfig(Section, frozen=True, kw_only=True):
    """`muster`: everything that `ray up` does not know."""

    objective: Objective = Objective.AUTO
    conserve_gpus: bool = True
    timeouts: Timeouts = Timeouts()
    limits: LimitsConfig = LimitsConfig()
    backoff: Backoff = Backoff()
    retention: RetentionConfig = RetentionConfig()


class ClusterConfig(Section, frozen=True, kw_only=True):
    """The whole file."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "cluster_synced_files",
            "docker",
            "file_mounts",
            "file_mounts_sync_continuously",
            "head_node",
            "head_setup_commands",
            "head_start_ray_commands",
            "initialization_commands",
            "metadata",
            "min_workers",
            "no_restart",
            "rsync_exclude",
            "rsync_filter",
            "setup_commands",
            "worker_nodes",
            "worker_setup_commands",
            "worker_start_ray_commands",
        }
    )

    cluster_name: str
    provider: ProviderConfig
    available_node_types: dict[str, NodeTypeConfig]
    head_node_type: str | None = None  # may be left out when there is one type
    auth: AuthConfig = AuthConfig()
    max_workers: Count = 2
    upscaling_speed: Speed = 1.0
    idle_timeout_minutes: Minutes = 5.0
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

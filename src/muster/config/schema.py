"""The cluster YAML as types: every key of `ray up`, and ours.

One class per section; docs/cluster-yaml.md tells people the same. `prepare` makes a file complete before it
becomes one of these. Our keys are `muster` and, per node type, `price_per_hour` and `market`.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, ClassVar

from msgspec import Meta, field, to_builtins

from muster.base.resources import MAX_QUANTITY
from muster.cluster.model import Backoff, Objective, Timeouts
from muster.config.check import Section

TEN_YEARS_S = 315_360_000
MANY = 1_000_000  # machines: more than anybody has; where `inf` is allowed, it means this

Count = Annotated[int, Meta(ge=0, le=MANY)]
PositiveCount = Annotated[int, Meta(ge=1, le=MANY)]
Quantity = Annotated[float, Meta(ge=0, le=MAX_QUANTITY)]
Price = Annotated[float, Meta(ge=0, le=1_000_000)]
Speed = Annotated[float, Meta(ge=0, le=1_000_000)]
Minutes = Annotated[float, Meta(ge=0, le=5_256_000)]  # ten years
Seconds = Annotated[float, Meta(ge=0, le=TEN_YEARS_S)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=TEN_YEARS_S)]
Interval = Annotated[float, Meta(ge=0.05, le=86_400)]  # between two looks of the monitor
Priority = Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Bytes = Annotated[int, Meta(ge=0, le=2**50)]


class Market(Enum):
    """How a machine is bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


# The providers a file may name. Which of them this program can drive is the registry's business.
PROVIDERS = (
    "aliyun",
    "aws",
    "azure",
    "external",
    "fake_multinode",
    "fake_multinode_docker",
    "gcp",
    "kuberay",
    "local",
    "process",
    "readonly",
    "spark",
    "vsphere",
)


class SectionAsWritten(Section, frozen=True, kw_only=True, omit_defaults=True):
    """A section that others read as plain data too, so what was written is kept beside the typed keys."""

    kept_in: ClassVar[str] = "written"

    written: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """The section as plain data: exactly the keys of the file (of the values, when made by code)."""
        if self.written:
            return dict(self.written)
        found: dict[str, Any] = to_builtins(self)
        return found


class ProviderConfig(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """`provider`: keys that the core reads; all others are the provider's business and in `settings()`."""

    takes_any_key: ClassVar[bool] = True

    type: str
    module: str | None = None  # of `external`: package.module.Class
    disable_node_updaters: bool = False
    disable_launch_config_check: bool = True
    foreground_node_launch: bool = False
    worker_liveness_check: bool = True
    use_internal_ips: bool = False
    use_external_head_ip: bool = False
    cache_stopped_nodes: bool = True
    namespace: str | None = None
    region: str | None = None
    availability_zone: str | None = None
    project_id: str | None = None
    security_group: dict[str, Any] | None = None
    head_ip: str | None = None
    worker_ips: tuple[str, ...] = ()
    coordinator_address: str | None = None


class AuthConfig(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """`auth`: how machines are logged into."""

    ssh_user: str = "ubuntu"
    ssh_private_key: str | None = None
    ssh_public_key: str | None = None
    ssh_proxy_command: str | None = None
    ssh_proxy_use_node_id: bool = False


class DockerConfig(Section, frozen=True, kw_only=True):
    """`docker`: without a container_name everything runs on the machine itself."""

    image: str = ""
    container_name: str = ""
    pull_before_run: bool = True
    run_options: tuple[str, ...] = ()
    head_image: str = ""
    head_run_options: tuple[str, ...] = ()
    worker_image: str = ""
    worker_run_options: tuple[str, ...] = ()
    disable_automatic_runtime_detection: bool = False
    disable_shm_size_detection: bool = False
    use_podman: bool = False


class NodeTypeDocker(Section, frozen=True, kw_only=True):
    """`docker` of one node type: what differs from the cluster's; None: nothing."""

    pull_before_run: bool | None = None
    worker_image: str | None = None
    worker_run_options: tuple[str, ...] | None = None


class LegacyMachine(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """`head_node` and `worker_nodes`, the form before node types: a node_config with `resources` in it."""

    takes_any_key: ClassVar[bool] = True

    resources: dict[str, Quantity] | None = None


class LimitsConfig(Section, frozen=True, kw_only=True):
    """How many machines may be on their way at once."""

    max_concurrent: Count = 10
    max_request_retries: Count = 3
    max_launch_batch: PositiveCount = 5  # machines per create call of a provider


class RetentionConfig(Section, frozen=True, kw_only=True):
    """How much of the past the ledger keeps: whichever limit bites first."""

    max_age_s: Seconds = 86_400.0
    max_records: Count = 10_000  # of machines that are gone
    max_decisions: Count = 10_000
    max_decision_bytes: Bytes = 64 * 2**20


class MonitorConfig(Section, frozen=True, kw_only=True):
    """How the monitor runs."""

    interval_s: Interval = 1.0  # between two looks while something changes
    max_interval_s: Interval = 5.0  # while nothing does
    metrics_port: Port | None = None  # None: 44217 when it is free, else any; 0: any

    @property
    def longest_interval_s(self) -> float:
        """Never less than the interval, which may come from elsewhere."""
        return max(self.interval_s, self.max_interval_s)


class MusterConfig(Section, frozen=True, kw_only=True):
    """The section."""

    objective: Objective = Objective.AUTO
    conserve_gpus: bool = True
    timeouts: Timeouts = Timeouts()
    limits: LimitsConfig = LimitsConfig()
    backoff: Backoff = Backoff()
    retention: RetentionConfig = RetentionConfig()
    monitor: MonitorConfig = MonitorConfig()


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

"""Define the cluster YAML as types: every key of `ray up`, and ours.

One class per section; docs/cluster-yaml.md documents them for users. `prepare` makes a file complete before
it becomes one of these. Our keys are `muster` and, per node type, `price_per_hour`, `market` and
`offers`.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field, to_builtins

from muster.base.resources import MAX_QUANTITY
from muster.cluster.budget_policy import Consolidation
from muster.cluster.model import Backoff, Objective, Timeouts
from muster.config.check import PLAIN_RULES, FileRules, Section

TEN_YEARS_S = 315_360_000
MAX_WORKERS = 2  # of a file that gives none
MANY = 1_000_000  # machines: more than any cluster has; where `inf` is allowed, it means this

Count = Annotated[int, Meta(ge=0, le=MANY)]
PositiveCount = Annotated[int, Meta(ge=1, le=MANY)]
Quantity = Annotated[float, Meta(ge=0, le=MAX_QUANTITY)]
Price = Annotated[float, Meta(ge=0, le=1_000_000)]
Speed = Annotated[float, Meta(ge=0, le=1_000_000)]
PositiveSpeed = Annotated[float, Meta(gt=0, le=1_000_000)]
Minutes = Annotated[float, Meta(ge=0, le=5_256_000)]  # ten years
PositiveMinutes = Annotated[float, Meta(gt=0, le=5_256_000)]
Seconds = Annotated[float, Meta(ge=0, le=TEN_YEARS_S)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=TEN_YEARS_S)]
Interval = Annotated[float, Meta(ge=0.05, le=86_400)]  # between two ticks of the monitor
Priority = Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Bytes = Annotated[int, Meta(ge=0, le=2**50)]


class Market(Enum):
    """Says how a machine is launched."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"


class SectionAsWritten(Section, frozen=True, kw_only=True, omit_defaults=True):
    """Keeps what was written beside the typed keys, for others that read plain data."""

    kept_in: ClassVar[str] = "written"

    written: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Return the section as plain data: the keys of the file (or the values, when made by code)."""
        if self.written:
            return dict(self.written)
        found: dict[str, Any] = to_builtins(self)
        return found


class HostConfig(Section, frozen=True, kw_only=True):
    """One entry of `provider.hosts`: a computer of a rack; the rest is that of `auth`."""

    ip: str  # or a name
    type: str | None = None  # of available_node_types; None: the only one for workers
    head: bool = False
    ssh_port: Annotated[int, Meta(ge=1, le=65_535)] = 22
    user: str | None = None
    ssh_private_key: str | None = None
    ssh_proxy_command: str | None = None


class ProviderConfig(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """Has the keys of `provider` that the core reads; `settings()` has all others, too."""

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
    hosts: tuple[HostConfig, ...] = ()  # ours, see KIND_KEYS
    lock_dir: str = "/tmp"  # ours, see KIND_KEYS: where a host says which cluster has it
    coordinator_address: str | None = None


# Keys with a meaning for kinds with `FileRules.own_keys` only; a user's provider may have the same names.
KIND_KEYS = frozenset({"hosts", "lock_dir"})


class AuthConfig(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """The section `auth`: how to log in to machines."""

    ssh_user: str = "ubuntu"
    ssh_private_key: str | None = None
    ssh_public_key: str | None = None
    ssh_proxy_command: str | None = None
    ssh_proxy_use_node_id: bool = False
    strict_host_keys: bool = True  # ours: pinned on first use


class DockerConfig(Section, frozen=True, kw_only=True):
    """The section `docker`; without a container_name no container is used."""

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
    """A NodeTypeDocker is `docker` of one node type: what differs from the cluster's; None: nothing."""

    pull_before_run: bool | None = None
    worker_image: str | None = None
    worker_run_options: tuple[str, ...] | None = None


class LegacyMachine(SectionAsWritten, frozen=True, kw_only=True, omit_defaults=True):
    """A LegacyMachine is `head_node` or `worker_nodes`, the old form: a node_config with `resources`."""

    takes_any_key: ClassVar[bool] = True

    resources: dict[str, Quantity] | None = None


class SetupConfig(Section, frozen=True, kw_only=True):
    """Says how long muster waits for a machine that it sets up, and how often it tries."""

    ready_s: PositiveSeconds = 900.0  # until it answers
    refused_s: Seconds = 180.0  # while it refuses the key: a new machine gets its keys late
    interval_s: Annotated[float, Meta(ge=0.05, le=3600)] = 5.0
    command_s: PositiveSeconds = 3600.0
    command_tries: PositiveCount = 2


class LimitsConfig(Section, frozen=True, kw_only=True):
    """Limits how many machines may be on their way at once."""

    max_concurrent: Count = 10
    max_request_retries: Count = 3
    max_launch_batch: PositiveCount = 5  # machines per create call of a provider


class RetentionConfig(Section, frozen=True, kw_only=True):
    """Limits how much of the past the ledger keeps; the smallest limit counts."""

    max_age_s: Seconds = 86_400.0
    max_records: Count = 10_000  # of machines that are gone
    max_decisions: Count = 10_000
    max_decision_bytes: Bytes = 64 * 2**20


class MonitorConfig(Section, frozen=True, kw_only=True):
    """Says how the monitor runs."""

    interval_s: Interval = 1.0  # between two ticks while something changes
    max_interval_s: Interval = 5.0  # while nothing does
    metrics_port: Port | None = None  # None: 44217 when it is free, else any; 0: any

    @property
    def longest_interval_s(self) -> float:
        """Return the longest interval, never less than the interval, which may come from a variable."""
        return max(self.interval_s, self.max_interval_s)


class BackupConfig(Section, frozen=True, kw_only=True):
    """Says where copies of the ledger go, so that a new head can start from one."""

    to: str | None = None  # a directory of the head, or an fsspec URL; None: no copies
    interval_s: PositiveSeconds = 300.0  # a change is copied at once; without one, after so long
    keep: PositiveCount = 5


class NoticesConfig(Section, frozen=True, kw_only=True):
    """Says what is done when the cloud announces that it will take a machine."""

    source: Literal["aws", "azure", "gcp", "none"] | None = None  # None: that of the kind of provider
    address: str = ""  # of the metadata service; empty: that of the cloud
    ahead_s: Seconds = 600.0
    rebalance_s: Seconds | None = 600.0
    pool_pause_s: Seconds = 180.0


class BudgetConfig(Section, frozen=True, kw_only=True):
    """What the cluster may cost, the head included; nothing is launched beyond it."""

    per_hour: Price | None = None  # $ per hour of all machines at once
    total: Annotated[float, Meta(ge=0, le=1e9)] | None = None  # $ in all, or in each period
    period: Literal["hour", "day", "week", "month"] | None = None  # None: one budget forever


class ForecastsConfig(Section, frozen=True, kw_only=True):
    """Says how what tuners expect is used."""

    used: bool = True
    boot_s: PositiveSeconds = 150.0
    keep_s: Seconds = 15.0
    most_boot_share: Annotated[float, Meta(gt=0, le=1)] = 0.1
    first_slots: PositiveCount = 16


class MusterConfig(Section, frozen=True, kw_only=True):
    """The section `muster`."""

    objective: Objective = Objective.AUTO
    conserve_gpus: bool = True
    timeouts: Timeouts = Timeouts()
    limits: LimitsConfig = LimitsConfig()
    setup: SetupConfig = SetupConfig()
    backoff: Backoff = Backoff()
    retention: RetentionConfig = RetentionConfig()
    monitor: MonitorConfig = MonitorConfig()
    prices: str | None = None  # a CSV file, relative to the cluster file
    backup: BackupConfig = BackupConfig()
    notices: NoticesConfig = NoticesConfig()
    budget: BudgetConfig | None = None
    consolidation: Consolidation = Consolidation.CONSERVATIVE
    forecasts: ForecastsConfig = ForecastsConfig()
    lease_minutes: PositiveMinutes | None = None  # a worker whose head is silent for so long ends itself


class OfferConfig(Section, frozen=True, kw_only=True):
    """One entry of a node type's `offers`: a zone and a market where it can be launched."""

    zone: str = ""  # empty: the provider chooses
    market: Market = Market.ON_DEMAND
    price_per_hour: Price | None = None  # None: that of the price file, else the type's
    max_workers: Count | None = None  # None: the type's
    billing_minimum_s: Seconds = 0.0
    billing_granularity_s: Seconds = 0.0


class NodeTypeConfig(Section, frozen=True, kw_only=True):
    """One entry of `available_node_types`; a head of this type is not counted."""

    # Ray accepts whole numbers only; so does `ray start` for CPU and GPU. May be left out for known machines.
    resources: dict[str, Quantity] = field(default_factory=dict)
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
    speed: PositiveSpeed = 1.0  # ours: of work on it, beside the other types
    offers: tuple[OfferConfig, ...] = ()  # ours: where it can be launched, and at which price


class ClusterConfig(Section, frozen=True, kw_only=True):
    """The whole file, and the rules of its provider's kind by which it was read."""

    not_keys: ClassVar[frozenset[str]] = frozenset({"rules"})

    cluster_name: str = "default"
    provider: ProviderConfig
    max_workers: Count = MAX_WORKERS
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
    rules: FileRules = PLAIN_RULES

    @property
    def has_worker_commands(self) -> bool:
        """Return whether muster sets workers up; without commands they must start their nodes themselves."""
        return not self.provider.disable_node_updaters and bool(self.worker_start_ray_commands)

    def plain(self) -> dict[str, Any]:
        """Return the file as plain data."""
        found: dict[str, Any] = to_builtins(self, enc_hook=lambda rules: None)
        del found["rules"]
        return found

    @property
    def head_type(self) -> str:
        """Return the head's node type, given or the only one."""
        return self.head_node_type or next(iter(self.available_node_types), "")

    def type_max_workers(self, name: str) -> int:
        """Return how many workers of a type there may be, defaults applied."""
        own = self.available_node_types[name].max_workers
        if own is not None:
            return own
        return 0 if name == self.head_type else self.max_workers

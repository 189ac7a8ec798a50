"""Define the snapshot that one tick decides from, the time included, and what planning remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from muster.base.forecast import Forecast
from muster.base.ids import CloudId, InstanceId, RequestId
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    DrainFailure,
    FailureKind,
    IdlePolicy,
    InstallFailure,
    Instance,
    LaunchFailure,
    Notice,
    NoticeKind,
    ResizeFailure,
    RuntimeReport,
    TerminateFailure,
)


class ProviderTraits(Struct, frozen=True, kw_only=True):
    """What a provider can do, as data: planning never asks for its class."""

    read_only: bool = False  # nothing may be launched or terminated, perhaps only at present
    lists_nodes: bool = False  # its machines are the nodes of the runtime: it lists no others
    installs_runtime: bool = True  # machines come up with the runtime; False: muster's installer does it
    resizable: bool = False  # can change a machine's size in place, and reports a ResizeStatus of each
    idle_policies: tuple[IdlePolicy, ...] = ()  # what it can do with a cluster that nobody uses
    refills_minimums: bool = False  # it launches machines up to a type's minimum whatever muster decides
    ids_ignore_case: bool = False  # it may list one machine as vm-a1 and as VM-A1
    buys_offers: bool = False  # a launch may name the zone and the market
    takes_next_offer: bool = False  # and several offers: machines come from the first that has some
    # A launch cannot be repeated safely, but its machines are listed within this time. 0: it can be repeated.
    listed_within_s: float = 0.0


class Quarantined(Struct, frozen=True, kw_only=True):
    """An input that was left out so that the rest of the tick could continue."""

    source: str  # "record i-17", "cloud", "demand 3", "rule timeouts"
    message: str


class TypeHealth(Struct, frozen=True, kw_only=True):
    """The recent failures of a node type or of one offer; the ledger keeps it."""

    failures: float = 0.0  # decayed count
    failed_at: float = 0.0
    blocked_until: float = 0.0
    kind: FailureKind = FailureKind.UNKNOWN
    message: str = ""
    timed_out_at: float | None = None  # the newest ALLOCATION_TIMEOUT, for Ray's availability score
    is_on_trial: bool = False  # a set-up failed, and no newer machine has come up: one at a time is tried


class WithoutDrivers(Struct, frozen=True, kw_only=True):
    """What is known about who uses the cluster."""

    since: float | None = None  # since when nobody does; None: somebody does, or it is not known
    last_end: float = 0.0  # the newest end of a driver that was seen, by the runtime's clock
    asked_at: float | None = None  # when the provider was last asked to end the cluster


class PoolRecord(Struct, frozen=True, kw_only=True):
    """How often the cloud took machines of a (type, zone, market), older times less."""

    machine_s: float = 0.0  # seconds that its ended machines lived
    losses: float = 0.0  # how many of them the cloud took
    at: float = 0.0  # when this was last brought up to date


class BudgetPeriod(Struct, frozen=True, kw_only=True):
    """The running period of a budget."""

    since: float | None = None  # None: none has begun
    spent_before: float = 0.0  # $ spent until then


class BootMark(NamedTuple):
    """A reading of a steady clock, for the next process of the same boot."""

    boot_id: str
    elapsed_s: float
    at: float


class UnplacedNode(Struct, frozen=True, kw_only=True):
    """A live node on no known machine: what it says about its machine."""

    since: float  # when a report first showed it
    node_type: str = ""
    cloud_id: CloudId | None = None  # its own, or that of the machine with its ip; None: not known
    ip: str = ""
    has_clone: bool = False  # another node has its id
    unreported: tuple[float, float] | None = None  # the first and the newest report without it


class UnclearLaunch(Struct, frozen=True, kw_only=True):
    """A machine whose request is over although the machine may exist, not listed yet."""

    request_id: RequestId  # as its record had it
    node_type: str
    until: float  # a machine that is not listed by then does not exist


class Memory(Struct, frozen=True, kw_only=True):
    """What planning carries from tick to tick besides the instances."""

    health: Mapping[str, TypeHealth] = field(default_factory=dict)  # key: `model.health_key`
    # Per type: since when at least k+1 machines on their way have been unneeded.
    pending_idle: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    spent: float = 0.0  # $ of machines that are gone; live ones are added by `cost.spend_so_far`
    # Nodes of ended records that the runtime still lists: never adopted again. Value: when the record ended.
    ended_nodes: Mapping[str, float] = field(default_factory=dict)
    # Machines given up a short time ago: one that is listed again is still ours to end. Value: when.
    ended_machines: Mapping[str, float] = field(default_factory=dict)
    # Serving records whose nodes the reports lack: since when, as it counts; the newest; the first of them.
    unreported: Mapping[InstanceId, tuple[float, float, float]] = field(default_factory=dict)
    unplaced_nodes: Mapping[str, UnplacedNode] = field(default_factory=dict)
    # Of the newest report of the runtime, as far as records follow it: their changes and missing nodes.
    report_version: int = -1
    reported_at: float | None = None  # when that report was read
    # Machines that may still be listed, by record and attempt: they count against limits until then.
    unclear_launches: Mapping[str, UnclearLaunch] = field(default_factory=dict)
    # When a list was last read that lacked a machine which may be gone: nobody has looked since.
    listed_at: float | None = None
    # Types whose machines could not grow : new ones are planned as they are launched. Value: until when.
    ungrowing: Mapping[str, float] = field(default_factory=dict)
    without_drivers: WithoutDrivers = WithoutDrivers()
    # Notices that are known: machine -> what was announced. An entry stays as long as its notice.
    noticed: Mapping[str, NoticeKind] = field(default_factory=dict)
    # The same notices: when each was written, by the wall clock of then, and when it was first read.
    noticed_at: Mapping[str, tuple[float | None, float]] = field(default_factory=dict)
    # Until when nodes under notice have to be empty: machine -> time.
    drained_until: Mapping[str, float] = field(default_factory=dict)
    # How long machines took from the request to a serving node, a moving average by node type.
    boot_s: Mapping[str, float] = field(default_factory=dict)
    pools: Mapping[str, PoolRecord] = field(default_factory=dict)  # key: `model.health_key`
    budget_period: BudgetPeriod = BudgetPeriod()
    clock: BootMark | None = None  # the steady clock at some moment of the newest boot, at most an hour ago
    uncharged: float = 0.0  # $ of time that passed by the wall clock of a new boot alone; not in the spend
    # Since when each verdict holds: subject and code -> time.
    verdict_since: Mapping[str, float] = field(default_factory=dict)


class FailedLaunch(Struct, frozen=True, kw_only=True):
    """Machine that was launched recently and did not come or could not be set up, for the report."""

    instance_id: InstanceId
    node_type: str
    started_at: float
    failed_at: float
    reason: str
    offer: str = ""  # its name within the type; "" without offers
    machine_type: str = ""  # the provider's name of the type, by the cluster file of today


class Snapshot(Struct, frozen=True, kw_only=True):
    """All input of one tick. `instances` holds live records only: ended ones cost no time."""

    tick_id: str
    now: float
    version: int = 0
    spec: ClusterSpec = ClusterSpec()
    instances: Mapping[InstanceId, Instance] = field(default_factory=dict)
    cloud: Mapping[CloudId, CloudInstance] | None = None  # None: the list could not be read this time
    runtime: RuntimeReport | None = None  # None: the report could not be read this time
    launch_failures: tuple[LaunchFailure, ...] = ()
    terminate_failures: tuple[TerminateFailure, ...] = ()
    drain_failures: tuple[DrainFailure, ...] = ()
    install_failures: tuple[InstallFailure, ...] = ()
    notices: tuple[Notice, ...] | None = ()  # None: they could not be read this time
    resize_failures: tuple[ResizeFailure, ...] = ()
    forecasts: tuple[Forecast, ...] = ()  # of tuners, in the snapshot's time; only those that hold now
    traits: ProviderTraits = ProviderTraits()
    memory: Memory = Memory()
    clock: BootMark | None = None  # the steady clock now
    unseen_s: float = 0.0  # of the time since the last look, what only a new boot's wall clock shows
    recent_failures: tuple[FailedLaunch, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    # Records whose terminate is still in the outbox: the provider may not have heard of it.
    unheard_terminates: frozenset[InstanceId] = frozenset()
    open_launches: frozenset[InstanceId] = frozenset()  # records whose launch is still in the outbox

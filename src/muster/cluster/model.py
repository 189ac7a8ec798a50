"""Define node types, instances, machines, nodes and demand, as frozen data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import pairwise

from msgspec import Struct, field

from muster.base.ids import CloudId, InstanceId, NodeId, RequestId
from muster.base.resources import EMPTY, Resources
from muster.cluster.budget_policy import Budget, Consolidation, ForecastPolicy
from muster.cluster.states import TERMINAL, InstanceState, ResizeLimits, ResizeRecord, ResizeStatus


class NodeKind(Enum):
    """The role of a machine; values are Ray's protocol numbers."""

    UNMANAGED = 0
    HEAD = 1
    WORKER = 2


class Objective(Enum):
    """What the planner optimizes."""

    AUTO = "auto"  # COST when every worker type has a price, else UTILIZATION
    UTILIZATION = "utilization"  # Ray's scoring rule, Ray's choices
    COST = "cost"  # serve the most demand, then pay the least


MARKETS = ("on-demand", "spot", "reserved")


class Offer(Struct, frozen=True, kw_only=True):
    """One way to buy a node type: in a zone, on a market, at a price, billed in its own way."""

    zone: str = ""  # the provider's own name; empty: it chooses
    market: str = "on-demand"
    price_per_hour: float | None = None
    max_nodes: int | None = None  # at once; None: as many as the type may have
    billing_minimum_s: float = 0.0  # billing: a machine costs at least this long
    billing_granularity_s: float = 0.0  # billing: in steps of this length; 0: exactly

    @property
    def name(self) -> str:
        """Return the name by which an offer is known within its type: `us-east-1a/spot`."""
        return offer_name(self.zone, self.market)


def offer_name(zone: str, market: str) -> str:
    """Return the name of the offer with this zone and market; "" for neither."""
    return f"{zone}/{market}" if zone else market


def health_key(node_type: str, offer_name: str) -> str:
    """Return the key of the failures of one offer; those of the whole type are under the type's name."""
    return f"{node_type} {offer_name}" if offer_name else node_type


class NodeType(Struct, frozen=True, kw_only=True):
    """A kind of machine to buy. `min_nodes` and `max_nodes` include a head of this type."""

    name: str
    resources: Resources
    min_nodes: int = 0
    max_nodes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    idle_timeout_s: float | None = None  # None: the cluster's
    price_per_hour: float | None = None
    market: str = "on-demand"
    speed: float = 1.0  # of work on it, beside the other types: twice as fast is worth twice the price
    machine_type: str = ""  # the provider's own name, for reports
    launch_hash: str = ""  # empty: machines of this type are never outdated
    resize: ResizeLimits | None = None
    offers: tuple[Offer, ...] = ()  # in the order of the config: ties of price go to the first; (): no choice
    existing: int | None = None  # machines of this type in the world, as in a rack; None: any number is sold
    gates: tuple[str, ...] = ()  # who forbids new machines of it at present, as a quota controller does

    @property
    def most_nodes(self) -> int:
        """Return how many nodes of this type are available; a host that left its rack serves until idle."""
        return self.max_nodes if self.existing is None else min(self.max_nodes, self.existing)

    @property
    def is_priced(self) -> bool:
        """Return whether it is known what every machine of this type would cost."""
        if self.offers:
            return all(offer.price_per_hour is not None for offer in self.offers)
        return self.price_per_hour is not None

    def offer(self, name: str) -> Offer | None:
        return next((offer for offer in self.offers if offer.name == name), None)


class Timeouts(Struct, frozen=True, kw_only=True):
    """Timeouts limit how long an instance may stay in a transitional state."""

    request_s: float = 600.0
    allocate_s: float = 3600.0
    mistake_s: float = 180.0  # not Ray's: the same for a machine whose configuration is wrong
    other_type_s: float = 60.0  # not Ray's: demand waits so long for a machine without room, if others fit
    install_s: float = 1800.0
    terminating_s: float = 300.0
    stop_requested_s: float = 300.0
    stopping_s: float = 900.0  # not Ray's: a drain by muster ends in termination this long past its deadline
    warn_s: float = 90.0
    listing_grace_s: float = 30.0  # not Ray's: how long lists may lack a machine without a live node
    pending_idle_s: float | None = None  # unneeded machines on their way: None keeps them
    drain_deadline_s: float = 60.0  # not Ray's: time for running work before a machine is taken


class LaunchLimits(Struct, frozen=True, kw_only=True):
    """LaunchLimits bound how fast machines are launched."""

    upscaling_speed: float = 0.0  # new machines at once, as a multiple of those running; at least one
    max_concurrent: int = 10
    max_request_retries: int = 3


class Backoff(Struct, frozen=True, kw_only=True):
    """How long a failed type or offer is not launched; it doubles per failure, and decays."""

    base_s: float = 5.0
    max_s: float = 600.0
    user_action_base_s: float = 60.0  # quota, permission, config, set-up: the user must act
    sold_out_max_s: float = 1800.0  # instead of max_s, where the provider says how long stocks stay empty
    decay_s: float = 300.0
    recovery_s: float = 600.0  # Ray's availability recovery window


class IdlePolicy(Enum):
    """What is done with a whole cluster that nobody uses."""

    SUSPEND = "suspend"  # its machines go, its definition stays
    DELETE = "delete"


class IdleCluster(Struct, frozen=True, kw_only=True):
    """When and how a cluster without drivers ends."""

    timeout_s: float
    policy: IdlePolicy = IdlePolicy.SUSPEND


class NoticePolicy(Struct, frozen=True, kw_only=True):
    """What is done when a cloud announces that it will take a machine."""

    ahead_s: float = 600.0  # a node is drained this long before its deadline, at the earliest
    rebalance_s: float | None = 600.0  # the deadline after a rebalance notice; None: such nodes stay
    pool_pause_s: float = 180.0  # how long nothing is launched from the offer that the machine came from


class ClusterSpec(Struct, frozen=True, kw_only=True):
    """What the user asked for in the cluster file."""

    cluster_name: str = "default"
    head_node_type: str = ""
    node_types: tuple[NodeType, ...] = ()  # in the order of the config: ties go to the first
    max_nodes: int | None = None  # all nodes with the head; None: no limit; 0 is a limit
    idle_timeout_s: float | None = 300.0  # None: idle machines stay
    objective: Objective = Objective.AUTO
    check_launch_hash: bool = False
    conserve_gpus: bool = True
    idle_cluster: IdleCluster | None = None  # None: the cluster stays whoever uses it
    install_runtime: bool = False  # set machines up with muster's installer, unless the provider does it
    timeouts: Timeouts = Timeouts()
    limits: LaunchLimits = LaunchLimits()
    backoff: Backoff = Backoff()
    notices: NoticePolicy = NoticePolicy()
    budget: Budget | None = None
    consolidation: Consolidation = Consolidation.CONSERVATIVE
    forecasts: ForecastPolicy = ForecastPolicy()

    def node_type(self, name: str) -> NodeType | None:
        return next((t for t in self.node_types if t.name == name), None)

    def most_of(self, resource: str) -> int:
        """Return how many units of a resource the limits allow, with the nodes that have the most of it."""
        room = sum(one.most_nodes for one in self.node_types) if self.max_nodes is None else self.max_nodes
        total = 0
        for one in sorted(self.node_types, key=lambda one: -one.resources.units(resource)):
            taken = min(one.most_nodes, room)
            room -= taken
            total += taken * one.resources.units(resource)
        return total


class StopCause(Enum):
    """Why a machine is being removed; values below 100 are Ray's protocol numbers."""

    UNKNOWN = 0
    IDLE = 1
    MAX_NODES_PER_TYPE = 2
    MAX_NODES = 3
    OUTDATED = 4
    NOTICE = 100  # the cloud announced that it will take the machine
    CONSOLIDATION = 101  # its trials continue elsewhere for less
    BUDGET = 102  # the budget does not allow for it any longer
    BROKEN_SLICE = 103  # another machine of its slice is gone


class StatusChange(Struct, frozen=True, array_like=True):
    """One line of an instance's history."""

    state: InstanceState
    at: float
    details: str = ""


_WANTED = frozenset({InstanceState.ALLOCATED, InstanceState.RAY_INSTALLING, InstanceState.RAY_RUNNING})
_GONE = frozenset({InstanceState.RAY_STOPPED, InstanceState.TERMINATED})
_ENDED_BY_USER = "ended by muster down"


class Instance(Struct, frozen=True, kw_only=True):
    """The record of one machine, from the decision to buy it to its end."""

    instance_id: InstanceId
    node_type: str
    state: InstanceState
    kind: NodeKind = NodeKind.WORKER
    cloud_id: CloudId | None = None
    node_id: NodeId | None = None
    launch_request_id: RequestId | None = None
    requested_at: float | None = None  # when the request was made; None: its machine does not name it
    launch_hash: str = ""
    price_per_hour: float | None = None  # fixed when launched, so that spend can be added up later
    offer: Offer | None = None  # what it was launched as, fixed then; None: its type has no offers
    is_pinned: bool = False  # work asks for a label of its offer: it is launched from no other
    stop_cause: StopCause | None = None  # set while a removal is under way
    cancelled: bool = False  # requested, no longer wanted: terminate on arrival
    missing_since: float | None = None  # since when the cloud does not list its machine
    provisional: bool = False  # has a node, but no list has ever shown its machine: never terminated
    is_queued: bool = False  # its machine waits in a queue of the provider, and costs nothing yet
    dequeued_at: float | None = None  # when it left that queue; None: it was in none, or still is
    internal_ip: str = ""
    external_ip: str = ""
    resize: ResizeRecord | None = None  # None: its machine is as it was launched
    history: tuple[StatusChange, ...] = ()
    version: int = 0  # ledger version of the last write

    @property
    def offer_name(self) -> str:
        """Return the offer's name within its type; "" without an offer."""
        return self.offer.name if self.offer is not None else ""

    @property
    def since(self) -> float:
        """Return when the record entered its state; -inf when its history does not contain that."""
        for change in reversed(self.history):
            if change.state is self.state:
                return change.at
        return float("-inf")

    @property
    def details(self) -> str:
        """Return the reason that was recorded for the newest state."""
        return self.history[-1].details if self.history else ""

    def entered(self, state: InstanceState) -> tuple[float, ...]:
        """Return every time at which the record entered `state`, oldest first."""
        return tuple(change.at for change in self.history if change.state is state)

    @property
    def loss(self) -> StatusChange | None:
        """Return the change with which the machine was lost; None when it serves or was asked to go."""
        is_asked = self.cancelled or self.stop_cause is not None
        for before, change in () if is_asked else pairwise(self.history):
            if before.state in _WANTED and change.state in _GONE and change.details != _ENDED_BY_USER:
                return change
        return None


def merged_records(
    live: Mapping[InstanceId, Instance], written: Iterable[Instance]
) -> dict[InstanceId, Instance]:
    """Return the live records after a commit of `written`, in the order in which a restart finds them."""
    merged, is_sorted = dict(live), True
    for record in written:
        if record.state in TERMINAL:
            merged.pop(record.instance_id, None)
        else:
            is_sorted = is_sorted and record.instance_id in live
            merged[record.instance_id] = record
    return merged if is_sorted else dict(sorted(merged.items()))


class CloudInstance(Struct, frozen=True, kw_only=True):
    """A machine as the provider lists it."""

    cloud_id: CloudId
    node_type: str
    kind: NodeKind = NodeKind.WORKER
    is_running: bool = True
    request_id: RequestId | None = None  # the launch it came from, when the provider keeps tags
    launch_hash: str = ""
    internal_ip: str = ""
    external_ip: str = ""
    resize: ResizeStatus | None = None
    zone: str = ""  # where it is, when the provider reports it
    market: str = ""  # how it was launched, when the provider reports it
    problem: MachineProblem | None = None  # why it does not come up, when the provider knows
    slice_id: str = ""  # machines of one slice come and go together; "": it stands alone


class MachineProblem(Struct, frozen=True, kw_only=True):
    """Why a machine that exists does not come up, as its provider reports it."""

    kind: FailureKind
    message: str = ""
    has_place: bool = False  # it waits in a queue: given up, it would lose its place there


class NodeStatus(Enum):
    """A node's state as the runtime reports it; values are Ray's protocol numbers."""

    UNSPECIFIED = 0
    RUNNING = 1
    DEAD = 2
    IDLE = 3
    DRAINING = 4

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a slow Python call


class NodeReport(Struct, frozen=True, kw_only=True):
    """A node as the runtime reports it."""

    node_id: NodeId
    cloud_id: CloudId | None = None
    node_type: str = ""
    status: NodeStatus = NodeStatus.RUNNING
    is_head: bool = False
    total: Resources = EMPTY
    available: Resources = EMPTY
    labels: Mapping[str, str] = field(default_factory=dict)  # static and dynamic merged, dynamic wins
    idle_s: float = 0.0
    ip: str = ""


class LabelOperator(Enum):
    """How a LabelMatch compares."""

    IN = "in"
    NOT_IN = "not-in"


class LabelMatch(Struct, frozen=True, array_like=True):
    """One condition on one label of a node."""

    key: str
    operator: LabelOperator
    values: tuple[str, ...]


Selector = tuple[LabelMatch, ...]  # all must hold; the empty selector holds everywhere


class Demand(Struct, frozen=True, kw_only=True):
    """A Demand is `count` equal requests, each to be held by one node."""

    shape: Resources
    count: int = 1
    selectors: tuple[Selector, ...] = ()  # tried in order; none: any node
    avoid: tuple[str, str] | None = None  # anti-affinity: no node that has this label and value
    name: str = ""  # for users: where it comes from
    is_asked: bool = True  # False: work that still runs elsewhere, or is forecast


class Strategy(Enum):
    """How the bundles of a gang are spread over nodes."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"


class Gang(Struct, frozen=True, kw_only=True):
    """Bundles that are placed together or not at all. `options` are tried in order."""

    gang_id: str
    strategy: Strategy
    options: tuple[tuple[Demand, ...], ...]
    locality_label: str = ""  # when set: all nodes of the gang share one value of this label

    @property
    def label(self) -> str:
        """Return the label that a node carries once it holds a bundle of this gang."""
        return f"_PG_{self.gang_id}"


class Constraint(Struct, frozen=True, kw_only=True):
    """A size the cluster must have whatever runs on it; it is compared with totals."""

    demands: tuple[Demand, ...]


class DriverReport(Struct, frozen=True, kw_only=True):
    """Who uses the cluster: programs of users, without the runtime's own."""

    live: int = 0
    last_end: float = 0.0  # when the newest one ended, by the runtime's own clock; 0: none has
    names: tuple[str, ...] | None = None  # of those that live, as forecasts name them; None: not known


class RuntimeReport(Struct, frozen=True, kw_only=True):
    """One consistent report of the runtime."""

    version: int = 0
    nodes: tuple[NodeReport, ...] = ()
    demands: tuple[Demand, ...] = ()
    gangs: tuple[Gang, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    drivers: DriverReport | None = None  # None: not asked for, or not known


class NoticeKind(Enum):
    """What a cloud announced about a machine."""

    INTERRUPTION = "interruption"  # it is taken at the deadline
    MAINTENANCE = "maintenance"  # it is stopped or restarted at the deadline
    REBALANCE = "rebalance"  # it may be taken soon; there is no deadline


class Notice(Struct, frozen=True, kw_only=True):
    """The cloud's announcement that a machine will go, as the machine itself read it."""

    cloud_id: CloudId
    kind: NoticeKind
    deadline: float | None = None  # seconds since the epoch
    source: str = ""  # for users: where it was read
    at: float | None = None  # when it was read, by the machine's clock; None: it is of this machine
    is_cancelled: bool = False  # the cloud took it back
    written_at: float | None = None  # as `at`, by the wall clock of then: tells one notice from another


class FailureKind(Enum):
    """Why a provider refused, or a machine is of no use; it decides the reaction."""

    CAPACITY = "capacity"  # sold out: another offer or type now, this one later
    QUOTA = "quota"  # the account's limit: the user must act
    PERMISSION = "permission"  # credentials: the user must act
    THROTTLED = "throttled"  # too many calls: slower
    CONFIG = "config"  # can never work as written: the user must act
    UNKNOWN = "unknown"
    SETUP = "setup"  # never a provider's: the machine came and could not be set up


NEEDS_USER_ACTION = frozenset(
    {FailureKind.QUOTA, FailureKind.PERMISSION, FailureKind.CONFIG, FailureKind.SETUP}
)


class LaunchFailure(Struct, frozen=True, kw_only=True):
    """One machine that will not come: one unit of one launch request."""

    request_id: RequestId
    node_type: str
    kind: FailureKind = FailureKind.UNKNOWN
    message: str = ""
    offer: str = ""  # the offer's name, when the provider knows that only this one is concerned
    also: tuple[str, ...] = ()  # other offers of the type that the same call has found to be the same
    pause_s: float | None = None  # the first pause, as the provider knows it; None: as after any failure
    may_exist: bool = False  # the machine may have been made all the same, and be listed later
    is_repeat: bool = False  # of a repeated call: the first one may have worked, so that no record fails


class TerminateFailure(Struct, frozen=True, kw_only=True):
    """One machine that the provider did not terminate."""

    cloud_id: CloudId
    kind: FailureKind = FailureKind.UNKNOWN
    message: str = ""


class DrainFailure(Struct, frozen=True, kw_only=True):
    """A drain that the runtime refused or that could not be delivered."""

    instance_id: InstanceId
    message: str = ""


class ResizeFailure(Struct, frozen=True, kw_only=True):
    """A change of size that the provider, or the runtime for the node, refused."""

    cloud_id: CloudId
    kind: FailureKind = FailureKind.UNKNOWN
    message: str = ""
    is_of_node: bool = False  # the runtime did not take the new size of the machine's node


class InstallFailure(Struct, frozen=True, kw_only=True):
    """A machine on which the runtime could not be set up."""

    instance_id: InstanceId
    message: str = ""

"""Define what one tick decides: records to write, effects to cause, reasons to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from muster.base.ids import CloudId, InstanceId, NodeId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, IdlePolicy, InstallFailure, Instance, Offer, StopCause
from muster.cluster.snapshot import BootMark, FailedLaunch, Memory, Quarantined


class Launch(Struct, frozen=True, kw_only=True, tag="launch", omit_defaults=True):
    """Buys machines: a count per node type, for these records; with an offer, of one type."""

    request_id: RequestId
    shape: Mapping[str, int]
    instance_ids: tuple[InstanceId, ...]
    offers: tuple[Offer, ...] = ()  # the next ones where the provider may take what the first has not

    @property
    def offer(self) -> Offer | None:
        """The offer that is wanted; None for types without offers, or a provider that does not choose."""
        return self.offers[0] if self.offers else None


class Terminate(Struct, frozen=True, kw_only=True, tag="terminate"):
    """Gives machines back."""

    request_id: RequestId
    cloud_ids: tuple[CloudId, ...]
    instance_ids: tuple[InstanceId, ...]


class Install(Struct, frozen=True, kw_only=True, tag="install"):
    """Sets one machine up."""

    request_id: RequestId
    instance_id: InstanceId
    cloud_id: CloudId
    node_type: str
    place: Mapping[str, str] = field(default_factory=dict)  # variables of its zone and market


class Drain(Struct, frozen=True, kw_only=True, tag="drain"):
    """Asks the runtime to empty one node. An idle drain may be refused; others have a deadline."""

    request_id: RequestId
    instance_id: InstanceId
    node_id: NodeId
    cause: StopCause
    deadline_s: float  # from now; what running work gets
    message: str = ""

    @property
    def may_be_refused(self) -> bool:
        return self.cause is StopCause.IDLE


class Resize(Struct, frozen=True, kw_only=True, tag="resize"):
    """Changes one machine's size in place."""

    request_id: RequestId
    instance_id: InstanceId
    cloud_id: CloudId
    desired: Resources


class ResizeNode(Struct, frozen=True, kw_only=True, tag="resize-node"):
    """Lets the runtime count another size of a node: its machine has it or will shrink to it."""

    request_id: RequestId
    instance_id: InstanceId
    cloud_id: CloudId
    node_id: NodeId
    desired: Resources


def drain_of(instance: Instance, request_id: str, cause: StopCause, deadline_s: float, message: str) -> Drain:
    """Return the drain of a record's node."""
    assert instance.node_id is not None
    return Drain(
        request_id=RequestId(request_id),
        instance_id=instance.instance_id,
        node_id=instance.node_id,
        cause=cause,
        deadline_s=deadline_s,
        message=message,
    )


def resize_of(instance: Instance, fresh_id: str, size: Resources) -> Resize:
    """Return the change of the size of a record's machine."""
    cloud_id = instance.cloud_id
    assert cloud_id is not None
    return Resize(
        request_id=RequestId(fresh_id), instance_id=instance.instance_id, cloud_id=cloud_id, desired=size
    )


class EndCluster(Struct, frozen=True, kw_only=True, tag="end-cluster"):
    """Suspends or deletes the whole cluster; one that an earlier tick decided is void."""

    request_id: RequestId
    policy: IdlePolicy


Action = Launch | Terminate | Install | Drain | Resize | ResizeNode | EndCluster


class Subject(Enum):
    """What a verdict is about."""

    DEMAND = "demand"
    GANG = "gang"
    CONSTRAINT = "constraint"
    NODE = "node"
    NODE_TYPE = "node-type"
    CLUSTER = "cluster"


class Reason(Enum):
    """A machine-readable answer to "why"."""

    # demand, gang, constraint
    PLACED = "placed"  # fits on nodes that run
    WAITING_FOR_NODE = "waiting-for-node"  # fits on machines that are on their way
    WAITING_FOR_LAUNCH = "waiting-for-launch"  # machines are being launched for it
    WAITING_FOR_RESIZE = "waiting-for-resize"  # a machine is being enlarged for it
    BLOCKED_BY_TYPE_LIMIT = "blocked-by-type-limit"  # every type that could hold it is at its maximum
    BLOCKED_BY_CLUSTER_LIMIT = "blocked-by-cluster-limit"  # the cluster is at its maximum
    BLOCKED_BY_BACKOFF = "blocked-by-backoff"  # the types that could hold it failed lately
    BLOCKED_BY_BUDGET = "blocked-by-budget"  # the budget does not allow for more machines
    WAITING_FOR_TURN = "waiting-for-turn"  # a place will be free sooner, or for less, than a new machine
    BLOCKED_BY_GANG = "blocked-by-gang"  # it would fit alone, but not with all its siblings
    INFEASIBLE = "infeasible"  # no type could ever hold it
    INVALID = "invalid"  # the request itself cannot be used
    # node
    KEPT_BUSY = "kept-busy"
    KEPT_HEAD = "kept-head"
    KEPT_NEEDED = "kept-needed"  # demand was planned onto it
    KEPT_MIN_NODES = "kept-min-nodes"
    KEPT_NOT_IDLE_LONG_ENOUGH = "kept-not-idle-long-enough"
    KEPT_PENDING = "kept-pending"  # on its way
    WAITING_IN_QUEUE = "waiting-in-queue"  # the machine waits for its turn in a queue of the provider
    WAITING_FOR_QUOTA = "waiting-for-quota"  # a quota controller holds the machine back
    REMOVED_IDLE = "removed-idle"
    REMOVED_OUTDATED = "removed-outdated"
    REMOVED_MAX_NODES = "removed-max-nodes"
    REMOVED_MAX_NODES_PER_TYPE = "removed-max-nodes-per-type"
    REMOVED_CONSOLIDATED = "removed-consolidated"  # its trials continue elsewhere for less
    REMOVED_BUDGET = "removed-budget"  # the budget is used up
    REMOVED_FAILED = "removed-failed"  # timed out, not installable, dead
    LEAVING = "leaving"  # removal is under way
    RESIZE_FAILED = "resize-failed"  # it stays as large as it is
    LOST = "lost"  # its node or machine went, and nobody had asked for it
    WILL_BE_TAKEN = "will-be-taken"  # the cloud announced it; the node still serves
    # node type
    TYPE_CHOSEN = "type-chosen"
    TYPE_NOT_BEST = "type-not-best"  # would do, another was better
    TYPE_LACKS_RESOURCES = "type-lacks-resources"
    TYPE_LABELS_DIFFER = "type-labels-differ"
    TYPE_AT_MAXIMUM = "type-at-maximum"
    TYPE_BACKED_OFF = "type-backed-off"
    TYPE_NEEDS_USER_ACTION = "type-needs-user-action"  # quota, permission, config, set-up: a user must act
    # cluster
    WAITING_FOR_HEAD = "waiting-for-head"
    READ_ONLY = "read-only"
    WITHOUT_DRIVERS = "without-drivers"  # nobody uses the cluster, which ends after a while
    RUNTIME_UNREADABLE = "runtime-unreadable"
    CLOUD_UNREADABLE = "cloud-unreadable"
    BUDGET = "budget"  # what is spent and reserved of the budget
    DEADLINE = "deadline"  # an experiment will not be done in time, and what would help
    STUCK = "stuck"  # an instance is in a transitional state for longer than the warn interval


SERVED = frozenset(
    {
        Reason.PLACED,
        Reason.WAITING_FOR_NODE,
        Reason.WAITING_FOR_LAUNCH,
        Reason.WAITING_FOR_RESIZE,
        Reason.WAITING_FOR_TURN,
    }
)


NOTHING: Mapping[str, float] = {}  # shared by the thousands of verdicts that lack nothing


class Verdict(Struct, frozen=True, kw_only=True, gc=False):
    """Why something is as it is; status, logs and `why` show verdicts and nothing else."""

    subject: Subject
    subject_id: str
    reason: Reason
    count: int = 1  # how many of the subject's requests this is about
    detail: str = ""  # for users
    target: str = ""  # the node, instance or node type meant
    lacks: Mapping[str, float] = field(default_factory=lambda: NOTHING)  # what the nearest type is short of
    since: float | None = None


class PendingRequest(Struct, frozen=True, kw_only=True):
    """Machines that are wanted or requested and do not exist yet."""

    node_type: str
    machine_type: str
    count: int
    requested_at: float
    request_id: str = ""


class PendingInstance(Struct, frozen=True, kw_only=True):
    """A machine that exists and does not serve yet."""

    instance_id: InstanceId
    node_type: str
    machine_type: str
    ip: str
    details: str


class ScalingReport(Struct, frozen=True, kw_only=True):
    """What is published to the runtime and its tools (`ray status`)."""

    seen_runtime_version: int = 0
    pending_requests: tuple[PendingRequest, ...] = ()
    pending_instances: tuple[PendingInstance, ...] = ()
    failed_launches: tuple[FailedLaunch, ...] = ()
    infeasible_demands: tuple[Demand, ...] = ()
    infeasible_gangs: tuple[Gang, ...] = ()
    infeasible_constraints: tuple[Demand, ...] = ()


class Plan(Struct, frozen=True, kw_only=True):
    """The decision of one tick: first committed, then carried out."""

    tick_id: str
    at: float
    writes: tuple[Instance, ...] = ()
    actions: tuple[Action, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    memory: Memory = Memory()
    report: ScalingReport = ScalingReport()
    undecided: tuple[InstallFailure, ...] = ()  # kept in the inbox for a later tick
    occupied: frozenset[InstanceId] = (
        frozenset()
    )  # machines on which a node may run unseen: no second install

    def fields(self) -> dict[str, object]:
        """Return the fields of the one log line of a tick; empty when nothing changed."""
        shown = Counter(instance.state.name.lower() for instance in self.writes)
        shown.update(f"{type(action).__name__.lower()}_calls" for action in self.actions)
        if self.quarantined:
            shown["quarantined"] = len(self.quarantined)
        return {"tick": self.tick_id, **shown} if shown else {}


MARKED_EVERY_S = 3600.0


def newer_mark(known: BootMark | None, now: BootMark | None) -> BootMark | None:
    """Return the mark to remember: another boot's at once, one of the same boot rarely."""
    if known is None or now is None or known.boot_id != now.boot_id:
        return now or known
    return now if now.at - known.at >= MARKED_EVERY_S else known


_MARK = "~"


def attempt_id(base: RequestId, attempt: int, tick_id: str) -> RequestId:
    """Return the request id of the n-th attempt (the first is the base itself).

    The tick is part of it: launch limits may spread the retries of one batch over several ticks, and an
    idempotent provider buys nothing for an id it has seen.
    """
    return base if attempt <= 1 else RequestId(f"{base}{_MARK}{attempt}.{tick_id}")


def attempt_of(request_id: RequestId) -> int:
    """Return the number of the attempt; 0 when the id is not one of muster's."""
    mark, number = request_id.partition(_MARK)[1:]
    if not mark:
        return 1
    digits = number.partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def base_id(request_id: RequestId) -> RequestId:
    """Return the id that the record keeps."""
    return RequestId(request_id.partition(_MARK)[0])

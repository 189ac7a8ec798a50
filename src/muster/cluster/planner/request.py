"""Define the planner's requests and answer.

Two levels. `PackRequest -> Packing` is the whole pass (limits, minimums, gangs, idle nodes; `pack.py`).
`PackProblem -> PackSolution` is its inner question, answered by one engine per objective (`utilization/`,
`cost/`): given these nodes and this much room for new ones, where does the demand go?
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.base.resources import Resources
from muster.cluster.cost import billed_share
from muster.cluster.model import (
    ClusterSpec,
    Constraint,
    Demand,
    FailureKind,
    Gang,
    NodeKind,
    NodeType,
    Objective,
    Offer,
    StopCause,
)
from muster.cluster.states import InstanceState, ResizeStatus


class PackNode(Struct, frozen=True, kw_only=True, gc=False):
    """One node as planning sees it: what it has, what is free, whether it runs already."""

    key: str  # instance id; "" for a machine this pass decided to buy
    node_type: str
    total: Resources
    available: Resources
    state: InstanceState = InstanceState.RAY_RUNNING  # QUEUED for a machine this pass decided to buy
    kind: NodeKind = NodeKind.WORKER
    labels: Mapping[str, str] = field(default_factory=dict)
    idle_s: float = 0.0
    launch_hash: str = ""
    resize: ResizeStatus | None = None
    offer: str = ""  # the name of the offer it was launched from; "" before its launch, and without offers

    @property
    def runs(self) -> bool:
        """Return whether the node is registered: then `available` is what the runtime reports."""
        return self.state is InstanceState.RAY_RUNNING


# Ray's labels of a zone and a market. `ray start` makes them from RAY_NODE_ZONE and RAY_NODE_MARKET_TYPE.
ZONE_LABEL, MARKET_LABEL = "ray.io/availability-zone", "ray.io/market-type"


def labels_of(offer: Offer | None, known: NodeType | None) -> dict[str, str]:
    """Return the labels of a node on a machine of this type that comes from this offer."""
    place = {} if offer is None else {ZONE_LABEL: offer.zone, MARKET_LABEL: offer.market}
    return {**{name: value for name, value in place.items() if value}, **(known.labels if known else {})}


class OfferState(Struct, frozen=True, kw_only=True):
    """One offer of a type as it can be launched from right now."""

    offer: Offer
    room: int  # how many more from it; 0 when at its maximum or backed off
    blocked_kind: FailureKind | None = None  # why it is backed off
    blocked_until: float = 0.0
    blocked_message: str = ""
    risk: float = 0.0  # the share of its price that is expected to be lost when the cloud takes machines

    @property
    def expected_price(self) -> float | None:
        """Return $ per hour of useful work, as it is billed; None without a price."""
        price = self.offer.price_per_hour
        return None if price is None else price * (1.0 + self.risk) * billed_share(self.offer)


class TypeOffer(Struct, frozen=True, kw_only=True):
    """One node type as it can be launched right now, over all its offers."""

    node_type: NodeType
    room: int  # how many more of it; 0 when at its maximum or backed off
    availability: float = 1.0  # Ray's cloud availability, a tie-break
    recoverable: float = 1.0  # Ray's recovering availability, a stronger tie-break
    blocked_kind: FailureKind | None = None  # why it is backed off
    blocked_until: float = 0.0
    blocked_message: str = ""
    blocked_offer: str = ""  # all offers are backed off, and this one will be tried first
    choices: tuple[OfferState, ...] = ()  # of a type with offers, in the order of the config


class PackProblem(Struct, frozen=True, kw_only=True):
    """Asks where the demand goes; everything invalid or superfluous has been removed before."""

    nodes: tuple[PackNode, ...]  # in list order: exact ties go to the first
    offers: tuple[TypeOffer, ...]  # in config order
    room: int | None  # how many new nodes the cluster may still get; None: any number
    constraints: tuple[Demand, ...] = ()  # counted against totals
    gangs: tuple[Gang, ...] = ()
    demands: tuple[Demand, ...] = ()
    conserve_gpus: bool = True


class DemandKind(Enum):
    """Says what a request is counted against: what is free, or what a node has in all."""

    DEMAND = "demand"
    CONSTRAINT = "constraint"


class Placement(NamedTuple):
    """A Placement is `amount` requests of one item on one node, or on new machines of one type.

    `item` indexes PackProblem.demands, or .constraints when `kind` is CONSTRAINT, or .gangs when `is_gang`
    (then `amount` counts bundles). `node` indexes PackProblem.nodes; -1 means new machines of `node_type`.
    """

    kind: DemandKind
    is_gang: bool
    item: int
    node: int
    node_type: str
    amount: int


class Unplaced(NamedTuple):
    """An Unplaced is `amount` requests of one item that found no place (for a gang: all its bundles)."""

    kind: DemandKind
    is_gang: bool
    item: int
    amount: int


class PackSolution(Struct, frozen=True, kw_only=True):
    """Has every request of the problem in exactly one placement or in `unplaced`."""

    launch: Mapping[str, int]
    placements: tuple[Placement, ...]
    unplaced: tuple[Unplaced, ...]
    resize: Mapping[int, Resources] = field(default_factory=dict)  # index into PackProblem.nodes -> new size
    pinned: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # as in Packing


class PackRequest(Struct, frozen=True, kw_only=True):
    """The whole planning question of one tick."""

    now: float
    nodes: tuple[PackNode, ...]  # those that may serve work; draining ones are only counted, see `leaving`
    offers: tuple[TypeOffer, ...]  # every type of the config; `room` is recomputed by `pack`
    max_nodes: int | None
    # Per type, nodes on their way out that may still come back (idle drains): they count against the limits.
    leaving: Mapping[str, int] = field(default_factory=dict)
    leaving_offers: Mapping[str, int] = field(default_factory=dict)  # the same, by `model.health_key`
    constraints: tuple[Constraint, ...] = ()
    gangs: tuple[Gang, ...] = ()
    demands: tuple[Demand, ...] = ()
    objective: Objective = Objective.UTILIZATION
    conserve_gpus: bool = True
    check_launch_hash: bool = False
    idle_timeout_s: float | None = None
    most_idle_s: float | None = None  # where less than the timeouts: every use of the cluster is forecast
    most_new: int | None = None  # how many machines may be launched whatever `max_nodes` says
    most_new_reason: str = ""  # what limits them, for users
    pending_idle_s: float | None = None
    pending_idle: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class Removal(Struct, frozen=True):
    """A node that should go."""

    instance_id: InstanceId
    node_type: str
    cause: StopCause
    details: str
    idle_s: float = 0.0


class ItemOutcome(Struct, frozen=True, kw_only=True):
    """Says where the requests of one demand, gang or constraint bundle went."""

    index: int
    placed: Mapping[str, int] = field(default_factory=dict)  # instance id of a running node -> count
    coming: Mapping[str, int] = field(default_factory=dict)  # instance id of a machine on its way -> count
    launched: Mapping[str, int] = field(default_factory=dict)  # node type -> count on new machines
    unplaced: int = 0


class Packing(Struct, frozen=True, kw_only=True):
    """The whole planning answer."""

    launch: Mapping[str, int]
    launched_offers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # type -> offer -> count
    # Those of `launched_offers` that come from no other offer: work asks for the zone or the market.
    pinned: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    removals: tuple[Removal, ...] = ()
    resize: Mapping[str, Resources] = field(default_factory=dict)  # instance id -> new size
    demands: tuple[ItemOutcome, ...] = ()
    gangs: tuple[ItemOutcome, ...] = ()
    constraints: tuple[ItemOutcome, ...] = ()  # one per demand of each constraint, flattened in order
    needed: frozenset[str] = frozenset()  # instance ids that something was planned onto
    pending_idle: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    offers: tuple[TypeOffer, ...] = ()  # with the room that was left before buying: verdicts read it
    room: int | None = None
    price_per_hour: float | None = None  # of `launch`; None when a launched type has no price


def without_offers(spec: ClusterSpec) -> ClusterSpec:
    """A provider that cannot choose the zone and the market buys types as if they had no offers."""
    if not any(known.offers for known in spec.node_types):
        return spec
    return replace(spec, node_types=tuple(replace(known, offers=()) for known in spec.node_types))

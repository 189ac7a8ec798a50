"""Why a request found no place: one reason, the thing meant, and a sentence. Called by `explain` only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct, field

from muster.base.resources import EMPTY, Resources
from muster.cluster.binpack.demand_classes import DemandKey, demand_key
from muster.cluster.binpack.feasible import fitting, labels_suit, nearest
from muster.cluster.binpack.request import Offer, Packing, PackNode, PackRequest
from muster.cluster.model import NEEDS_A_PERSON, Demand, Gang, Selector, StopCause, Strategy
from muster.cluster.plan import Reason

# From the least hopeful to the most: a gang shows the worst of its bundles and the best of its options.
HOPE = (
    Reason.INFEASIBLE,
    Reason.BLOCKED_BY_TYPE_LIMIT,
    Reason.BLOCKED_BY_CLUSTER_LIMIT,
    Reason.BLOCKED_BY_BACKOFF,
    Reason.BLOCKED_BY_GANG,
)


class Obstacle(Struct, frozen=True, kw_only=True):
    reason: Reason
    detail: str
    target: str = ""
    lacks: Mapping[str, float] = field(default_factory=dict)


class Obstacles:
    """Finds what is in the way, after a pass; remembers the answer per kind of request."""

    def __init__(self, request: PackRequest, packing: Packing) -> None:
        self._request = request
        self._offers = packing.offers
        self._cluster_left = (
            None if packing.room is None else max(0, packing.room - sum(packing.launch.values()))
        )
        self._packing = packing
        self._known: dict[DemandKey, Obstacle] = {}

    @cached_property
    def _stays(self) -> list[PackNode]:
        """The nodes that no limit removed; idle ones still counted when machines were bought."""
        removals = self._packing.removals
        gone = {removal.instance_id for removal in removals if removal.cause is not StopCause.IDLE}
        return [node for node in self._request.nodes if node.key not in gone]

    @cached_property
    def _below_maximum(self) -> dict[str, int]:
        """How many more of each type its own maximum allows after this pass, back-off or not."""
        taken = Counter(node.node_type for node in self._stays)
        taken.update(self._request.leaving)
        taken.update(self._packing.launch)
        return {o.node_type.name: o.node_type.max_nodes - taken[o.node_type.name] for o in self._offers}

    def of_demand(self, demand: Demand) -> Obstacle:
        key = demand_key(demand)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(demand)
        return found

    def of_gang(self, gang: Gang) -> Obstacle:
        options = [self._of_option(gang, option) for option in gang.options]
        return max(options, key=lambda obstacle: HOPE.index(obstacle.reason))

    def _of_option(self, gang: Gang, option: Sequence[Demand]) -> Obstacle:
        bundles = _merged(option) if gang.strategy is Strategy.STRICT_PACK else option
        alone = [self.of_demand(bundle) for bundle in bundles if not self._has_open_type(bundle)]
        if alone:
            return min(alone, key=lambda obstacle: HOPE.index(obstacle.reason))
        if gang.locality_label and not self._has_locality(gang.locality_label, bundles):
            detail = f"no value of label {gang.locality_label} has node types for all bundles of this gang"
            return Obstacle(reason=Reason.INFEASIBLE, detail=detail)
        left = "any number of" if self._cluster_left is None else str(self._cluster_left)
        what = f"the {sum(bundle.count for bundle in option)} bundles of this {gang.strategy.value} gang"
        detail = f"{what} fit one by one, but not together; the cluster may get {left} more nodes"
        return Obstacle(reason=Reason.BLOCKED_BY_GANG, detail=detail)

    def _has_locality(self, label: str, bundles: Sequence[Demand]) -> bool:
        """Whether at some value of the label every bundle has a type that could hold it."""
        shared = [
            {offer.node_type.labels.get(label, "") for offer in fitting(bundle, self._offers)} - {""}
            for bundle in bundles
        ]
        return bool(set.intersection(*shared)) if shared else True

    def _has_open_type(self, demand: Demand) -> bool:
        if self._cluster_left == 0:
            return False
        return any(self._is_open(offer) for offer in fitting(demand, self._offers))

    def _is_open(self, offer: Offer) -> bool:
        return offer.blocked_kind is None and self._below_maximum[offer.node_type.name] > 0

    def _find(self, demand: Demand) -> Obstacle:
        could = fitting(demand, self._offers)
        if not could:
            return self._no_type(demand)
        below = [offer for offer in could if self._below_maximum[offer.node_type.name] > 0]
        if not below:
            return _at_type_limit(demand, could)
        if self._cluster_left == 0:
            detail = f"the cluster is at its maximum of {self._request.max_nodes} nodes"
            return Obstacle(
                reason=Reason.BLOCKED_BY_CLUSTER_LIMIT, detail=detail, target=below[0].node_type.name
            )
        blocked = [offer for offer in below if offer.blocked_kind is not None]
        if len(blocked) == len(below):
            return _backed_off(blocked, self._request.now)
        # No engine should leave a request that a type with room could hold; if one does, say just that.
        detail = f"{below[0].node_type.name} could hold it and has room; the planner did not use it"
        return Obstacle(reason=Reason.BLOCKED_BY_TYPE_LIMIT, detail=detail, target=below[0].node_type.name)

    def _no_type(self, demand: Demand) -> Obstacle:
        """No type can hold it; a node may still be able to (a head with resources of its own)."""
        node = next(_able(demand, self._stays), None)
        if node is not None:
            detail = f"only nodes like {node.key} can hold {{{demand.shape}}}, and none has that much free"
            return Obstacle(reason=Reason.BLOCKED_BY_TYPE_LIMIT, detail=detail, target=node.key)
        near = nearest(demand, self._offers)
        return Obstacle(reason=Reason.INFEASIBLE, detail=near.detail, target=near.name, lacks=near.lacks)


def _able(demand: Demand, nodes: Iterable[PackNode]) -> Iterator[PackNode]:
    return (node for node in nodes if node.total.holds(demand.shape) and labels_suit(demand, node.labels))


def _merged(bundles: Sequence[Demand]) -> list[Demand]:
    """What STRICT_PACK really asks for: one request per group of bundles that ask for the same labels."""
    sums: dict[tuple[Selector, ...], Resources] = {}
    for bundle in bundles:
        sums[bundle.selectors] = sums.get(bundle.selectors, EMPTY).plus(bundle.shape.times(bundle.count))
    return [Demand(shape=shape, selectors=selectors) for selectors, shape in sums.items()]


def _at_type_limit(demand: Demand, could: Sequence[Offer]) -> Obstacle:
    shown = ", ".join(f"{offer.node_type.name} ({offer.node_type.max_nodes})" for offer in could[:3])
    more = f" and {len(could) - 3} more" if len(could) > 3 else ""
    detail = f"every node type that can hold {{{demand.shape}}} is at its maximum: {shown}{more}"
    return Obstacle(reason=Reason.BLOCKED_BY_TYPE_LIMIT, detail=detail, target=could[0].node_type.name)


def _backed_off(blocked: Sequence[Offer], now: float) -> Obstacle:
    """The type that will be tried first is the one to name."""
    first = min(blocked, key=lambda offer: offer.blocked_until)
    return Obstacle(
        reason=Reason.BLOCKED_BY_BACKOFF, detail=blocked_text(first, now), target=first.node_type.name
    )


def blocked_text(offer: Offer, now: float) -> str:
    """Why a type is backed off and what happens next, for people."""
    kind = offer.blocked_kind
    said = f": {offer.blocked_message}" if offer.blocked_message else ""
    act = "; a person must act" if kind in NEEDS_A_PERSON else ""
    wait_s = max(0.0, offer.blocked_until - now)
    what = kind.value if kind is not None else "backed off"
    return f"{offer.node_type.name} failed ({what}{said}){act}; next try in {wait_s:.0f} s"

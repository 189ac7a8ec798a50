"""Explain the planner's answer in reasons, for users and programs. Reads the packing, decides nothing.

Every request of a demand, gang or constraint has exactly one reason: the counts of a subject's verdicts
add up to its count. Every node has one reason, and so has every node type that was launched or passed over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct, field

from muster.base.resources import EMPTY, Resources, implicit_units
from muster.cluster.model import (
    NEEDS_USER_ACTION,
    Demand,
    Gang,
    NodeKind,
    Selector,
    StopCause,
    Strategy,
    health_key,
)
from muster.cluster.plan import NOTHING, Reason, Subject, Verdict
from muster.cluster.planner.demand_classes import (
    DemandKey,
    demand_key,
    fitting,
    labels_suit,
    nearest,
    why_not,
)
from muster.cluster.planner.limits import idle_limit_s
from muster.cluster.planner.offers import has_blocked_offer, with_block_of_offers
from muster.cluster.planner.request import ItemOutcome, Packing, PackNode, PackRequest, TypeOffer
from muster.cluster.states import InstanceState

# From the most severe to the least: a gang shows the worst of its bundles and the best of its options.
BY_SEVERITY = (
    Reason.INFEASIBLE,
    Reason.BLOCKED_BY_TYPE_LIMIT,
    Reason.BLOCKED_BY_CLUSTER_LIMIT,
    Reason.BLOCKED_BY_BUDGET,
    Reason.BLOCKED_BY_BACKOFF,
    Reason.BLOCKED_BY_GANG,
)


class Obstacle(Struct, frozen=True, kw_only=True):
    """The reason why a request has no place."""

    reason: Reason
    detail: str
    target: str = ""
    lacks: Mapping[str, float] = field(default_factory=dict)


class Obstacles:
    """Obstacles finds what prevents a request from being placed; answers are cached per kind of request."""

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
        """Return the nodes that no limit removed; idle ones still counted when machines were launched."""
        removals = self._packing.removals
        gone = {removal.instance_id for removal in removals if removal.cause is not StopCause.IDLE}
        return [node for node in self._request.nodes if node.key not in gone]

    @cached_property
    def _by_resource(self) -> dict[str, list[PackNode]]:
        found: dict[str, list[PackNode]] = {}
        for node in self._stays:
            for name in node.total:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def _below_maximum(self) -> dict[str, int]:
        """Return how many more of each type its own maximum allows after this pass, back-off or not."""
        taken = Counter(node.node_type for node in self._stays)
        taken.update(self._request.leaving)
        taken.update(self._packing.launch)
        return {o.node_type.name: o.node_type.most_nodes - taken[o.node_type.name] for o in self._offers}

    def _is_sold_out(self, offer: TypeOffer) -> bool:
        """Return whether the type has offers and nothing is left of those that are not backed off."""
        name = offer.node_type.name
        return bool(offer.choices) and offer.room - self._packing.launch.get(name, 0) <= 0

    def of_demand(self, demand: Demand) -> Obstacle:
        key = demand_key(demand)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(demand)
        return found

    def of_bundle(self, demand: Demand) -> Obstacle:
        """Return why a bundle of a constraint has no place: the rest of its constraint may be the reason."""
        if not self._has_open_type(demand):
            return self.of_demand(demand)
        detail = "the limits do not allow all bundles of this constraint, so none of them is launched"
        return Obstacle(reason=Reason.BLOCKED_BY_GANG, detail=detail)

    def of_gang(self, gang: Gang) -> Obstacle:
        options = [self._of_option(gang, option) for option in gang.options]
        return max(options, key=lambda obstacle: BY_SEVERITY.index(obstacle.reason))

    def _of_option(self, gang: Gang, option: Sequence[Demand]) -> Obstacle:
        bundles = _merged(option) if gang.strategy is Strategy.STRICT_PACK else option
        alone = [self.of_demand(bundle) for bundle in bundles if not self._has_open_type(bundle)]
        if alone:
            return min(alone, key=lambda obstacle: BY_SEVERITY.index(obstacle.reason))
        if gang.locality_label and not self._has_locality(gang.locality_label, bundles):
            detail = f"no value of label {gang.locality_label} has node types for all bundles of this gang"
            return Obstacle(reason=Reason.INFEASIBLE, detail=detail)
        left = "any number of" if self._cluster_left is None else str(self._cluster_left)
        what = f"the {sum(bundle.count for bundle in option)} bundles of this {gang.strategy.value} gang"
        detail = f"{what} fit one by one, but not together; the cluster may get {left} more nodes"
        return Obstacle(reason=Reason.BLOCKED_BY_GANG, detail=detail)

    def _has_locality(self, label: str, bundles: Sequence[Demand]) -> bool:
        """Return whether at some value of the label every bundle has a type that could hold it."""
        shared = [
            {offer.node_type.labels.get(label, "") for offer in fitting(bundle, self._offers)} - {""}
            for bundle in bundles
        ]
        return bool(set.intersection(*shared)) if shared else True

    def _has_open_type(self, demand: Demand) -> bool:
        if self._cluster_left == 0:
            return False
        for offer in fitting(demand, self._offers):
            is_blocked = offer.blocked_kind is not None or self._is_sold_out(offer)
            if not is_blocked and self._below_maximum[offer.node_type.name] > 0:
                return True
        return False

    def _find(self, demand: Demand) -> Obstacle:
        could = fitting(demand, self._offers)
        if not could:
            return self._no_type(demand)
        below = [offer for offer in could if self._below_maximum[offer.node_type.name] > 0]
        if not below:
            return _at_type_limit(demand, could)
        if self._cluster_left == 0:
            return self._at_cluster_limit(below[0].node_type.name)
        blocked = [offer for offer in below if offer.blocked_kind is not None]
        sold_out = [offer for offer in below if offer.blocked_kind is None and self._is_sold_out(offer)]
        if len(blocked) + len(sold_out) == len(below):
            blocked += [with_block_of_offers(each) for each in sold_out if has_blocked_offer(each)]
            return _backed_off(blocked, self._request.now) if blocked else _offers_at_limit(demand, sold_out)
        # No engine should leave a request that a type with room could hold; if one does, the text reports it.
        detail = f"{below[0].node_type.name} could hold it and has room; the planner did not use it"
        return Obstacle(reason=Reason.BLOCKED_BY_TYPE_LIMIT, detail=detail, target=below[0].node_type.name)

    def _at_cluster_limit(self, target: str) -> Obstacle:
        request = self._request
        if request.most_new is not None and self._packing.room == request.most_new:
            detail, reason = request.most_new_reason, Reason.BLOCKED_BY_BUDGET
        else:
            detail = f"the cluster is at its maximum of {request.max_nodes} nodes"
            reason = Reason.BLOCKED_BY_CLUSTER_LIMIT
        return Obstacle(reason=reason, detail=detail, target=target)

    def _no_type(self, demand: Demand) -> Obstacle:
        """No type can hold the request; a node may still be able to (a head with other resources)."""
        # The nodes that have the resource of the request that the fewest have (`node:<ip>`: one).
        names = (name for name, units in demand.shape.items() if units > 0 and not implicit_units(name))
        with_rarest = min((self._by_resource.get(name, []) for name in names), key=len, default=self._stays)
        able = (
            one for one in with_rarest if one.total.holds(demand.shape) and labels_suit(demand, one.labels)
        )
        node = next(able, None)
        if node is not None:
            detail = f"only nodes like {node.key} can hold {{{demand.shape}}}, and none has that much free"
            return Obstacle(reason=Reason.BLOCKED_BY_TYPE_LIMIT, detail=detail, target=node.key)
        near = nearest(demand, self._offers)
        return Obstacle(reason=Reason.INFEASIBLE, detail=near.detail, target=near.name, lacks=near.lacks)


def _merged(bundles: Sequence[Demand]) -> list[Demand]:
    """Return what STRICT_PACK requests: one request per group of bundles with the same labels."""
    sums: dict[tuple[Selector, ...], Resources] = {}
    for bundle in bundles:
        sums[bundle.selectors] = sums.get(bundle.selectors, EMPTY).plus(bundle.shape.times(bundle.count))
    return [Demand(shape=shape, selectors=selectors) for selectors, shape in sums.items()]


def _at_type_limit(demand: Demand, could: Sequence[TypeOffer]) -> Obstacle:
    shown = ", ".join(f"{offer.node_type.name} ({offer.node_type.most_nodes})" for offer in could[:3])
    more = f" and {len(could) - 3} more" if len(could) > 3 else ""
    detail = f"every node type that can hold {{{demand.shape}}} is at its maximum: {shown}{more}"
    return Obstacle(reason=Reason.BLOCKED_BY_TYPE_LIMIT, detail=detail, target=could[0].node_type.name)


def _offers_at_limit(demand: Demand, sold_out: Sequence[TypeOffer]) -> Obstacle:
    first = sold_out[0]
    most = ", ".join(f"{each.offer.name} ({each.offer.max_nodes})" for each in first.choices[:3])
    what = f"every offer of {first.node_type.name}, which can hold {{{demand.shape}}}"
    detail = f"{what}, is at its maximum: {most}"
    return Obstacle(reason=Reason.BLOCKED_BY_TYPE_LIMIT, detail=detail, target=first.node_type.name)


def _backed_off(blocked: Sequence[TypeOffer], now: float) -> Obstacle:
    """Name the type that will be tried first."""
    first = min(blocked, key=lambda offer: offer.blocked_until)
    return Obstacle(
        reason=Reason.BLOCKED_BY_BACKOFF, detail=blocked_text(first, now), target=first.node_type.name
    )


def blocked_text(offer: TypeOffer, now: float) -> str:
    """Return why a type is backed off and what happens next, for users."""
    kind = offer.blocked_kind
    message = f": {offer.blocked_message}" if offer.blocked_message else ""
    advice = "; a user must act" if kind in NEEDS_USER_ACTION else ""
    if offer.blocked_until == math.inf:
        return f"{offer.node_type.name} is held back{message}"
    wait_s = max(0.0, offer.blocked_until - now)
    what = kind.value if kind is not None else "backed off"
    name = health_key(offer.node_type.name, offer.blocked_offer)
    return f"{name} failed ({what}{message}){advice}; next try in {wait_s:.0f} s"


_REMOVED = {
    StopCause.IDLE: Reason.REMOVED_IDLE,
    StopCause.OUTDATED: Reason.REMOVED_OUTDATED,
    StopCause.MAX_NODES: Reason.REMOVED_MAX_NODES,
    StopCause.MAX_NODES_PER_TYPE: Reason.REMOVED_MAX_NODES_PER_TYPE,
    StopCause.CONSOLIDATION: Reason.REMOVED_CONSOLIDATED,
    StopCause.BUDGET: Reason.REMOVED_BUDGET,
}
_MAX_KINDS = 500  # kinds of request read for a type's verdict; more would not change the text


def explain(request: PackRequest, packing: Packing) -> tuple[Verdict, ...]:
    """Return verdicts: requests first, then node types, then nodes."""
    return (*_requests(request, packing), *_types(request, packing), *_nodes(request, packing))


def rejections(
    demand: Demand, offers: Iterable[TypeOffer], room: int | None, chosen: Collection[str]
) -> dict[str, Reason]:
    """Return for each node type not used for this demand: why not. `offers` and `room` as before buying."""
    return {
        offer.node_type.name: _why_passed_over(demand, offer, room)
        for offer in offers
        if offer.node_type.name not in chosen
    }


def _why_passed_over(demand: Demand, offer: TypeOffer, room: int | None) -> Reason:
    unfit = why_not(demand, offer.node_type)
    if unfit is not None:
        return unfit
    if offer.blocked_kind is not None:
        return _blocked_reason(offer)
    return Reason.TYPE_AT_MAXIMUM if offer.room <= 0 or room == 0 else Reason.TYPE_NOT_BEST


def _blocked_reason(offer: TypeOffer) -> Reason:
    return (
        Reason.TYPE_NEEDS_USER_ACTION if offer.blocked_kind in NEEDS_USER_ACTION else Reason.TYPE_BACKED_OFF
    )


def _requests(request: PackRequest, packing: Packing) -> Iterator[Verdict]:
    items = (packing.constraints, packing.gangs, packing.demands)
    if not any(items):
        return
    obstacles = Obstacles(request, packing)
    resize = packing.resize
    bundles = [demand for constraint in request.constraints for demand in constraint.demands]
    for outcome, demand in zip(packing.constraints, bundles, strict=True):
        blocked = obstacles.of_bundle(demand) if outcome.unplaced else None
        yield from _verdicts_of(Subject.CONSTRAINT, demand.name, outcome, blocked, resize)
    for outcome, gang in zip(packing.gangs, request.gangs, strict=True):
        blocked = obstacles.of_gang(gang) if outcome.unplaced else None
        yield from _verdicts_of(Subject.GANG, gang.gang_id, outcome, blocked, resize)
    for outcome, demand in zip(packing.demands, request.demands, strict=True):
        blocked = obstacles.of_demand(demand) if outcome.unplaced else None
        yield from _verdicts_of(Subject.DEMAND, demand.name, outcome, blocked, resize)


def _verdicts_of(
    subject: Subject, name: str, outcome: ItemOutcome, blocked: Obstacle | None, resize: Collection[str]
) -> Iterator[Verdict]:
    """Yield the reasons of one item's requests; nodes that share a reason share a verdict."""
    subject_id = name or str(outcome.index)
    placed = outcome.placed
    if resize:
        growing = {key: count for key, count in placed.items() if key in resize}
        placed = {key: count for key, count in placed.items() if key not in resize}
        if growing:
            yield _on_nodes(subject, subject_id, Reason.WAITING_FOR_RESIZE, growing)
    if placed:
        yield _on_nodes(subject, subject_id, Reason.PLACED, placed)
    if outcome.coming:
        yield _on_nodes(subject, subject_id, Reason.WAITING_FOR_NODE, outcome.coming)
    for node_type, count in outcome.launched.items():
        yield Verdict(
            subject=subject,
            subject_id=subject_id,
            reason=Reason.WAITING_FOR_LAUNCH,
            count=count,
            target=node_type,
        )
    if blocked is not None:
        yield Verdict(
            subject=subject,
            subject_id=subject_id,
            reason=blocked.reason,
            count=outcome.unplaced,
            detail=blocked.detail,
            target=blocked.target,
            lacks=blocked.lacks,
        )


def _on_nodes(subject: Subject, subject_id: str, reason: Reason, counts: Mapping[str, int]) -> Verdict:
    """The first node is the target; when there are more the detail has their number."""
    first = next(iter(counts))
    return Verdict(
        subject=subject,
        subject_id=subject_id,
        reason=reason,
        count=counts[first] if len(counts) == 1 else sum(counts.values()),
        target=first,
        detail="" if len(counts) == 1 else f"on {first} and {len(counts) - 1} more",
    )


def _types(request: PackRequest, packing: Packing) -> Iterator[Verdict]:
    """Yield a verdict per type that was launched, backed off, or passed over although wanted."""
    wanted = _wanted(request, packing)
    for offer in map(_with_own_block, packing.offers):
        name = offer.node_type.name
        count = packing.launch.get(name, 0)
        if count:
            detail = _purchase_text(offer, count, packing.launched_offers.get(name, {}))
            yield _of_type(name, Reason.TYPE_CHOSEN, detail, count)
        elif offer.blocked_kind is not None:
            yield _of_type(name, _blocked_reason(offer), _blocked_detail(request, packing, offer))
        elif wanted:
            yield _of_type(name, _nearest_miss(wanted, offer, packing.room), "")


def _with_own_block(offer: TypeOffer) -> TypeOffer:
    """A type of which some offers are backed off and all others are full waits for the back-off."""
    if offer.blocked_kind is not None or any(each.room for each in offer.choices):
        return offer
    return with_block_of_offers(offer) if has_blocked_offer(offer) else offer


def _purchase_text(offer: TypeOffer, count: int, by_offer: Mapping[str, int]) -> str:
    """Return what is launched at which price, and which cheaper offers were passed over, for users."""
    price = offer.node_type.price_per_hour
    if not offer.choices:
        return "" if price is None else f"{count} at ${price:g} per hour each"
    prices = {each.offer.name: each.offer.price_per_hour for each in offer.choices}
    parts = [f"{amount} from {name}{_at(prices[name])}" for name, amount in by_offer.items()]
    dearest = max((prices[name] or 0.0 for name in by_offer), default=0.0)
    parts += [
        f"{each.offer.name}{_at(each.offer.price_per_hour)} is backed off ({each.blocked_kind.value})"
        for each in offer.choices
        if each.blocked_kind is not None and (each.offer.price_per_hour or 0.0) < dearest
    ]
    return "; ".join(parts)


def _at(price: float | None) -> str:
    return "" if price is None else f" at ${price:g} per hour"


def _of_type(name: str, reason: Reason, detail: str, count: int = 1) -> Verdict:
    return Verdict(subject=Subject.NODE_TYPE, subject_id=name, reason=reason, detail=detail, count=count)


def _blocked_detail(request: PackRequest, packing: Packing, offer: TypeOffer) -> str:
    """A type that is backed off gets no machines for its minimum either: the text has their number."""
    known = offer.node_type
    text = blocked_text(offer, request.now)
    if known.min_nodes <= 0:
        return text
    gone = {removal.instance_id for removal in packing.removals}
    live = sum(node.node_type == known.name and node.key not in gone for node in request.nodes)
    missing = min(known.min_nodes, known.most_nodes) - live
    return f"{text}; {missing} of its minimum of {known.min_nodes} are missing" if missing > 0 else text


def _wanted(request: PackRequest, packing: Packing) -> list[Demand]:
    """Return the kinds of request that needed new machines, one of each."""
    kinds: dict[object, Demand] = {}
    bundles = (demand for constraint in request.constraints for demand in constraint.demands)
    for outcomes, demands in ((packing.constraints, bundles), (packing.demands, request.demands)):
        for outcome, demand in zip(outcomes, demands, strict=True):
            if outcome.launched or outcome.unplaced:
                kinds.setdefault(demand_key(demand), demand)
                if len(kinds) >= _MAX_KINDS:
                    return list(kinds.values())
    for outcome, gang in zip(packing.gangs, request.gangs, strict=True):
        if outcome.launched or outcome.unplaced:
            kinds.update((demand_key(bundle), bundle) for option in gang.options for bundle in option)
    return list(kinds.values())


def _nearest_miss(wanted: Sequence[Demand], offer: TypeOffer, room: int | None) -> Reason:
    """Return why this type was not launched, for the request that it came closest to serving."""
    reason = Reason.TYPE_LACKS_RESOURCES
    for demand in wanted:
        found = _why_passed_over(demand, offer, room)
        if found is Reason.TYPE_LABELS_DIFFER:
            reason = found
        elif found is not Reason.TYPE_LACKS_RESOURCES:
            return found
    return reason


def _nodes(request: PackRequest, packing: Packing) -> list[Verdict]:
    removed = {str(removal.instance_id): removal for removal in packing.removals}
    limits_s = {offer.node_type.name: idle_limit_s(offer.node_type, request) for offer in request.offers}
    needed, about, busy = packing.needed, Subject.NODE, Reason.KEPT_BUSY
    running, head = InstanceState.RAY_RUNNING, NodeKind.HEAD
    found = []
    for node in request.nodes:
        key = node.key
        removal = removed.get(key) if removed else None
        if removal is not None:
            reason, detail = _REMOVED.get(removal.cause, Reason.REMOVED_FAILED), removal.details
        elif node.kind is head:
            reason, detail = Reason.KEPT_HEAD, ""
        elif key in needed:
            reason, detail = Reason.KEPT_NEEDED, ""
        elif node.state is running and not node.idle_s > 0:  # nearly all
            found.append(Verdict(subject=about, subject_id=key, reason=busy, lacks=NOTHING))
            continue
        else:
            reason, detail = _why_kept(node, limits_s.get(node.node_type))
        found.append(Verdict(subject=about, subject_id=key, reason=reason, detail=detail))
    return found


def _why_kept(node: PackNode, limit_s: float | None) -> tuple[Reason, str]:
    if node.state is not InstanceState.RAY_RUNNING:
        return Reason.KEPT_PENDING, ""
    if limit_s is None:
        return Reason.KEPT_NOT_IDLE_LONG_ENOUGH, "no idle timeout is set"
    if not node.idle_s > limit_s:
        return Reason.KEPT_NOT_IDLE_LONG_ENOUGH, f"idle for {node.idle_s:.0f} of {limit_s:g} s"
    return Reason.KEPT_MIN_NODES, ""

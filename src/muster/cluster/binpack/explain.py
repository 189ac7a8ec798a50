"""explain: the planner's answer in reasons, for people and programs. Reads the packing, decides nothing.

Every request of a demand, gang or constraint has exactly one reason: the counts of a subject's verdicts
add up to its count. Every node has one reason, and so has every node type that was bought or passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from muster.cluster.binpack.demand_classes import demand_key
from muster.cluster.binpack.explain_blocked import Obstacle, Obstacles, blocked_text
from muster.cluster.binpack.feasible import why_not
from muster.cluster.binpack.idle import idle_limit_s
from muster.cluster.binpack.request import ItemOutcome, Offer, Packing, PackNode, PackRequest
from muster.cluster.model import NEEDS_A_PERSON, Demand, NodeKind, StopCause
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.states import InstanceState

_REMOVED = {
    StopCause.IDLE: Reason.REMOVED_IDLE,
    StopCause.OUTDATED: Reason.REMOVED_OUTDATED,
    StopCause.MAX_NODES: Reason.REMOVED_MAX_NODES,
    StopCause.MAX_NODES_PER_TYPE: Reason.REMOVED_MAX_NODES_PER_TYPE,
}
_MAX_KINDS = 500  # kinds of request looked at for a type's verdict; more would not change what people read


def explain(request: PackRequest, packing: Packing) -> tuple[Verdict, ...]:
    """Requests first, then node types, then nodes."""
    return (*_requests(request, packing), *_types(request, packing), *_nodes(request, packing))


def rejections(
    demand: Demand, offers: Iterable[Offer], room: int | None, chosen: Collection[str]
) -> dict[str, Reason]:
    """For each node type not used for this demand: why not. `offers` and `room` as before buying."""
    return {
        offer.node_type.name: _why_passed_over(demand, offer, room)
        for offer in offers
        if offer.node_type.name not in chosen
    }


def _why_passed_over(demand: Demand, offer: Offer, room: int | None) -> Reason:
    unfit = why_not(demand, offer.node_type)
    if unfit is not None:
        return unfit
    if offer.blocked_kind is not None:
        return _blocked_reason(offer)
    return Reason.TYPE_AT_MAXIMUM if offer.room <= 0 or room == 0 else Reason.TYPE_NOT_BEST


def _blocked_reason(offer: Offer) -> Reason:
    return Reason.TYPE_NEEDS_A_PERSON if offer.blocked_kind in NEEDS_A_PERSON else Reason.TYPE_BACKED_OFF


def _requests(request: PackRequest, packing: Packing) -> Iterator[Verdict]:
    items = (packing.constraints, packing.gangs, packing.demands)
    if not any(items):
        return
    obstacles = Obstacles(request, packing)
    resize = packing.resize
    bundles = [demand for constraint in request.constraints for demand in constraint.demands]
    for outcome, demand in zip(packing.constraints, bundles, strict=True):
        blocked = obstacles.of_demand(demand) if outcome.unplaced else None
        yield from _fates(Subject.CONSTRAINT, demand.name, outcome, blocked, resize)
    for outcome, gang in zip(packing.gangs, request.gangs, strict=True):
        blocked = obstacles.of_gang(gang) if outcome.unplaced else None
        yield from _fates(Subject.GANG, gang.gang_id, outcome, blocked, resize)
    for outcome, demand in zip(packing.demands, request.demands, strict=True):
        blocked = obstacles.of_demand(demand) if outcome.unplaced else None
        yield from _fates(Subject.DEMAND, demand.name, outcome, blocked, resize)


def _fates(
    subject: Subject,
    name: str,
    outcome: ItemOutcome,
    blocked: Obstacle | None,
    resize: Collection[str],
) -> Iterator[Verdict]:
    """The reasons of one item's requests; nodes that share a reason share a verdict."""
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
    for node_type, count in outcome.bought.items():
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
    """The first node is the target; when there are more the detail says how many."""
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
    """A type bought, backed off, or passed over although machines were wanted."""
    wanted = _wanted(request, packing)
    for offer in packing.offers:
        name = offer.node_type.name
        count = packing.launch.get(name, 0)
        if count:
            price = offer.node_type.price_per_hour
            detail = "" if price is None else f"{count} at ${price:g} per hour each"
            yield _of_type(name, Reason.TYPE_CHOSEN, detail, count)
        elif offer.blocked_kind is not None:
            yield _of_type(name, _blocked_reason(offer), _blocked_detail(request, packing, offer))
        elif wanted:
            yield _of_type(name, _nearest_miss(wanted, offer, packing.room), "")


def _of_type(name: str, reason: Reason, detail: str, count: int = 1) -> Verdict:
    return Verdict(subject=Subject.NODE_TYPE, subject_id=name, reason=reason, detail=detail, count=count)


def _blocked_detail(request: PackRequest, packing: Packing, offer: Offer) -> str:
    """A type that is backed off gets no machines for its minimum either: say how many wait."""
    known = offer.node_type
    text = blocked_text(offer, request.now)
    if known.min_nodes <= 0:
        return text
    gone = {removal.instance_id for removal in packing.removals}
    live = sum(node.node_type == known.name and node.key not in gone for node in request.nodes)
    missing = min(known.min_nodes, known.max_nodes) - live
    return f"{text}; {missing} of its minimum of {known.min_nodes} are missing" if missing > 0 else text


def _wanted(request: PackRequest, packing: Packing) -> list[Demand]:
    """The kinds of request that needed new machines, one of each."""
    kinds: dict[object, Demand] = {}
    bundles = (demand for constraint in request.constraints for demand in constraint.demands)
    for outcomes, demands in ((packing.constraints, bundles), (packing.demands, request.demands)):
        for outcome, demand in zip(outcomes, demands, strict=True):
            if outcome.bought or outcome.unplaced:
                kinds.setdefault(demand_key(demand), demand)
                if len(kinds) >= _MAX_KINDS:
                    return list(kinds.values())
    for outcome, gang in zip(packing.gangs, request.gangs, strict=True):
        if outcome.bought or outcome.unplaced:
            kinds.update((demand_key(bundle), bundle) for option in gang.options for bundle in option)
    return list(kinds.values())


def _nearest_miss(wanted: Sequence[Demand], offer: Offer, room: int | None) -> Reason:
    """Why this type was not bought, for the request that it came closest to serving."""
    reason = Reason.TYPE_LACKS_RESOURCES
    for demand in wanted:
        found = _why_passed_over(demand, offer, room)
        if found is Reason.TYPE_LABELS_DIFFER:
            reason = found
        elif found is not Reason.TYPE_LACKS_RESOURCES:
            return found
    return reason


def _nodes(request: PackRequest, packing: Packing) -> Iterator[Verdict]:
    removed = {str(removal.instance_id): removal for removal in packing.removals}
    limits_s = {
        offer.node_type.name: idle_limit_s(offer.node_type, request.idle_timeout_s)
        for offer in request.offers
    }
    needed, node_subject = packing.needed, Subject.NODE
    for node in request.nodes:
        removal = removed.get(node.key) if removed else None
        if removal is not None:
            reason, detail = _REMOVED.get(removal.cause, Reason.REMOVED_FAILED), removal.details
        elif node.key in needed and node.kind is not NodeKind.HEAD:
            reason, detail = Reason.KEPT_NEEDED, ""
        else:
            reason, detail = _why_kept(node, limits_s.get(node.node_type))
        yield Verdict(subject=node_subject, subject_id=node.key, reason=reason, detail=detail)


def _why_kept(node: PackNode, limit_s: float | None) -> tuple[Reason, str]:
    if node.kind is NodeKind.HEAD:
        return Reason.KEPT_HEAD, ""
    if node.state is not InstanceState.RAY_RUNNING:
        return Reason.KEPT_PENDING, ""
    if not node.idle_s > 0:
        return Reason.KEPT_BUSY, ""
    if limit_s is None:
        return Reason.KEPT_NOT_IDLE_LONG_ENOUGH, "no idle timeout is set"
    if not node.idle_s > limit_s:
        return Reason.KEPT_NOT_IDLE_LONG_ENOUGH, f"idle for {node.idle_s:.0f} of {limit_s:g} s"
    return Reason.KEPT_MIN_NODES, ""

"""Move QUEUED to REQUESTED: one Launch per request id, within concurrency and upscaling speed."""

from __future__ import annotations

import math
from collections import Counter

from muster.base.ids import RequestId
from muster.cluster.model import Instance, LaunchLimits, NodeType, Offer, health_key
from muster.cluster.plan import Launch, attempt_id
from muster.cluster.planner.offers import by_price
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState

_S = InstanceState


def launch(draft: Draft) -> None:
    """Request the oldest records first; a retried one keeps its place and its request id.

    What the planner took for gone may still come or stay (a request in flight, a refused idle drain), so the
    limits are compared once more with what exists; records without room stay QUEUED.
    """
    queued = sorted(draft.in_state(_S.QUEUED), key=lambda i: i.entered(_S.QUEUED))
    if not queued or draft.snapshot.traits.read_only:
        return
    by_type: dict[str, list[Instance]] = {}
    for instance in draft.in_state(_S.QUEUED):  # types in the order of the ledger
        by_type.setdefault(instance.node_type, [])
    for instance in queued:
        by_type[instance.node_type].append(instance)
    running = Counter(instance.node_type for instance in draft.in_state(_S.RAY_RUNNING))
    taken = Counter(i.node_type for i in draft.holding()) + draft.unclear_by_type()
    requested = len(draft.in_state(_S.REQUESTED))
    chosen: list[Purchase] = []
    for name, waiting in by_type.items():
        room = min(draft.spec.limits.max_concurrent - requested, _room(draft, taken, name))
        most = max(0, min(room, _at_once(draft.spec.limits, running[name])))
        offered = _one_on_trial(draft, _with_offers(draft, draft.types.get(name), waiting, most))
        batch = _affordable(draft, offered)
        requested += len(batch)
        taken[name] += len(batch)
        chosen.extend(batch)
    _request(draft, chosen)


Purchase = tuple[Instance, Offer | None]  # a record, and the offer that its machine is launched from


def _with_offers(draft: Draft, known: NodeType | None, waiting: list[Instance], most: int) -> list[Purchase]:
    """Return the oldest records that can be launched now. A repeated or pinned one keeps its offer.

    The others get the cheapest offers that are not backed off and have room: as they are now, not as they
    were when the record was planned.
    """
    if known is None or not known.offers or most <= 0:
        return [(instance, None) for instance in waiting[:most]]
    offers = iter(_offers_in_order(draft, known, most))
    chosen: list[Purchase] = []
    for instance in waiting:
        is_repeated = instance.launch_request_id is not None
        is_fixed = is_repeated or instance.is_pinned
        offer = known.offer(instance.offer_name) if is_fixed else next(offers, None)
        if offer is not None or is_repeated:
            chosen.append((instance, offer))
    return chosen[:most]


_UNDER_WAY = (_S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING)


def _one_on_trial(draft: Draft, batch: list[Purchase]) -> list[Purchase]:
    """Try what could not be set up lately with one machine at a time; the other records stay QUEUED."""
    on_trial = {key for key, health in draft.decided.health.items() if health.is_on_trial}
    if not on_trial:
        return batch
    tried = set[str]()
    for instance in (i for i in draft.in_state(*_UNDER_WAY) if not draft.is_held(i)):
        tried.update({instance.node_type, health_key(instance.node_type, instance.offer_name)})
    chosen: list[Purchase] = []
    for instance, offer in batch:
        keys = {instance.node_type, health_key(instance.node_type, offer.name if offer is not None else "")}
        if not keys & tried & on_trial:
            chosen.append((instance, offer))
            tried.update(keys)
    return chosen


_DEARER = 1.25  # another pool may cost so much more, so that not all leaders are in one


def _offers_in_order(draft: Draft, known: NodeType, most: int) -> list[Offer]:
    """Return an offer for each of the next machines, cheapest first.

    While a tuner has leaders to lose, no spot pool gets more than half of the type's spot machines: most
    machines that a cloud takes from one pool go within minutes of each other.
    """
    cheapest = by_price(draft.choices_of(known))
    if sum(trial.is_leader for one in draft.snapshot.forecasts for trial in one.trials) < _FEWEST_LEADERS:
        return [each.offer for each in cheapest for _ in range(min(each.room, most))]
    left = {each.offer.name: each.room for each in cheapest}
    pools = Counter(
        one.offer.name
        for one in (*draft.holding(), *draft.in_state(_S.QUEUED))
        if one.offer is not None and one.offer.market == "spot" and one.node_type == known.name
    )
    found: list[Offer] = []
    while len(found) < most and any(left.values()):
        usable = [each for each in cheapest if left[each.offer.name] > 0]
        within = (usable[0].expected_price or 0.0) * _DEARER
        near = [each for each in usable if (each.expected_price or 0.0) <= within]
        # One more machine should not put more than half of all into one spot pool.
        half = pools.total() / 2
        spread = (one for one in near if one.offer.market != "spot" or pools[one.offer.name] <= half)
        chosen = next(spread, near[0]).offer
        left[chosen.name] -= 1
        pools[chosen.name] += chosen.market == "spot"
        found.append(chosen)
    return found


_FEWEST_LEADERS = 2


def _affordable(draft: Draft, batch: list[Purchase]) -> list[Purchase]:
    """Reserve the money of each purchase; what the budget does not allow is withdrawn, and planned again."""
    budget = draft.budget
    if budget is None:
        return batch
    chosen: list[Purchase] = []
    for instance, offer in batch:
        if budget.take(draft.terms_of(instance.node_type, offer).get("price_per_hour"), offer):
            chosen.append((instance, offer))
        else:
            draft.move(instance, _S.TERMINATED, "withdrawn: the budget does not allow for it")
    return chosen


def _room(draft: Draft, taken: Counter[str], name: str) -> int:
    known, most = draft.types.get(name), draft.spec.max_nodes
    of_type = known.most_nodes - taken[name] if known else 0
    return of_type if most is None else min(of_type, most - taken.total() - draft.unusable)


def _at_once(limits: LaunchLimits, running: int) -> int:
    """Return how many machines of one type may be requested in one tick; an unusable speed counts as 0."""
    speed: object = limits.upscaling_speed
    if not isinstance(speed, int | float) or math.isnan(speed):
        return 1
    return math.ceil(max(1.0, min(speed * max(running, 1), float(limits.max_concurrent))))


def _request(draft: Draft, chosen: list[Purchase]) -> None:
    calls: dict[RequestId, list[Instance]] = {}
    # One call for all types without offers, one for each offer, apart for those that need just this one.
    fresh: dict[tuple[str, bool], RequestId] = {}
    for instance, offer in chosen:
        base = instance.launch_request_id
        if base is None:
            key = "" if offer is None else health_key(instance.node_type, offer.name)
            of = key, instance.is_pinned
            base = fresh[of] = fresh.get(of) or RequestId(draft.fresh("r"))
        # Price and hash are those of the config this very launch is made with.
        terms = draft.terms_of(instance.node_type, offer)
        if offer is None:
            asked = "requested from the provider"
        else:
            price = "" if offer.price_per_hour is None else f" at ${offer.price_per_hour:g} per hour"
            asked = f"requested from the provider: {offer.name}{price}"
        asked_at = draft.now if instance.requested_at is None else instance.requested_at
        request = {"launch_request_id": base, "requested_at": asked_at}
        moved = draft.move(instance, _S.REQUESTED, asked, **request, **terms)
        if moved is not None:
            attempt = len(moved.entered(_S.REQUESTED))
            calls.setdefault(attempt_id(base, attempt, draft.snapshot.tick_id), []).append(moved)
    for request_id, members in calls.items():
        shape = dict(Counter(instance.node_type for instance in members))
        ids = tuple(i.instance_id for i in members)
        offer = members[0].offer
        draft.act(
            Launch(
                request_id=request_id,
                shape=shape,
                instance_ids=ids,
                offers=() if offer is None else (offer, *_next_offers(draft, members[0], offer)),
            )
        )


def _next_offers(draft: Draft, instance: Instance, first: Offer) -> tuple[Offer, ...]:
    """Return where else one call may buy, cheapest first: the same market in other zones.

    Another market may be dearer than another type, so that is a decision of the next plan. An offer with a
    separate limit is left out: which offer a machine came from is known only when it is listed.
    """
    known = draft.types.get(instance.node_type)
    if known is None or not first.zone or instance.is_pinned or not draft.snapshot.traits.takes_next_offer:
        return ()
    usable = [each.offer for each in by_price(draft.choices_of(known))]
    return tuple(
        offer
        for offer in usable
        if offer.market == first.market
        and offer.zone
        and offer.name != first.name
        and offer.max_nodes is None
    )

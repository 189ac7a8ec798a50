"""Buys nothing for trials that will have a place sooner, or for less, than a new machine could give them.

Acts only on requests whose shape a tuner's forecast names, and only where machines are chosen by price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from muster.base.resources import Resources
from muster.base.text import short_duration
from muster.cluster.binpack.offers import by_price, price_of_work
from muster.cluster.binpack.pack import objective_of, pack
from muster.cluster.binpack.request import ItemOutcome, Packing, PackRequest
from muster.cluster.expected_work import ExpectedWork
from muster.cluster.model import Demand, Gang, Objective
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.rules.draft import Draft
from muster.cluster.spending import ForecastPolicy


def hold_back(draft: Draft) -> None:
    """Plans again without the requests that are not worth a machine; they wait, with the reason."""
    request, packing = draft.pack_request, draft.packing
    if not draft.expected or request is None or packing is None:
        return
    _tell_late(draft, request, packing)
    if objective_of(request) is not Objective.COST:
        return
    held = _held(draft, request)
    if not held:
        return
    kept = _without(request, held)
    draft.pack_request, draft.packing = kept, pack(kept)
    draft.add_verdicts(*_verdicts(draft, request, held))


def _tell_late(draft: Draft, request: PackRequest, packing: Packing) -> None:
    """Says early that a deadline will not be met with the machines that can be had, and what would help."""
    for work in draft.expected:
        if work.deadline_s is None or work.work_s is None:
            continue
        left, each_s = short_duration(max(0.0, work.deadline_s)), work.each_s or 0.0
        items = (
            *_of_shape(Subject.DEMAND, request.demands, packing.demands, work.shape),
            *_of_shape(Subject.GANG, request.gangs, packing.gangs, work.shape),
        )
        have = work.wanted - sum(outcome.unplaced for _, outcome in items)
        if work.waiting and each_s > work.deadline_s:
            text = f"a trial takes about {short_duration(each_s)}: raise it, or use faster machines"
        elif have < work.for_deadline():
            needed = f"{work.for_deadline()} places of {{{work.shape}}} are needed and {have} can be had"
            text = f"{needed}: raise it or max_workers, or use fewer samples"
        else:
            continue
        draft.add_cluster_verdict(Reason.DEADLINE, f"the deadline is in {left}, and {text}")


_UNLIMITED = 1_000_000_000
Held = dict[tuple[Subject, int], int]  # a gang or demand of the request -> how many of its requests wait


def _held(draft: Draft, request: PackRequest) -> Held:
    """Returns what was bought for beyond what each shape is worth; the last that asked wait."""
    assert draft.packing is not None
    policy, held = draft.spec.forecasts, Held()
    for work in draft.expected:
        items = [  # the last are held first: a trial is a gang, and plain demands are mostly somebody else's
            *_of_shape(Subject.DEMAND, request.demands, draft.packing.demands, work.shape),
            *_of_shape(Subject.GANG, request.gangs, draft.packing.gangs, work.shape),
        ]
        has_room = sum(sum(o.placed.values()) + sum(o.coming.values()) for _, o in items)
        bought = sum(sum(o.bought.values()) for _, o in items)
        if not bought:
            continue
        most = work.new_places(policy.most_boot_share, policy.first_slots)
        if work.deadline_s is None:
            most = min(most, has_room + _room_at_best_price(request, work.shape))
        # Those that a limit left without room would be bought for in the place of those that are held.
        wanted = bought + sum(o.unplaced for _, o in items)
        # Requests of the same shape beyond those of the forecast are somebody else's: they are not held.
        surplus = min(wanted - max(0, most - has_room), work.waiting + work.soon - most)
        for subject, outcome in reversed(items):
            amount = min(surplus, sum(outcome.bought.values()) + outcome.unplaced)
            if amount > 0:
                held[subject, outcome.index] = amount
                surplus -= amount
    return held


def _room_at_best_price(request: PackRequest, shape: Resources) -> int:
    """Returns how many places the cluster's limit allows on the machines with the cheapest ones.

    Trials can wait: they do not make the planner buy dearer machines only because these have more places.
    """
    if request.max_nodes is None:
        return _UNLIMITED
    best: tuple[float, int] | None = None
    for offer in request.offers:
        size = offer.node_type.resources
        places = min((size.units(name) // units for name, units in shape.items() if units), default=0)
        usable = by_price(offer.choices)
        own = usable[0].expected_price if usable else offer.node_type.price_per_hour
        price = price_of_work(own, offer.node_type)
        is_sold = offer.room > 0 and (bool(usable) or not offer.choices)
        if places > 0 and is_sold and price is not None and (best is None or price / places < best[0]):
            best = (price / places, places)
    left = request.max_nodes - len(request.nodes) - sum(request.leaving.values())
    return max(0, left) * (1 if best is None else best[1])


def _of_shape(
    subject: Subject,
    items: Sequence[Gang | Demand],
    outcomes: Sequence[ItemOutcome],
    shape: Resources,
) -> list[tuple[Subject, ItemOutcome]]:
    found = zip(items, outcomes, strict=True)
    return [(subject, outcome) for item, outcome in found if _shape_of(item) == shape]


def _shape_of(item: Gang | Demand) -> Resources | None:
    """A gang of several bundles, or with options, is not a trial that fits into another's place."""
    if isinstance(item, Demand):
        return None if item.selectors or item.avoid else item.shape
    bundles = item.options[0]
    is_single = len(item.options) == 1 and len(bundles) == 1 and bundles[0].count == 1
    return _shape_of(bundles[0]) if is_single else None


def _without(request: PackRequest, held: Held) -> PackRequest:
    gangs = tuple(g for i, g in enumerate(request.gangs) if (Subject.GANG, i) not in held)
    demands = []
    for index, demand in enumerate(request.demands):
        left = demand.count - held.get((Subject.DEMAND, index), 0)
        if left > 0:
            demands.append(demand if left == demand.count else replace(demand, count=left))
    return replace(request, gangs=gangs, demands=tuple(demands))


def _verdicts(draft: Draft, request: PackRequest, held: Held) -> list[Verdict]:
    texts = {work.shape: _text(work, draft.spec.forecasts) for work in draft.expected}
    found, amounts = [], Counter[tuple[Subject, str, str]]()
    for (subject, index), amount in held.items():
        item = request.gangs[index] if subject is Subject.GANG else request.demands[index]
        shape = _shape_of(item)
        name = item.gang_id if isinstance(item, Gang) else item.name or str(index)
        amounts[subject, name, texts[shape] if shape is not None else ""] += amount
    for (subject, name, text), amount in amounts.items():
        found.append(
            Verdict(
                subject=subject,
                subject_id=name,
                reason=Reason.WAITING_FOR_TURN,
                count=amount,
                detail=text,
            )
        )
    return found


def _text(work: ExpectedWork, policy: ForecastPolicy) -> str:
    """Returns why no machine is bought, for users."""
    if work.work_s is None:
        return f"it is not known yet how long trials run; room for {policy.first_slots} is bought until then"
    if work.served_before_boot() >= work.waiting + work.soon:
        return f"places become free before a new machine could serve, which takes {work.boot_s:.0f} s"
    share = f"{policy.most_boot_share:.0%}"
    return (
        f"{work.work_s / 3600.0:.1f} h of work are left: more than "
        f"{work.places(policy.most_boot_share, policy.first_slots)} places would spend over {share} of "
        f"their time on booting ({work.boot_s:.0f} s each)"
    )

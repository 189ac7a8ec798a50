"""Launch less than the planner wants: where trials get a place sooner or for less, and within the budget.

`defer_launches` acts only on requests whose shape a tuner's forecast names, and only where machines are
chosen by price. `enforce_budget` launches what fits, and removes all workers before the budget is used up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.base.resources import Resources
from muster.base.text import short_duration
from muster.cluster.budget import BudgetState
from muster.cluster.budget_policy import ForecastPolicy
from muster.cluster.expected_work import ExpectedWork
from muster.cluster.model import Demand, Gang, Instance, NodeStatus, Objective, Offer, StopCause
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.planner.offers import by_price, price_of_work
from muster.cluster.planner.pack import objective_of
from muster.cluster.planner.request import ItemOutcome, Packing, PackRequest, Removal
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import InstanceState


def defer_launches(draft: Draft) -> None:
    """Plan again without the requests that are not worth a machine; they wait, with the reason."""
    request, packing = draft.planned.request, draft.planned.packing
    if not draft.planned.expected or request is None or packing is None:
        return
    _tell_late(draft, request, packing)
    if objective_of(request) is not Objective.COST:
        return
    held = _held(draft, request, packing)
    if not held:
        return
    draft.planned.solve(_without(request, held))
    draft.add_verdicts(*_verdicts(draft, request, held))


def _tell_late(draft: Draft, request: PackRequest, packing: Packing) -> None:
    """Warn early that the available machines cannot meet a deadline, and what would help."""
    for work in draft.planned.expected:
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
            needed = f"{work.for_deadline()} places of {{{work.shape}}} are needed and {have} are available"
            text = f"{needed}: raise it or max_workers, or use fewer samples"
        else:
            continue
        draft.add_cluster_verdict(Reason.DEADLINE, f"the deadline is in {left}, and {text}")


_UNLIMITED = 1_000_000_000
Held = dict[tuple[Subject, int], int]  # a gang or demand of the request -> how many of its requests wait


def _held(draft: Draft, request: PackRequest, packing: Packing) -> Held:
    """Return what was launched for beyond what each shape is worth; the last that asked wait."""
    policy, held = draft.spec.forecasts, Held()
    for work in draft.planned.expected:
        items = [  # the last are held first: a trial is a gang, and plain demands are mostly somebody else's
            *_of_shape(Subject.DEMAND, request.demands, packing.demands, work.shape),
            *_of_shape(Subject.GANG, request.gangs, packing.gangs, work.shape),
        ]
        has_room = sum(sum(o.placed.values()) + sum(o.coming.values()) for _, o in items)
        launched = sum(sum(o.launched.values()) for _, o in items)
        if not launched:
            continue
        most = work.new_places(policy.most_boot_share, policy.first_slots)
        if work.deadline_s is None:
            most = min(most, has_room + _room_at_best_price(request, work.shape))
        # Those that a limit left without room would be launched for in the place of those that are held.
        wanted = launched + sum(o.unplaced for _, o in items)
        # Requests of the same shape beyond those of the forecast are somebody else's: they are not held.
        surplus = min(wanted - max(0, most - has_room), work.waiting + work.soon - most)
        for subject, outcome in reversed(items):
            amount = min(surplus, sum(outcome.launched.values()) + outcome.unplaced)
            if amount > 0:
                held[subject, outcome.index] = amount
                surplus -= amount
    return held


def _room_at_best_price(request: PackRequest, shape: Resources) -> int:
    """Return how many places the cluster's limit allows on the machines with the cheapest ones.

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
    subject: Subject, items: Sequence[Gang | Demand], outcomes: Sequence[ItemOutcome], shape: Resources
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
    texts = {work.shape: _text(work, draft.spec.forecasts) for work in draft.planned.expected}
    found, amounts = [], Counter[tuple[Subject, str, str]]()
    for (subject, index), amount in held.items():
        item = request.gangs[index] if subject is Subject.GANG else request.demands[index]
        shape = _shape_of(item)
        name = item.gang_id if isinstance(item, Gang) else item.name or str(index)
        amounts[subject, name, texts[shape] if shape is not None else ""] += amount
    for (subject, name, text), amount in amounts.items():
        found.append(
            Verdict(
                subject=subject, subject_id=name, reason=Reason.WAITING_FOR_TURN, count=amount, detail=text
            )
        )
    return found


def _text(work: ExpectedWork, policy: ForecastPolicy) -> str:
    """Return why muster launches no machine, for users."""
    if work.work_s is None:
        return f"trials have unknown lengths; until one ends, muster launches room for {policy.first_slots}"
    if work.served_before_boot() >= work.waiting + work.soon:
        return f"places become free before a new machine could serve, which takes {work.boot_s:.0f} s"
    share = f"{policy.most_boot_share:.0%}"
    return (
        f"{work.work_s / 3600.0:.1f} h of work are left: more than "
        f"{work.places(policy.most_boot_share, policy.first_slots)} places would spend over {share} of "
        f"their time on booting ({work.boot_s:.0f} s each)"
    )


_S = InstanceState
_SERVING = (_S.QUEUED, _S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING)
_PAID = (_S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING)


def enforce_budget(draft: Draft) -> None:
    """Plan again with fewer new machines where not all fit; the launches themselves reserve the money."""
    planned, budget = draft.planned, draft.budget
    request, packing = planned.request, planned.outcome
    if budget is None or request is None or packing is None:
        return
    if budget.is_used_up:
        text = f"the budget is used up: {budget.text()}"
        planned.solve(replace(request, most_new=0, most_new_reason=text))  # what waits has the true reason
        planned.is_used_up = True
        planned.unpaid, kept = _all_workers(draft, text)
        names = ", ".join(f"{count} of {name}" for name, count in kept.items())
        ends = f"but the minimum keeps {names}: lower it to release them" if names else "workers are released"
        draft.add_cluster_verdict(Reason.BUDGET, f"{text}; {ends}")
        return
    if planned.consolidation is not None and _fitting(draft, packing, budget) < sum(packing.launch.values()):
        planned.consolidation = None  # work that waits comes first
        packing = planned.packing or packing
    wanted = sum(packing.launch.values())
    fitting = _fitting(draft, packing, budget)
    text = f"the budget allows {fitting} of {wanted} new machines: {budget.text()}{_least(packing, budget)}"
    if fitting < wanted:
        draft.add_cluster_verdict(Reason.BUDGET, text)
    while fitting >= 0 and _fitting(draft, packing, budget) < sum(packing.launch.values()):
        packing = planned.solve(replace(request, most_new=fitting, most_new_reason=text))
        fitting -= 1  # fewer machines may be larger ones, which cost more
    _shrink(draft, budget)


def _shrink(draft: Draft, budget: BudgetState) -> None:
    """Give the newest machines back while all together cost more per hour than they may.

    That happens when a machine comes that was given up already, or when the limit was lowered.
    """
    most, packing = budget.budget.per_hour, draft.planned.outcome
    if most is None or packing is None or budget.per_hour <= most + 1e-9:
        return
    leaving = {removal.instance_id for removal in packing.removals}
    staying = [one for one in draft.in_state(*_PAID) if is_head(one) or _goes(one, leaving)]
    over = sum(one.price_per_hour or 0.0 for one in staying) - most
    refilled = _refilled(draft, staying)
    details = f"all machines cost more than ${most:g} per hour"
    removals: list[Removal] = []
    for one in sorted(staying, key=lambda each: (each.state is _S.RAY_RUNNING, -each.history[0].at)):
        if over > 1e-9 and not is_head(one) and one.price_per_hour and one.instance_id not in refilled:
            removals.append(Removal(one.instance_id, one.node_type, StopCause.BUDGET, details))
            over -= one.price_per_hour
    if removals:
        draft.planned.unpaid = tuple(removals)
        draft.add_cluster_verdict(Reason.BUDGET, f"{details}: {budget.text()}; the newest are terminated")


def _price_of(draft: Draft, queued: Instance) -> float | None:
    """Return what the machine of a record that has no offer yet may cost."""
    known = draft.types.get(queued.node_type)
    if known is None or not known.offers or queued.is_pinned:
        return queued.price_per_hour
    cheapest = next(iter(by_price(draft.choices_of(known))), None)
    return queued.price_per_hour if cheapest is None else cheapest.offer.price_per_hour


def _fitting(draft: Draft, packing: Packing, budget: BudgetState) -> int:
    """Return how many of the planned machines can be paid for, the cheapest first."""
    trial = replace(budget)  # a copy to try purchases on; what waits for its launch comes first
    for one in draft.in_state(_S.QUEUED):
        trial.take(_price_of(draft, one))
    return sum(trial.take(price, offer) for price, offer in _planned_prices(packing))


def _least(packing: Packing, budget: BudgetState) -> str:
    """Return what the cheapest planned machine costs, for users; "" when nobody knows."""
    price, offer = next(iter(_planned_prices(packing)), (None, None))
    if price is None:
        return ""
    least = budget.least_cost(price, offer)
    return f"; one costs ${price:g} per hour, and at least ${least:.2f} until it can be terminated"


def _planned_prices(packing: Packing) -> list[tuple[float | None, Offer | None]]:
    """Return the price of each machine that the plan has, the cheapest first, with the offer it is from."""
    prices: list[tuple[float | None, Offer | None]] = []
    known = {offer.node_type.name: offer for offer in packing.offers}
    for name, count in packing.launch.items():
        by_offer = packing.launched_offers.get(name)
        offers = {each.offer.name: each.offer for each in known[name].choices} if name in known else {}
        if by_offer:
            for offer_name, amount in by_offer.items():
                offer = offers.get(offer_name)
                prices += [(offer.price_per_hour if offer else None, offer)] * amount
        else:
            price = known[name].node_type.price_per_hour if name in known else None
            prices += [(price, None)] * count
    return sorted(prices, key=lambda each: (each[0] is None, each[0] or 0.0))


def _all_workers(draft: Draft, details: str) -> tuple[tuple[Removal, ...], Counter[str]]:
    """Return the removal of every worker, and how many of each type stay because they would come back."""
    packing = draft.planned.outcome
    leaving = {removal.instance_id for removal in packing.removals} if packing else set()
    workers = [one for one in draft.in_state(*_SERVING) if _goes(one, leaving)]
    refilled = _refilled(draft, workers)
    going = tuple(
        Removal(one.instance_id, one.node_type, StopCause.BUDGET, details)
        for one in workers
        if one.instance_id not in refilled
    )
    return going, Counter(one.node_type for one in workers if one.instance_id in refilled)


def _refilled(draft: Draft, workers: Sequence[Instance]) -> set[InstanceId]:
    """Return the machines of minimums that the provider fills itself: each removed one would come back.

    Those at work stay first, with the other machines of their slices.
    """
    if not draft.snapshot.traits.refills_minimums:
        return set()
    cloud = draft.snapshot.cloud or {}
    machines = {one.instance_id: cloud.get(one.cloud_id) for one in workers if one.cloud_id}
    slices = {name: machine.slice_id for name, machine in machines.items() if machine is not None}
    units = {one.instance_id: slices.get(one.instance_id) or one.instance_id for one in workers}
    nodes = ((one, draft.nodes.get(one.node_id or "")) for one in workers)
    busy = {units[one.instance_id] for one, node in nodes if node and node.status is NodeStatus.RUNNING}
    rank = {state: place for place, state in enumerate(reversed(_PAID))}
    ranked = sorted(
        (one for one in workers if one.state in rank),
        key=lambda one: (rank[one.state], units[one.instance_id] not in busy, units[one.instance_id]),
    )
    left = {known.name: known.min_nodes for known in draft.spec.node_types}
    kept = set[InstanceId]()
    for one in ranked:
        if left.get(one.node_type, 0) > 0:
            left[one.node_type] -= 1
            kept.add(one.instance_id)
    return kept


def _goes(instance: Instance, leaving: set[InstanceId]) -> bool:
    """What was cancelled ends when it comes, unless its node was there first: that is drained."""
    is_on_its_way_out = instance.cancelled and instance.state is not _S.RAY_RUNNING
    return not is_head(instance) and not is_on_its_way_out and instance.instance_id not in leaving

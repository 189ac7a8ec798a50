"""Keeps the cluster within its budget: buys what fits, and gives all workers back before it is used up."""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.cluster.binpack.offers import by_price
from muster.cluster.binpack.pack import pack
from muster.cluster.binpack.request import Packing, Removal
from muster.cluster.budget import BudgetState
from muster.cluster.model import Instance, Offer, StopCause
from muster.cluster.plan import Reason
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import InstanceState

_S = InstanceState
_SERVING = (_S.QUEUED, _S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING)
_PAID = (_S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING)


def hold_budget(draft: Draft) -> None:
    """Plans again with fewer new machines where not all fit; the launches themselves reserve the money."""
    budget, request, packing = draft.budget, draft.pack_request, draft.packing
    if budget is None or request is None or packing is None:
        return
    if budget.is_used_up:
        text = f"the budget is used up: {budget.text()}"
        draft.pack_request = replace(request, most_new=0, most_new_reason=text)
        draft.packing = pack(draft.pack_request)  # so that what waits has the true reason
        draft.packing = _ended(draft, budget)
        draft.add_cluster_verdict(Reason.BUDGET, f"{text}; workers are given back")
        return
    wanted = sum(packing.launch.values())
    fitting = _fitting(draft, packing, budget)
    text = f"the budget allows {fitting} of {wanted} new machines: {budget.text()}{_least(packing, budget)}"
    if fitting < wanted:
        draft.add_cluster_verdict(Reason.BUDGET, text)
    while fitting >= 0 and _fitting(draft, packing, budget) < sum(packing.launch.values()):
        draft.pack_request = replace(request, most_new=fitting, most_new_reason=text)
        draft.packing = packing = pack(draft.pack_request)
        fitting -= 1  # fewer machines may be larger ones, which cost more
    _shrink(draft, budget)


def _shrink(draft: Draft, budget: BudgetState) -> None:
    """Gives the newest machines back while all together cost more per hour than they may.

    That happens when a machine comes that was given up already, or when the limit was lowered.
    """
    most = budget.budget.per_hour
    if most is None or draft.packing is None or budget.per_hour <= most + 1e-9:
        return
    leaving = {removal.instance_id for removal in draft.packing.removals}
    staying = [one for one in draft.in_state(*_PAID) if is_head(one) or _goes(one, leaving)]
    over = sum(one.price_per_hour or 0.0 for one in staying) - most
    details = f"all machines cost more than ${most:g} per hour"
    removals: list[Removal] = []
    for one in sorted(staying, key=lambda each: (each.state is _S.RAY_RUNNING, -each.history[0].at)):
        if over > 1e-9 and not is_head(one) and one.price_per_hour:
            removals.append(_removal(one, details))
            over -= one.price_per_hour
    if removals:
        draft.packing = replace(draft.packing, removals=(*draft.packing.removals, *removals))
        draft.add_cluster_verdict(Reason.BUDGET, f"{details}: {budget.text()}; the newest are given back")


def _price_of(draft: Draft, queued: Instance) -> float | None:
    """Returns what the machine of a record that has no offer yet may cost."""
    known = draft.types.get(queued.node_type)
    if known is None or not known.offers:
        return queued.price_per_hour
    cheapest = next(iter(by_price(draft.choices_of(known))), None)
    return queued.price_per_hour if cheapest is None else cheapest.offer.price_per_hour


def _fitting(draft: Draft, packing: Packing, budget: BudgetState) -> int:
    """Returns how many of the planned machines can be paid for, the cheapest first."""
    trial = replace(budget)  # a copy to try purchases on; what waits for its launch comes first
    for one in draft.in_state(_S.QUEUED):
        trial.take(_price_of(draft, one))
    return sum(trial.take(price, offer) for price, offer in _planned_prices(packing))


def _least(packing: Packing, budget: BudgetState) -> str:
    """Returns what the cheapest planned machine costs, for users; "" when nobody knows."""
    price, offer = next(iter(_planned_prices(packing)), (None, None))
    if price is None:
        return ""
    least = budget.least_cost(price, offer)
    return f"; one costs ${price:g} per hour, and at least ${least:.2f} until it can be given back"


def _planned_prices(packing: Packing) -> list[tuple[float | None, Offer | None]]:
    """Returns the price of each machine that the plan has, the cheapest first, with the offer it is from."""
    prices: list[tuple[float | None, Offer | None]] = []
    known = {offer.node_type.name: offer for offer in packing.offers}
    for name, count in packing.launch.items():
        by_offer = packing.bought_offers.get(name)
        offers = {each.offer.name: each.offer for each in known[name].choices} if name in known else {}
        if by_offer:
            for offer_name, amount in by_offer.items():
                offer = offers.get(offer_name)
                prices += [(offer.price_per_hour if offer else None, offer)] * amount
        else:
            price = known[name].node_type.price_per_hour if name in known else None
            prices += [(price, None)] * count
    return sorted(prices, key=lambda each: (each[0] is None, each[0] or 0.0))


def _ended(draft: Draft, budget: BudgetState) -> Packing:
    assert draft.packing is not None
    details = f"the budget is used up: {budget.text()}"
    leaving = {removal.instance_id for removal in draft.packing.removals}
    more = [_removal(one, details) for one in draft.in_state(*_SERVING) if _goes(one, leaving)]
    return replace(draft.packing, launch={}, bought_offers={}, removals=(*draft.packing.removals, *more))


def _goes(instance: Instance, leaving: set[InstanceId]) -> bool:
    """What was cancelled ends when it comes, unless its node was there first: that is drained."""
    is_on_its_way_out = instance.cancelled and instance.state is not _S.RAY_RUNNING
    return not is_head(instance) and not is_on_its_way_out and instance.instance_id not in leaving


def _removal(instance: Instance, details: str) -> Removal:
    return Removal(
        instance_id=instance.instance_id,
        node_type=instance.node_type,
        cause=StopCause.BUDGET,
        details=details,
    )

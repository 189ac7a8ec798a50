"""Choose among the offers of a node type: the cheapest that are not backed off and have room, in this order.

Machines of one type are equal whatever offer they come from, so `n` of them cost least when the cheapest
offers are used up first. A spot offer costs more than its price: `risks` adds what is expected to be lost
with its machines. Called by `pack`, by the rules that withdraw and launch, and by reports.

A TypeHold keeps muster from launching more machines of a type: a gate forbids it, or one waits in vain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from muster.base.forecast import Forecast
from muster.base.ids import CloudId
from muster.base.resources import EMPTY
from muster.cluster.backoff import is_blocked
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    Demand,
    FailureKind,
    Instance,
    MachineProblem,
    NodeType,
    Offer,
    StopCause,
    health_key,
)
from muster.cluster.planner.demand_classes import fitting, labels_suit, machines_for
from muster.cluster.planner.request import (
    MARKET_LABEL,
    ZONE_LABEL,
    OfferState,
    PackNode,
    PackProblem,
    PackRequest,
    PackSolution,
    TypeOffer,
    labels_of,
)
from muster.cluster.snapshot import PoolRecord, TypeHealth
from muster.cluster.states import ON_CLOUD, InstanceState

NO_RISKS: Mapping[str, float] = {}
_KINDS = frozenset({FailureKind.QUOTA, FailureKind.CONFIG})  # another machine would wait as well


def offer_states(
    known: NodeType, health: Mapping[str, TypeHealth], now: float, risks: Mapping[str, float] = NO_RISKS
) -> tuple[OfferState, ...]:
    """Return the offers of a type with their back-off, in the order of the config; room as configured."""
    states = []
    for offer in known.offers:
        key = health_key(known.name, offer.name)
        failed = health.get(key)
        blocked = failed if failed is not None and is_blocked(failed, now) else None
        states.append(
            OfferState(
                offer=offer,
                room=0 if blocked else _most(offer, known.most_nodes),
                blocked_kind=blocked.kind if blocked else None,
                blocked_until=blocked.blocked_until if blocked else 0.0,
                blocked_message=blocked.message if blocked else "",
                risk=risks.get(key, 0.0),
            )
        )
    return tuple(states)


def _most(offer: Offer, of_type: int) -> int:
    return of_type if offer.max_nodes is None else min(offer.max_nodes, of_type)


def left_of(choices: Iterable[OfferState], taken: Mapping[str, int]) -> tuple[OfferState, ...]:
    """Return the offers with the room that machines already taken from them (by offer name) leave."""
    return tuple(
        replace(each, room=max(0, each.room - taken.get(each.offer.name, 0))) if each.room else each
        for each in choices
    )


def has_blocked_offer(offer: TypeOffer) -> bool:
    """Return whether at least one offer of the type is backed off."""
    return any(each.blocked_kind is not None for each in offer.choices)


def with_block_of_offers(offer: TypeOffer) -> TypeOffer:
    """Return a type that cannot be launched, with the back-off of the offer that will be tried first."""
    blocked = [each for each in offer.choices if each.blocked_kind is not None]
    first = min(blocked, key=lambda each: each.blocked_until)
    return replace(
        offer,
        blocked_kind=first.blocked_kind,
        blocked_until=first.blocked_until,
        blocked_message=first.blocked_message,
        blocked_offer=first.offer.name,
    )


def without_back_off(offer: TypeOffer) -> TypeOffer:
    """Return a type as its limits allow to buy it, whatever failed lately."""
    most = offer.node_type.most_nodes
    choices = (replace(each, room=_most(each.offer, most), blocked_kind=None) for each in offer.choices)
    return replace(offer, blocked_kind=None, room=most, choices=tuple(choices))


def by_price(choices: Sequence[OfferState]) -> list[OfferState]:
    """Return the offers that can be launched from, cheapest first; equal prices in the order of the config.

    What a spot offer is expected to lose with the machines that the cloud takes is part of its price.
    """
    usable = [each for each in choices if each.room > 0]
    return sorted(usable, key=lambda each: (each.expected_price is None, each.expected_price or 0.0))


def split(choices: Sequence[OfferState], count: int) -> dict[str, int]:
    """Return how many of `count` machines come from each offer: offer name -> machines."""
    found: dict[str, int] = {}
    for each in by_price(choices):
        amount = min(count, each.room)
        if amount <= 0:
            break
        found[each.offer.name] = amount
        count -= amount
    return found


def without(offer: TypeOffer, launched: int) -> TypeOffer:
    """Return a type on sale after `launched` more machines of it."""
    if not launched:
        return offer
    choices = left_of(offer.choices, split(offer.choices, launched))
    return replace(offer, room=offer.room - launched, choices=choices)


Pinned = Mapping[str, Mapping[str, int]]  # node type -> offer name -> machines
NONE_PINNED: Pinned = {}


def launched_offers(
    launch: Mapping[str, int], offers: Iterable[TypeOffer], pinned: Pinned = NONE_PINNED
) -> dict[str, dict[str, int]]:
    """Return node type -> offer name -> machines, for the types of `launch` that have offers."""
    found: dict[str, dict[str, int]] = {}
    for offer in offers:
        name = offer.node_type.name
        if offer.choices and launch.get(name, 0) > 0:
            own = pinned.get(name, {})
            rest = split(left_of(offer.choices, own), launch[name] - sum(own.values()))
            found[name] = dict(Counter(rest) + Counter(own))
    return found


def price_of(
    launch: Mapping[str, int], offers: Sequence[TypeOffer], pinned: Pinned = NONE_PINNED
) -> float | None:
    """Return $ per hour of these machines; None when one of them has no price."""
    known = {offer.node_type.name: offer for offer in offers}
    amounts = launched_offers(launch, offers, pinned)
    total = 0.0
    for name, count in launch.items():
        price = _price_of_type(known.get(name), count, amounts.get(name, {}))
        if price is None:
            return None
        total += price
    return total


def _price_of_type(offer: TypeOffer | None, count: int, amounts: Mapping[str, int]) -> float | None:
    if offer is None:
        return None
    if not offer.choices:
        price = offer.node_type.price_per_hour
        return None if price is None else price * count
    prices = {each.offer.name: each.offer.price_per_hour for each in offer.choices}
    if sum(amounts.values()) < count or any(prices[name] is None for name in amounts):
        return None
    return sum((prices[name] or 0.0) * amount for name, amount in amounts.items())


def with_choices_left(
    offers: Sequence[TypeOffer], nodes: Iterable[PackNode], request: PackRequest
) -> tuple[TypeOffer, ...]:
    """Return the types on sale, the room of each bounded by that of its offers.

    A record that waits for its launch has no offer yet: it will get the cheapest, before any launched now.
    """
    if not any(offer.choices for offer in offers):
        return tuple(offers)
    taken, unassigned = Counter[str](request.leaving_offers), Counter[str]()
    for node in nodes:
        if node.offer:
            taken[health_key(node.node_type, node.offer)] += 1
        elif node.state is InstanceState.QUEUED and node.key:
            unassigned[node.node_type] += 1
    return tuple(_bounded(offer, taken, unassigned[offer.node_type.name]) for offer in offers)


def _bounded(offer: TypeOffer, taken: Mapping[str, int], unassigned: int) -> TypeOffer:
    if not offer.choices:
        return offer
    name = offer.node_type.name
    own = {each.offer.name: taken.get(health_key(name, each.offer.name), 0) for each in offer.choices}
    left = left_of(offer.choices, own)
    left = left_of(left, split(left, unassigned))
    return replace(offer, choices=left, room=min(offer.room, sum(each.room for each in left)))


def at_prices(problem: PackProblem) -> PackProblem:
    """Return the problem with one entry per price at which a type can be launched, cheapest first.

    The entries of a type have together the room of the type, so its limit holds over all of them. The first
    keeps the type's name, and is the only one unless the cheapest offer has less room than the type. A
    machine that works twice as fast is needed half as long: prices are those of equal work.
    """
    if not any(offer.choices or offer.node_type.speed != 1.0 for offer in problem.offers):
        return problem
    return replace(problem, offers=tuple(entry for offer in problem.offers for entry in _priced(offer)))


def price_of_work(price_per_hour: float | None, known: NodeType) -> float | None:
    """Return $ for the work that a machine of speed 1 does in an hour."""
    return None if price_per_hour is None else price_per_hour / known.speed


_MARK = "\n"  # no node type has it in its name


def _priced(offer: TypeOffer) -> list[TypeOffer]:
    known = offer.node_type
    if not offer.choices:
        return [
            replace(
                offer, node_type=replace(known, price_per_hour=price_of_work(known.price_per_hour, known))
            )
        ]
    entries: list[TypeOffer] = []
    room = offer.room
    for each in by_price(offer.choices):
        if room > 0:
            entries.append(_entry(offer, each, min(room, each.room), len(entries)))
            room -= each.room
    return entries or [replace(offer, choices=(), room=0)]


def _entry(offer: TypeOffer, choice: OfferState, room: int, position: int) -> TypeOffer:
    known = offer.node_type
    name = known.name if position == 0 else f"{known.name}{_MARK}{position}"
    priced = replace(known, name=name, price_per_hour=price_of_work(choice.expected_price, known), offers=())
    return replace(offer, node_type=priced, room=room, choices=())


def with_offer_labels(problem: PackProblem) -> PackProblem:
    """Return the problem with an entry for each offer, where a request asks for a zone or a market."""
    options = (bundle for gang in problem.gangs for option in gang.options for bundle in option)
    items = (*problem.constraints, *options, *problem.demands)
    keys = {ZONE_LABEL, MARKET_LABEL}
    asked = [one for one in items if any(match.key in keys for one_of in one.selectors for match in one_of)]
    if not asked and not any(gang.locality_label in keys for gang in problem.gangs):
        return problem
    return replace(
        problem, offers=tuple(entry for offer in problem.offers for entry in _labelled(offer, asked))
    )


def _labelled(offer: TypeOffer, asked: Iterable[Demand]) -> list[TypeOffer]:
    """Return the offers of a type as types with their labels.

    Together they have the room of the type: first as much as those requests need of each, in their order,
    then of the cheapest.
    """
    known, left, usable = offer.node_type, offer.room, by_price(offer.choices)
    labels = {each.offer.name: labels_of(each.offer, known) for each in usable}
    needs = [(demand, machines_for(demand, known)) for demand in asked]
    rooms = Counter[str]()
    for demand, wanted in (*needs, (Demand(shape=EMPTY), left)):
        rest = wanted
        for each in (each for each in usable if labels_suit(demand, labels[each.offer.name])):
            amount = min(rest, left, each.room - rooms[each.offer.name])
            rooms[each.offer.name] += amount
            left, rest = left - amount, rest - amount
    entries = []
    for each in (each for each in usable if rooms[each.offer.name]):
        name = each.offer.name
        own = replace(known, name=f"{known.name}{_MARK}{name}", labels=labels[name], offers=())
        own = replace(own, price_per_hour=each.expected_price)
        entries.append(replace(offer, node_type=own, room=rooms[name], choices=()))
    return entries or [offer]


def by_type(solution: PackSolution) -> PackSolution:
    """Return a solution of `at_prices` or `with_offer_labels` with the types' own names."""
    if not any(_MARK in name for name in solution.launch):
        return solution
    launch, pinned = Counter[str](), dict[str, dict[str, int]]()
    for name, count in solution.launch.items():
        known, _, offer = name.partition(_MARK)
        launch[known] += count
        if count > 0 and offer and not offer.isdigit():
            pinned.setdefault(known, {})[offer] = count
    own = (p._replace(node_type=p.node_type.partition(_MARK)[0]) for p in solution.placements)
    return replace(solution, launch=dict(launch), placements=tuple(own), pinned=pinned)


HALF_LIFE_S = 6 * 3600.0
PRIOR_S, PRIOR_LOSSES = 36_000.0, 1.0  # before anything was seen: one machine taken in ten hours
_SPOT = "spot"
NEVER = 1e6  # a share that no difference of price makes up for


def after_ends(
    pools: Mapping[str, PoolRecord], ended: Iterable[Instance], now: float
) -> Mapping[str, PoolRecord]:
    """Return the pools after these records have ended; the same object when none came from a spot pool."""
    found: dict[str, PoolRecord] | None = None
    for record in ended:
        if record.offer is None or record.offer.market != _SPOT:
            continue
        lived_s = _lived_s(record, now)
        if lived_s <= 0.0:
            continue
        found = dict(pools) if found is None else found
        key = health_key(record.node_type, record.offer.name)
        before = _faded(found.get(key, PoolRecord(at=now)), now)
        is_taken = record.stop_cause is StopCause.NOTICE or record.loss is not None
        found[key] = PoolRecord(
            machine_s=before.machine_s + lived_s, losses=before.losses + float(is_taken), at=now
        )
    return pools if found is None else found


def risks(
    spec: ClusterSpec, pools: Mapping[str, PoolRecord], live: Iterable[Instance], lost_s: float, now: float
) -> dict[str, float]:
    """Return for every spot offer the share of its price that is expected to be lost with its machines.

    `lost_s` is the work that a machine's end costs: what is repeated, the restart, and the wait for another.
    """
    lived: dict[str, float] = {}
    for record in live:
        if record.offer is not None and record.offer.market == _SPOT and record.state in ON_CLOUD:
            key = health_key(record.node_type, record.offer.name)
            lived[key] = lived.get(key, 0.0) + _lived_s(record, now)
    found: dict[str, float] = {}
    for known in spec.node_types:
        for offer in known.offers:
            if offer.market == _SPOT:
                key = health_key(known.name, offer.name)
                past = _faded(pools.get(key, PoolRecord(at=now)), now)
                exposed_s = PRIOR_S + past.machine_s + lived.get(key, 0.0)
                found[key] = (PRIOR_LOSSES + past.losses) / exposed_s * lost_s
    return found


def lost_work_s(forecasts: Iterable[Forecast], boot_s: float) -> float:
    """Return the seconds that the end of a machine costs: known from the trials, else a boot time."""
    costs = [trial.unsaved_s + trial.restart_s for one in forecasts for trial in one.trials]
    return boot_s + (fmean(costs) if costs else boot_s)


def _lived_s(record: Instance, now: float) -> float:
    started = next((change.at for change in record.history if change.state in ON_CLOUD), None)
    return 0.0 if started is None else max(0.0, now - started)


def _faded(record: PoolRecord, now: float) -> PoolRecord:
    share = 0.5 ** min(max(0.0, now - record.at) / HALF_LIFE_S, 64.0)
    return PoolRecord(machine_s=record.machine_s * share, losses=record.losses * share, at=now)


class TypeHold(NamedTuple):
    """Reason to launch no more machines of a type for now."""

    kind: FailureKind
    message: str
    is_soft: bool = False  # only where another type fits: more machines may help to get room


def held_types(
    spec: ClusterSpec, starting: Iterable[Instance], cloud: Mapping[CloudId, CloudInstance], now: float
) -> dict[str, TypeHold]:
    """Return the holds by type; `starting` are the machines whose nodes have not come."""
    holds: dict[str, TypeHold] = {}
    for instance in starting:
        problem = problem_of(instance, cloud)
        if problem is not None and problem.kind in _KINDS:
            holds[instance.node_type] = TypeHold(problem.kind, problem.message)
        elif problem is not None and now - instance.since > spec.timeouts.other_type_s:
            holds.setdefault(instance.node_type, TypeHold(problem.kind, problem.message, is_soft=True))
    for known in spec.node_types:
        if known.gates:
            holds[known.name] = TypeHold(FailureKind.QUOTA, f"gated by {' and '.join(known.gates)}")
    return holds


def problem_of(instance: Instance, cloud: Mapping[CloudId, CloudInstance]) -> MachineProblem | None:
    machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
    return None if machine is None else machine.problem


def is_queued(problem: MachineProblem | None) -> bool:
    """Return whether a machine waits for its turn, however long that takes."""
    return problem is not None and (problem.has_place or problem.kind is FailureKind.QUOTA)


def effective_holds(
    holds: Mapping[str, TypeHold], offers: Iterable[TypeOffer], demands: Iterable[Demand]
) -> dict[str, TypeHold]:
    """Return the holds without soft ones, unless a type that is not held fits some of the demand."""
    free = [one for one in offers if one.node_type.name not in holds and one.blocked_kind is None]
    usable = [offer for offer in free if offer.node_type.most_nodes > 0]
    has_other = any(hold.is_soft for hold in holds.values()) and any(fitting(one, usable) for one in demands)
    return {name: hold for name, hold in holds.items() if has_other or not hold.is_soft}


def hold_offers(offers: Iterable[TypeOffer], holds: Mapping[str, TypeHold]) -> tuple[TypeOffer, ...]:
    """Return the offers with the held types blocked for an unknown time."""
    return tuple(
        offer
        if (hold := holds.get(offer.node_type.name)) is None
        else replace(
            offer, room=0, blocked_kind=hold.kind, blocked_message=hold.message, blocked_until=math.inf
        )
        for offer in offers
    )

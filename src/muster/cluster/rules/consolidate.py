"""Empties a node whose trials can go on elsewhere for less, by their checkpoints.

A node is emptied into the free room of others, or into cheaper machines, when what is saved over the expected
rest of its trials is more than twice what their moves cost. Only nodes are touched on which nothing runs but
trials that said they can be moved.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from muster.base.forecast import RunningTrial
from muster.base.resources import EMPTY, Resources
from muster.cluster.binpack.offers import by_price, without
from muster.cluster.binpack.request import ItemOutcome, Packing, PackRequest, Removal, TypeOffer
from muster.cluster.model import Demand, Gang, Instance, NodeReport, NodeStatus, StopCause
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.spending import Consolidation
from muster.cluster.states import InstanceState

_S = InstanceState
BETWEEN_MOVES_S = 600.0  # a trial is moved at most once within this
_FACTOR = {Consolidation.CONSERVATIVE: 2.0, Consolidation.EAGER: 1.0}
_MOST_AT_ONCE = int(os.environ.get("X_AT_ONCE", "10"))  # one of so many nodes is emptied at a time
_HOW = os.environ.get("X_HOW", "max")
_BOUNDED = os.environ.get("X_BOUNDED", "0") == "1"


class BusyNode(Struct, frozen=True, kw_only=True):
    """A BusyNode is a node that may be emptied, with the trials on it."""

    instance: Instance
    report: NodeReport
    trials: tuple[RunningTrial, ...]
    price: float  # $ per hour
    speed: float

    @property
    def rest_s(self) -> float:
        """Returns how long the node would be needed if it is not emptied."""
        return max(trial.rest_s or 0.0 for trial in self.trials)

    def rest_on(self, trial: RunningTrial, speed: float) -> float:
        """Returns how long a trial of this node would run on a machine of another speed."""
        return (trial.rest_s or 0.0) * self.speed / speed

    def move_cost(self) -> float:
        """Returns the $ of the work that is repeated and of the time that trials need to start again."""
        lost = sum(
            (trial.unsaved_s + trial.restart_s) * _share(trial.shape, self.report.total)
            for trial in self.trials
        )
        return self.price * lost / 3600.0


class FreeRoom(Struct, frozen=True, kw_only=True):
    """A FreeRoom is what is free on a node that is in use, and how long it is needed anyway."""

    free: Resources
    price: float
    speed: float
    end_s: float  # inf: not known
    worth: float  # $ per hour of the machines that its trials would need instead

    def taken(self, shape: Resources, until_s: float, own: float) -> FreeRoom:
        return replace(
            self, free=self.free.minus(shape), end_s=max(self.end_s, until_s), worth=self.worth + own
        )


class Emptied(Struct, frozen=True, kw_only=True):
    """An Emptied is what became of the trials of a node, in $ over their rest."""

    saved: float
    cost: float  # of the moves, and of the boots of new machines
    where: str
    rooms: Mapping[str, FreeRoom]  # of the other nodes, afterwards
    targets: frozenset[str] = frozenset()
    machines: Mapping[str, int]  # new ones, by type


def consolidate(draft: Draft) -> None:
    """Adds the nodes to empty to what the planner removes; the drain asks their trials for checkpoints."""
    policy = draft.spec.consolidation
    packing, request = draft.packing, draft.pack_request
    if policy is Consolidation.OFF or packing is None or request is None or not draft.seen.forecasts:
        return
    if not draft.may_scale:
        return
    stopping = draft.in_state(_S.RAY_STOP_REQUESTED, _S.RAY_STOPPING)
    under_way = sum(one.stop_cause is StopCause.CONSOLIDATION for one in stopping)
    most = max(1, draft.count(_S.RAY_RUNNING) // _MOST_AT_ONCE) - under_way
    removals = _removals(draft, request, packing, _FACTOR[policy], most)
    if removals:
        draft.packing = replace(packing, removals=(*packing.removals, *removals))


def _removals(
    draft: Draft, request: PackRequest, packing: Packing, factor: float, most: int
) -> list[Removal]:
    by_node = _trials_by_node(draft)
    market = _Market(draft, packing)
    rooms = _free_rooms(draft, request, packing, by_node, market)
    found: list[Removal] = []
    kept: set[str] = set()
    for candidate in sorted(
        _candidates(draft, packing, by_node),
        key=lambda one: (-one.price * one.rest_s, one.instance.instance_id),
    ):
        key = candidate.instance.instance_id
        emptied = _emptied(candidate, rooms, market)
        text = _reason(draft, candidate, emptied, factor)
        if emptied is None or not text or len(found) >= most or key in kept:
            continue
        found.append(_removal(candidate, text))
        rooms = dict(emptied.rooms)
        kept |= emptied.targets
        market.buy(emptied.machines)
    return found


# -- what there is --------------------------------------------------------------------------------


def _trials_by_node(draft: Draft) -> dict[str, list[RunningTrial]]:
    found: dict[str, list[RunningTrial]] = {}
    for forecast in draft.seen.forecasts:
        for trial in forecast.trials:
            found.setdefault(trial.node_id, []).append(trial)
    return found


def _free_rooms(
    draft: Draft,
    request: PackRequest,
    packing: Packing,
    by_node: Mapping[str, Sequence[RunningTrial]],
    market: _Market,
) -> dict[str, FreeRoom]:
    """Returns the free room of running nodes that are in use: an idle node goes by itself.

    What was planned onto a node is not free any more.
    """
    planned = _planned(request, packing)
    going = {removal.instance_id for removal in packing.removals}
    found = {}
    for node in request.nodes:
        if not node.runs or node.idle_s > 0 or not node.available or node.key in going:
            continue
        free = node.available
        for shape in planned.get(node.key, ()):
            free = free.minus(shape).positive()
        instance, known = draft.instances[node.key], draft.types.get(node.node_type)
        on_it = by_node.get(instance.node_id or "", ())
        speed = known.speed if known else 1.0
        found[node.key] = FreeRoom(
            free=free,
            price=instance.price_per_hour or 0.0,
            speed=speed,
            end_s=_end_s(on_it, node.total, node.available),
            worth=sum(market.own_price(trial.shape, speed) for trial in on_it),
        )
    return found


def _planned(request: PackRequest, packing: Packing) -> dict[str, list[Resources]]:
    """Returns the shapes of the requests that were planned onto each running node."""
    found: dict[str, list[Resources]] = {}
    items: Iterable[tuple[Demand | Gang, ItemOutcome]] = (
        *zip(request.demands, packing.demands, strict=True),
        *zip(request.gangs, packing.gangs, strict=True),
    )
    for item, outcome in items:
        for key, count in outcome.placed.items():
            found.setdefault(key, []).append(_largest(item).times(count))
    return found


def _largest(item: Demand | Gang) -> Resources:
    """Returns the shape of a request; of a gang, at least what each of its bundles takes."""
    if isinstance(item, Demand):
        return item.shape
    units: dict[str, int] = {}
    for bundle in item.options[0]:
        for name, amount in bundle.shape.items():
            units[name] = max(units.get(name, 0), amount)
    return Resources(units)


def _end_s(trials: Sequence[RunningTrial], total: Resources, available: Resources) -> float:
    """Returns when the last trial of a node ends; inf when not only trials are on it, or it is not known."""
    if not trials or _other_use(trials, total, available):
        return math.inf
    return max(math.inf if trial.rest_s is None else trial.rest_s for trial in trials)


def _other_use(trials: Sequence[RunningTrial], total: Resources, available: Resources) -> str:
    """Returns a resource of which more is in use than these trials have; "" when there is none."""
    used = EMPTY
    for trial in trials:
        used = used.plus(trial.shape)
    for name, have in total.items():
        if have - available.units(name) > used.units(name) and name in ("CPU", "GPU", "memory"):
            return name
    return ""


def _candidates(
    draft: Draft, packing: Packing, by_node: Mapping[str, Sequence[RunningTrial]]
) -> list[BusyNode]:
    found = []
    for instance in draft.in_state(_S.RAY_RUNNING):
        report = draft.nodes.get(instance.node_id or "")
        on_it = tuple(by_node.get(instance.node_id or "", ()))
        is_ours = on_it and report is not None and report.status is NodeStatus.RUNNING
        if not is_ours or is_head(instance) or instance.provisional or instance.cancelled:
            continue
        assert report is not None
        why_not = _why_not(draft, report, on_it)
        if not why_not and instance.instance_id in packing.needed:
            why_not = "work that waits was planned onto it"
        if why_not:
            _explain(draft, instance, why_not)
        elif instance.price_per_hour:
            known = draft.types.get(instance.node_type)
            found.append(
                BusyNode(
                    instance=instance,
                    report=report,
                    trials=on_it,
                    price=instance.price_per_hour,
                    speed=known.speed if known else 1.0,
                )
            )
    return found


def _why_not(draft: Draft, report: NodeReport, trials: tuple[RunningTrial, ...]) -> str:
    """Returns why the node may not be emptied whatever it saves; "" when it may."""
    for trial in trials:
        if not trial.is_movable:
            return f"trial {trial.trial_id} cannot be moved: it has no checkpoint to go on from"
        if trial.rest_s is None:
            return f"it is not known how long trial {trial.trial_id} will run"
        if trial.moved_at is not None and draft.now - trial.moved_at < BETWEEN_MOVES_S:
            return f"trial {trial.trial_id} was moved {draft.now - trial.moved_at:.0f} s ago"
    name = _other_use(trials, report.total, report.available)
    return f"something else than trials uses {name} on it" if name else ""


# -- what it would cost ---------------------------------------------------------------------------


def _emptied(candidate: BusyNode, rooms: Mapping[str, FreeRoom], market: _Market) -> Emptied | None:
    """Returns what emptying a node comes to; None when its trials fit nowhere.

    A trial goes where there is room for it, if there is any, and nobody can say where: so the dearest of
    these nodes is counted on. That one may be needed longer than without the trial.
    """
    left = {key: room for key, room in rooms.items() if key != candidate.instance.instance_id}
    homeless, targets, longer = list[RunningTrial](), set[str](), 0.0
    for trial in sorted(candidate.trials, key=lambda one: (-sum(one.shape.values()), one.trial_id)):
        fitting = [key for key, room in left.items() if room.free.holds(trial.shape)]
        if not fitting:
            homeless.append(trial)
            continue
        extra = {key: _added(candidate, trial, left[key], market.own_price(trial.shape, left[key].speed)) for key in fitting}
        if _HOW == "max":
            key = max(extra, key=lambda one: extra[one])
            longer += extra[key]
        elif _HOW == "mean":
            key = min(extra, key=lambda one: extra[one])
            longer += sum(extra.values()) / len(extra)
        else:
            key = min(extra, key=lambda one: extra[one])
            longer += extra[key]
        left[key] = left[key].taken(trial.shape, candidate.rest_on(trial, left[key].speed), market.own_price(trial.shape, left[key].speed))
        targets.add(key)
    bought = market.cheapest(candidate, homeless)
    if bought is None:
        return None
    price, boots, machines = bought
    places = ["the free room of other nodes"] if targets else []
    places += [f"{count} new {name}" for name, count in machines.items()]
    return Emptied(
        saved=candidate.price * candidate.rest_s / 3600.0 - longer - price,
        cost=candidate.move_cost() + boots,
        where=" and ".join(places),
        rooms=left,
        targets=frozenset(targets),
        machines=machines,
    )


def _added(candidate: BusyNode, trial: RunningTrial, room: FreeRoom, own: float) -> float:
    """Returns the $ that one more trial is expected to cost on a node.

    `own` is $ per hour of a machine of its own. A node that is worth less to its trials than it costs will be
    emptied itself: there a trial is not free. Rests are means of times that vary a lot, because schedulers
    stop most trials early: both are taken for exponential, so that a trial may outlive a node that is
    expected to be needed longer. It then holds the node until it may be moved again.
    """
    rest_s = candidate.rest_on(trial, room.speed)
    if math.isinf(room.end_s) or rest_s <= 0:
        return 0.0
    alone_s = rest_s * rest_s / (rest_s + room.end_s)
    held_s = alone_s
    if trial.moved_at is None:
        held_s = min(alone_s, _until_next_move_s(room.end_s))
    beside = min(room.price, room.worth + own) - min(room.price, room.worth)
    alone = min(own, room.price)
    return (beside * (rest_s - alone_s) + alone * (alone_s - held_s) + room.price * held_s) / 3600.0


def _until_next_move_s(end_s: float) -> float:
    """Returns the expected part of the time between two moves that is left when a node's trials have ended."""
    if end_s <= 0:
        return BETWEEN_MOVES_S
    return BETWEEN_MOVES_S + end_s * math.expm1(-BETWEEN_MOVES_S / end_s)


class _Market:
    """The machines that can be bought, after what the planner and the moves before have taken."""

    def __init__(self, draft: Draft, packing: Packing) -> None:
        self._boot_s = draft.boot_s
        self._of_work: dict[Resources, float] = {}  # shape -> $ for an hour of work at speed 1
        self._room = math.inf if packing.room is None else packing.room - sum(packing.launch.values())
        self._offers = {
            offer.node_type.name: without(offer, packing.launch.get(offer.node_type.name, 0))
            for offer in packing.offers
            if offer.node_type.name != draft.spec.head_node_type
        }

    def own_price(self, shape: Resources, speed: float) -> float:
        """Returns $ for what a machine of this speed does in an hour, on the cheapest machine for a shape."""
        if shape not in self._of_work:
            prices = [
                price / offer.node_type.speed
                for offer in self._offers.values()
                if offer.room > 0 and offer.node_type.resources.holds(shape)
                for price in (_price(offer),)
                if price is not None
            ]
            self._of_work[shape] = min(prices, default=math.inf)
        return self._of_work[shape] * speed

    def buy(self, machines: Mapping[str, int]) -> None:
        for name, count in machines.items():
            self._offers[name] = without(self._offers[name], count)
            self._room -= count

    def cheapest(
        self, candidate: BusyNode, trials: Sequence[RunningTrial]
    ) -> tuple[float, float, Mapping[str, int]] | None:
        """Returns $ of the rest and of the boots of the machines that hold the trials: one, or one for each."""
        if not trials:
            return 0.0, 0.0, {}
        together = self._one(candidate, trials)
        each = [self._one(candidate, [trial]) for trial in trials]
        options = [] if together is None else [(together[0], together[1], Counter([together[2]]))]
        apart = [one for one in each if one is not None]
        if len(apart) == len(trials) > 1:
            total = Counter(one[2] for one in apart)
            if all(self._offers[name].room >= count for name, count in total.items()):
                options.append((sum(one[0] for one in apart), sum(one[1] for one in apart), total))
        # The node that is emptied leaves room for one.
        options = [one for one in options if one[2].total() <= self._room + 1 and self._sum(one[2]) < candidate.price]
        return min(options, key=lambda one: one[0] + one[1], default=None)

    def _sum(self, machines: Mapping[str, int]) -> float:
        return sum((_price(self._offers[name]) or 0.0) * count for name, count in machines.items())

    def _one(
        self, candidate: BusyNode, trials: Sequence[RunningTrial]
    ) -> tuple[float, float, str] | None:
        needed = EMPTY
        for trial in trials:
            needed = needed.plus(trial.shape)
        best: tuple[float, float, str] | None = None
        for name, offer in self._offers.items():
            price = _price(offer)
            if price is None or offer.room <= 0 or not offer.node_type.resources.holds(needed):
                continue
            rest_s = max(candidate.rest_on(trial, offer.node_type.speed) for trial in trials)
            found = (price * rest_s / 3600.0, price * self._boot_s / 3600.0, name)
            best = found if best is None or sum(found[:2]) < sum(best[:2]) else best
        return best


def _price(offer: TypeOffer) -> float | None:
    if not offer.choices:
        return offer.node_type.price_per_hour
    return next((each.expected_price for each in by_price(offer.choices)), None)


def _reason(draft: Draft, candidate: BusyNode, emptied: Emptied | None, factor: float) -> str:
    """Returns why emptying pays, with the figures; "" when it does not, which is explained."""
    if emptied is None or emptied.saved <= 0:
        _explain(draft, candidate.instance, "its trials fit nowhere else for less")
        return ""
    # Coarse, so that the text changes with the decision and not with every tick.
    minutes = f"{candidate.rest_s / 60:.1g} min"
    figures = f"saves ${emptied.saved:.1g} in {minutes}, moving costs ${emptied.cost:.1g}"
    if emptied.saved <= factor * emptied.cost:
        _explain(
            draft, candidate.instance, f"emptying it into {emptied.where} {figures}: not worth it"
        )
        return ""
    return f"its {len(candidate.trials)} trials go into {emptied.where}: {figures}"


def _share(shape: Resources, total: Resources) -> float:
    """Returns the largest share of one resource of the node."""
    shares = [units / total.units(name) for name, units in shape.items() if total.units(name) > 0]
    return min(1.0, max(shares, default=1.0))


def _removal(candidate: BusyNode, text: str) -> Removal:
    return Removal(
        instance_id=candidate.instance.instance_id,
        node_type=candidate.instance.node_type,
        cause=StopCause.CONSOLIDATION,
        details=text,
    )


def _explain(draft: Draft, instance: Instance, why_not: str) -> None:
    draft.announced.append(
        Verdict(
            subject=Subject.NODE,
            subject_id=instance.instance_id,
            reason=Reason.KEPT_BUSY,
            target=instance.node_type,
            detail=f"not emptied: {why_not}",
        )
    )

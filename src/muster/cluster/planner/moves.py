"""Compute the cost of moving the trials of a node: to other nodes, or to new machines.

Pure. Called by the rule that empties nodes. Nobody can say where the runtime will put a trial that has left
its node, so the dearest of the nodes with room for it is counted on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from muster.base.forecast import RunningTrial
from muster.base.resources import EMPTY, Resources
from muster.cluster.planner.limits import COMING
from muster.cluster.planner.offers import by_price, launched_offers, price_of, without
from muster.cluster.planner.request import Packing, PackNode, Removal, TypeOffer

BETWEEN_MOVES_S = 600.0  # a trial is moved at most once within this


class BusyNode(Struct, frozen=True, kw_only=True):
    """A node that may be emptied, with the trials on it."""

    key: str  # instance id
    node_type: str
    total: Resources
    trials: tuple[RunningTrial, ...]
    price: float  # $ per hour
    speed: float

    @property
    def rest_s(self) -> float:
        """Return how long the node would be needed if it is not emptied."""
        return max(trial.rest_s or 0.0 for trial in self.trials)

    def rest_on(self, trial: RunningTrial, speed: float) -> float:
        """Return how long a trial of this node would run on a machine of another speed."""
        return (trial.rest_s or 0.0) * self.speed / speed

    def move_cost(self) -> float:
        """Return the $ of the work that is repeated and of the time that trials need to start again."""
        lost_s = sum(
            (trial.unsaved_s + trial.restart_s) * _share(trial.shape, self.total) for trial in self.trials
        )
        return self.price * lost_s / 3600.0


class FreeRoom(Struct, frozen=True, kw_only=True):
    """What is free on a node, and how long the node is needed anyway."""

    free: Resources
    price: float
    speed: float
    end_s: float  # 0: nothing is on it; inf: not known
    worth: float  # $ per hour of the machines that its trials would need instead
    is_up: bool = True

    def taken(self, shape: Resources, until_s: float, own: float) -> FreeRoom:
        end_s, worth = max(self.end_s, until_s), self.worth + own
        return replace(self, free=self.free.minus(shape), end_s=end_s, worth=worth)

    def added(self, trial: RunningTrial, rest_s: float, own: float) -> float:
        """Return the $ that one more trial is expected to cost here; `own`: $ per hour of the node's machine.

        Where the trials are worth less than the node costs, the node will be emptied itself, and one more
        trial is not free. Rests are means of times that vary a lot, because schedulers stop most trials
        early: both are taken for exponential, so a trial may outlive a node that is expected to be needed
        longer. It then holds the node alone until it may be moved again.
        """
        if math.isinf(self.end_s) or rest_s <= 0:
            return 0.0
        alone_s = rest_s * rest_s / (rest_s + self.end_s)
        held_s = alone_s if trial.moved_at is not None else min(alone_s, _until_next_move_s(self.end_s))
        beside = min(self.price, self.worth + own) - min(self.price, self.worth)
        later = min(own, self.price) * (alone_s - held_s)
        return (beside * (rest_s - alone_s) + later + self.price * held_s) / 3600.0


def _until_next_move_s(end_s: float) -> float:
    """Return the expected part of the time between two moves that is left when the node's trials end."""
    if end_s <= 0:
        return BETWEEN_MOVES_S
    return BETWEEN_MOVES_S + end_s * math.expm1(-BETWEEN_MOVES_S / end_s)


class EmptyingPlan(Struct, frozen=True, kw_only=True):
    """What would become of the trials of a node, in $ over their rest."""

    saved: float
    cost: float  # of the moves, and of the boots of new machines
    rooms: Mapping[str, FreeRoom]  # of the other nodes, afterwards
    targets: frozenset[str]
    machines: Mapping[str, int]  # to buy, by type
    must_wait: bool  # for machines that are not up, or not launched yet
    keeps_dear: bool  # an empty node would be kept that costs more than machines for these trials


class ConsolidationPlan(Struct, frozen=True, kw_only=True):
    """What consolidation adds to a plan."""

    removals: tuple[Removal, ...] = ()  # nodes to empty now
    launch: Mapping[str, int] = field(default_factory=dict)  # for nodes to empty when these machines are up
    kept: frozenset[str] = frozenset()  # instance ids of nodes and machines that wait for those trials


def with_consolidation(packing: Packing, plan: ConsolidationPlan, nodes: Iterable[PackNode]) -> Packing:
    """Return the packing with what a consolidation adds; a kept machine on its way is not unneeded."""
    launch = dict(Counter(packing.launch) + Counter(plan.launch))
    on_their_way = (n for n in nodes if n.key in plan.kept - packing.needed and n.state in COMING)
    kept = Counter(node.node_type for node in on_their_way)
    left = {name: since[: len(since) - kept[name]] for name, since in packing.pending_idle.items()}
    return replace(
        packing,
        launch=launch,
        launched_offers=launched_offers(launch, packing.offers, packing.pinned),
        price_per_hour=price_of(launch, packing.offers, packing.pinned),
        removals=(*packing.removals, *plan.removals),
        needed=packing.needed | plan.kept,
        pending_idle={name: since for name, since in left.items() if since},
    )


class MachineMarket:
    """The machines that can be launched, after what was planned and ordered before."""

    def __init__(self, packing: Packing, boot_s: float, head_node_type: str = "") -> None:
        self._boot_s = boot_s
        self._room = math.inf if packing.room is None else packing.room - sum(packing.launch.values())
        self._of_work: dict[Resources, float] = {}  # shape -> $ for an hour of work at speed 1
        self._offers: dict[str, TypeOffer] = {}
        for offer in packing.offers:
            name = offer.node_type.name
            if name != head_node_type:
                self._offers[name] = without(offer, packing.launch.get(name, 0))

    def own_price(self, shape: Resources, speed: float) -> float:
        """Return $ for what a machine of this speed does in an hour, on the cheapest machine for a shape."""
        known = self._of_work.get(shape)
        if known is None:
            sold = [(_price(o), o.node_type) for o in self._offers.values() if o.room > 0]
            fitting = [p / t.speed for p, t in sold if p is not None and t.resources.holds(shape)]
            known = self._of_work[shape] = min(fitting, default=math.inf)
        return known * speed

    def buy(self, machines: Mapping[str, int]) -> None:
        """Take machines off the market."""
        for name, count in machines.items():
            self._offers[name] = without(self._offers[name], count)
            self._room -= count

    def could_hold(self, machines: Mapping[str, int], shape: Resources) -> bool:
        """Return whether one of these machines would have room for a shape."""
        return any(self._offers[name].node_type.resources.holds(shape) for name in machines)

    def cheapest(
        self, node: BusyNode, trials: Sequence[RunningTrial]
    ) -> tuple[float, float, Mapping[str, int]] | None:
        """Return $ of the rest and of the boots of new machines for these trials: one, or one for each.

        None when there are none that cost less than the node.
        """
        together = self._one(node, trials)
        apart = [self._one(node, [trial]) for trial in trials] if len(trials) > 1 else []
        options = [each for each in (together, _sum(apart)) if each is not None and self._is_less(each, node)]
        return min(options, key=lambda each: each[0] + each[1], default=None)

    def _is_less(self, found: tuple[float, float, Mapping[str, int]], node: BusyNode) -> bool:
        machines = found[2]
        price = sum((_price(self._offers[name]) or 0.0) * count for name, count in machines.items())
        has_room = all(self._offers[name].room >= count for name, count in machines.items())
        return has_room and sum(machines.values()) <= self._room and price < node.price

    def _one(
        self, node: BusyNode, trials: Sequence[RunningTrial]
    ) -> tuple[float, float, Mapping[str, int]] | None:
        """Return the machine on which these trials cost least."""
        needed = EMPTY
        for trial in trials:
            needed = needed.plus(trial.shape)
        best = None
        for name, offer in self._offers.items():
            price = _price(offer)
            if price is None or offer.room <= 0 or not offer.node_type.resources.holds(needed):
                continue
            rest_s = max(node.rest_on(trial, offer.node_type.speed) for trial in trials)
            found = (price * rest_s / 3600.0, price * self._boot_s / 3600.0, {name: 1})
            if best is None or found[0] + found[1] < best[0] + best[1]:
                best = found
        return best


def _sum(
    found: Sequence[tuple[float, float, Mapping[str, int]] | None],
) -> tuple[float, float, Mapping[str, int]] | None:
    machines = Counter[str]()
    rest = boots = 0.0
    for each in found:
        if each is None:
            return None
        rest, boots = rest + each[0], boots + each[1]
        machines.update(each[2])
    return (rest, boots, machines) if found else None


Fitting = Mapping[Resources, Sequence[str]]  # shape -> nodes with room for it
_MOST_COMPARED = 64  # nodes per shape, so that a tick of a large cluster stays short


def fitting_rooms(rooms: Mapping[str, FreeRoom], shapes: Iterable[Resources]) -> Fitting:
    """Return the nodes with room for each shape, first those that are up and needed for the least time."""
    found = {}
    for shape in dict.fromkeys(shapes):
        keys = [key for key, room in rooms.items() if room.free.holds(shape)]
        keys.sort(key=lambda key: (not rooms[key].is_up, rooms[key].end_s))
        found[shape] = keys[:_MOST_COMPARED]
    return found


def emptied(
    node: BusyNode, rooms: Mapping[str, FreeRoom], fitting: Fitting, market: MachineMarket
) -> EmptyingPlan | None:
    """Return what emptying a node comes to; None when its trials fit nowhere for less."""
    left = dict(rooms)
    left.pop(node.key, None)
    homeless, targets, added = list[RunningTrial](), set[str](), 0.0
    for trial in sorted(node.trials, key=lambda one: (-sum(one.shape.values()), one.trial_id)):
        usable = [key for key in fitting[trial.shape] if key in left and left[key].free.holds(trial.shape)]
        found = _dearest(node, trial, {key: left[key] for key in usable}, market)
        if found is None:
            homeless.append(trial)
            continue
        dollars, key = found
        room = left[key]
        own = market.own_price(trial.shape, room.speed)
        left[key] = room.taken(trial.shape, node.rest_on(trial, room.speed), own)
        targets.add(key)
        added += dollars
    launched = market.cheapest(node, homeless) if homeless else (0.0, 0.0, {})
    if launched is None:
        return None
    return EmptyingPlan(
        saved=node.price * node.rest_s / 3600.0 - added - launched[0],
        cost=node.move_cost() + launched[1],
        rooms=left,
        targets=frozenset(targets),
        machines=launched[2],
        must_wait=bool(homeless) or not all(rooms[key].is_up for key in targets),
        keeps_dear=any(rooms[key].end_s <= 0 and left[key].worth < left[key].price - 1e-9 for key in targets),
    )


def _dearest(
    node: BusyNode, trial: RunningTrial, rooms: Mapping[str, FreeRoom], market: MachineMarket
) -> tuple[float, str] | None:
    """Return $ and key of the node with room for a trial on which it costs most; those that are up first."""
    worst: tuple[bool, float, str] | None = None
    for key, room in rooms.items():
        own = market.own_price(trial.shape, room.speed)
        found = (room.is_up, room.added(trial, node.rest_on(trial, room.speed), own), key)
        worst = found if worst is None else max(worst, found)
    return None if worst is None else worst[1:]


def _price(offer: TypeOffer) -> float | None:
    if not offer.choices:
        return offer.node_type.price_per_hour
    return next((each.expected_price for each in by_price(offer.choices)), None)


def _share(shape: Resources, total: Resources) -> float:
    """Return the largest share of one resource of the node."""
    shares = [units / total.units(name) for name, units in shape.items() if total.units(name) > 0]
    return min(1.0, max(shares, default=1.0))

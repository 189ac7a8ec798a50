"""Empty a node whose trials can continue elsewhere for less, by their checkpoints.

A node is emptied into the free room of others, or into cheaper machines that are launched and up before, when
what is saved over the expected rest of its trials is more than twice what their moves cost. Only nodes are
touched on which nothing runs but trials that said they can be moved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from muster.base.forecast import RunningTrial, trials_by_node
from muster.base.ids import InstanceId
from muster.base.resources import EMPTY, Resources
from muster.cluster.budget_policy import Consolidation
from muster.cluster.model import Demand, Gang, Instance, NodeReport, NodeStatus, RuntimeReport, StopCause
from muster.cluster.plan import Reason
from muster.cluster.planner.moves import (
    BETWEEN_MOVES_S,
    BusyNode,
    ConsolidationPlan,
    EmptyingPlan,
    FreeRoom,
    MachineMarket,
    emptied,
    fitting_rooms,
)
from muster.cluster.planner.request import ItemOutcome, Packing, PackNode, PackRequest, Removal
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import InstanceState

_S = InstanceState
_FACTOR = {Consolidation.CONSERVATIVE: 2.0, Consolidation.EAGER: 1.0}
_TIMES_TO_SPARE = 2.0  # a trial is moved when its deadline leaves so many times what it needs then
_MOST_AT_ONCE = 10  # one of so many nodes is emptied at a time
_USED_BY_WORK = ("CPU", "GPU", "memory")
TrialsByNode = Mapping[str, Sequence[RunningTrial]]


def consolidate(draft: Draft) -> None:
    """Add the nodes to empty to what the planner removes; the drain asks their trials for checkpoints.

    Where they need other machines, these are launched first: a trial that waits for a boot would be put on
    whatever becomes free meanwhile, dear as it may be.
    """
    policy, planned, runtime = draft.spec.consolidation, draft.planned, draft.snapshot.runtime
    if (
        policy is Consolidation.OFF
        or runtime is None
        or not planned.may_scale
        or not draft.snapshot.forecasts
    ):
        return
    if planned.packing is not None and planned.request is not None:
        planned.consolidation = _choose(draft, planned.request, planned.packing, runtime)


def _choose(
    draft: Draft, request: PackRequest, packing: Packing, runtime: RuntimeReport
) -> ConsolidationPlan | None:
    """Return the nodes to empty now, and what is launched and kept for those that are emptied later."""
    stopping = draft.in_state(_S.RAY_STOP_REQUESTED, _S.RAY_STOPPING)
    under_way = sum(one.stop_cause is StopCause.CONSOLIDATION for one in stopping)
    most = max(1, len(draft.in_state(_S.RAY_RUNNING)) // _MOST_AT_ONCE) - under_way
    by_node = trials_by_node(draft.snapshot.forecasts)
    market = MachineMarket(packing, draft.boot_s, draft.spec.head_node_type)
    rooms = _free_rooms(draft, request, packing, by_node, market)
    removals, launch, targets, kept = list[Removal](), Counter[str](), set[str](), set[str]()
    candidates = _candidates(draft, packing, by_node)
    fitting = fitting_rooms(rooms, (trial.shape for node in candidates for trial in node.trials))
    for node in sorted(candidates, key=lambda one: (-one.price * one.rest_s, one.key)):
        found = emptied(node, rooms, fitting, market)
        text = _reason(draft, node, found)
        if found is None or not text or most <= 0 or node.key in targets:
            continue
        why_not_yet = _why_not_yet(runtime, market, found)
        if why_not_yet:
            _explain(draft, node.key, why_not_yet)
            continue
        most -= 1
        rooms, targets = found.rooms, targets | found.targets
        market.buy(found.machines)
        if found.must_wait:
            launch.update(found.machines)
            kept |= found.targets
            _explain(draft, node.key, f"yet, a machine is awaited: {text}")
        else:
            removals.append(Removal(InstanceId(node.key), node.node_type, StopCause.CONSOLIDATION, text))
    if not removals and not kept and not launch:
        return None
    return ConsolidationPlan(removals=tuple(removals), launch=launch, kept=frozenset(kept))


def _why_not_yet(runtime: RuntimeReport, market: MachineMarket, found: EmptyingPlan) -> str:
    """Return why no machines are launched for the trials of a node; "" when they are, or need not be."""
    if found.must_wait and found.keeps_dear:
        return "an idle node that is too dear for its trials must go first"
    shapes = [demand.shape for demand in runtime.demands]
    shapes += [bundle.shape for gang in runtime.gangs for option in gang.options for bundle in option]
    is_taken = any(market.could_hold(found.machines, shape) for shape in dict.fromkeys(shapes))
    return "work that waits would take the machines for its trials" if is_taken else ""


# -- what there is --------------------------------------------------------------------------------


def _free_rooms(
    draft: Draft, request: PackRequest, packing: Packing, by_node: TrialsByNode, market: MachineMarket
) -> Mapping[str, FreeRoom]:
    """Return what is free on the nodes that stay and on those that come, without what was planned there."""
    planned = _planned(request, packing)
    going = {removal.instance_id for removal in packing.removals}
    found = {}
    for node in request.nodes:
        # A runtime that calls a node busy and all of it free has just given its room away: wait for the rest.
        is_settling = node.runs and node.idle_s <= 0 and node.available == node.total
        if not node.available or is_settling or node.key in going or node.key not in draft.instances:
            continue
        free = node.available
        for shape in planned.get(node.key, ()):
            free = free.minus(shape).positive()
        found[node.key] = _room(draft, node, free, by_node, market)
    return found


def _room(
    draft: Draft, node: PackNode, free: Resources, by_node: TrialsByNode, market: MachineMarket
) -> FreeRoom:
    instance, known = draft.instances[InstanceId(node.key)], draft.types.get(node.node_type)
    speed = known.speed if known else 1.0
    on_it = by_node.get(instance.node_id or "", ()) if node.runs else ()
    is_empty = not node.runs or node.idle_s > 0
    return FreeRoom(
        free=free,
        price=instance.price_per_hour or 0.0,
        speed=speed,
        end_s=0.0 if is_empty else _end_s(on_it, node),
        worth=sum(market.own_price(trial.shape, speed) for trial in on_it),
        is_up=node.runs,
    )


def _planned(request: PackRequest, packing: Packing) -> dict[str, list[Resources]]:
    """Return the shapes of the requests that were planned onto each node."""
    found: dict[str, list[Resources]] = {}
    items: Iterable[tuple[Demand | Gang, ItemOutcome]] = (
        *zip(request.demands, packing.demands, strict=True),
        *zip(request.gangs, packing.gangs, strict=True),
    )
    for item, outcome in items:
        for key, count in (*outcome.placed.items(), *outcome.coming.items()):
            found.setdefault(key, []).append(_largest(item).times(count))
    return found


def _largest(item: Demand | Gang) -> Resources:
    """Return the shape of a request; of a gang, at least what each of its bundles takes."""
    if isinstance(item, Demand):
        return item.shape
    units: dict[str, int] = {}
    for bundle in item.options[0]:
        for name, amount in bundle.shape.items():
            units[name] = max(units.get(name, 0), amount)
    return Resources(units)


def _end_s(trials: Sequence[RunningTrial], node: PackNode) -> float:
    """Return when the last trial of a node ends; inf when not only trials are on it, or it is not known."""
    if not trials or _other_use(trials, node.total, node.available):
        return math.inf
    return max(math.inf if trial.rest_s is None else trial.rest_s for trial in trials)


def _other_use(trials: Sequence[RunningTrial], total: Resources, available: Resources) -> str:
    """Return a resource of which more is in use than these trials have; "" when there is none."""
    used = EMPTY
    for trial in trials:
        used = used.plus(trial.shape)
    for name, have in total.items():
        if have - available.units(name) > used.units(name) and name in _USED_BY_WORK:
            return name
    return ""


def _candidates(draft: Draft, packing: Packing, by_node: TrialsByNode) -> list[BusyNode]:
    found = []
    for instance in draft.in_state(_S.RAY_RUNNING):
        report = draft.nodes.get(instance.node_id or "")
        on_it = tuple(by_node.get(instance.node_id or "", ()))
        is_ours = on_it and report is not None and report.status is NodeStatus.RUNNING
        if not is_ours or is_head(instance) or instance.provisional or instance.cancelled:
            continue
        assert report is not None
        why_not = _why_not(draft, instance, report, on_it, packing) or _late_if_moved(draft, instance, on_it)
        if why_not:
            _explain(draft, instance.instance_id, why_not)
        elif instance.price_per_hour:
            found.append(_busy(draft, instance, report, on_it))
    return found


def _busy(draft: Draft, instance: Instance, report: NodeReport, trials: tuple[RunningTrial, ...]) -> BusyNode:
    known = draft.types.get(instance.node_type)
    return BusyNode(
        key=instance.instance_id,
        node_type=instance.node_type,
        total=report.total,
        trials=trials,
        price=instance.price_per_hour or 0.0,
        speed=known.speed if known else 1.0,
    )


def _why_not(
    draft: Draft, instance: Instance, report: NodeReport, trials: Sequence[RunningTrial], packing: Packing
) -> str:
    """Return why the node may not be emptied whatever it saves; "" when it may."""
    for trial in trials:
        if not trial.is_movable:
            return f"trial {trial.trial_id} may not be moved: it has no checkpoint, or was moved twice"
        if trial.rest_s is None:
            return f"it is not known how long trial {trial.trial_id} will run"
        if trial.moved_at is not None and draft.now - trial.moved_at < BETWEEN_MOVES_S:
            return f"trial {trial.trial_id} was moved {draft.now - trial.moved_at:.0f} s ago"
    name = _other_use(trials, report.total, report.available)
    if name:
        return f"something else than trials uses {name} on it"
    return "work that waits was planned onto it" if instance.instance_id in packing.needed else ""


def _late_if_moved(draft: Draft, instance: Instance, trials: tuple[RunningTrial, ...]) -> str:
    """Return which trial might miss the deadline of its experiment on the slowest type; "" when none."""
    speeds = [known.speed for known in draft.spec.node_types if known.name != draft.spec.head_node_type]
    known = draft.types.get(instance.node_type)
    slower = known.speed / min(speeds) if known is not None and speeds else 1.0
    deadlines = {
        trial.trial_id: forecast.deadline
        for forecast in draft.snapshot.forecasts
        for trial in forecast.trials
    }
    for trial in trials:
        deadline = deadlines.get(trial.trial_id)
        needed_s = (trial.rest_s or 0.0) * slower + trial.restart_s + draft.boot_s
        if deadline is not None and draft.now + _TIMES_TO_SPARE * needed_s > deadline:
            return f"trial {trial.trial_id} might miss its deadline if it were moved"
    return ""


# -- why ------------------------------------------------------------------------------------------


def _reason(draft: Draft, node: BusyNode, found: EmptyingPlan | None) -> str:
    """Return why emptying pays, with the figures; "" when it does not, which is explained."""
    if found is None or found.saved <= 0:
        _explain(draft, node.key, "its trials fit nowhere else for less")
        return ""
    # Coarse, so that the text changes with the decision and not with every tick.
    figures = f"saves ${found.saved:.1g} in {node.rest_s / 60:.1g} min, moving costs ${found.cost:.1g}"
    if found.saved <= _FACTOR[draft.spec.consolidation] * found.cost:
        text = f"emptying it into {_where(found)} {figures}: not worth it"
        _explain(draft, node.key, text)
        return ""
    return f"its {len(node.trials)} trials go into {_where(found)}: {figures}"


def _where(found: EmptyingPlan) -> str:
    places = ["the free room of other nodes"] if found.targets else []
    places += [f"{count} new {name}" for name, count in found.machines.items()]
    return " and ".join(places)


def _explain(draft: Draft, instance_id: str, why_not: str) -> None:
    instance = draft.instances[InstanceId(instance_id)]
    draft.add_node_verdict(instance, Reason.KEPT_BUSY, f"not emptied: {why_not}", last=True)

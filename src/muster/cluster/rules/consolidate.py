"""Empties a node whose trials can go on elsewhere for less, by their checkpoints.

A node is emptied into the free room of others, or into one cheaper machine, when what is saved over the
expected rest of its trials is more than twice what their moves cost. Only nodes are touched on which nothing
runs but trials that said they can be moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from muster.base.forecast import RunningTrial
from muster.base.resources import EMPTY, Resources
from muster.cluster.binpack.offers import by_price
from muster.cluster.binpack.request import PackNode, Removal
from muster.cluster.model import Instance, NodeReport, NodeStatus, StopCause
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.spending import Consolidation
from muster.cluster.states import InstanceState

_S = InstanceState
BETWEEN_MOVES_S = 600.0  # a trial is moved at most once within this
_FACTOR = {Consolidation.CONSERVATIVE: 2.0, Consolidation.EAGER: 1.0}
_TIMES_TO_SPARE = 2.0  # a trial is moved when its deadline leaves so many times what it needs then
_MOST_AT_ONCE = 10  # one of so many nodes is emptied at a time


class BusyNode(Struct, frozen=True, kw_only=True):
    """A BusyNode is a node that may be emptied, with the trials on it."""

    instance: Instance
    report: NodeReport
    trials: tuple[RunningTrial, ...]
    price: float  # $ per hour

    @property
    def rest_s(self) -> float:
        """Returns how long the node would be needed if it is not emptied."""
        return max(trial.rest_s or 0.0 for trial in self.trials)

    def move_cost(self) -> float:
        """Returns the $ of the work that is repeated and of the time that trials need to start again."""
        lost = sum(
            (trial.unsaved_s + trial.restart_s) * _share(trial.shape, self.report.total)
            for trial in self.trials
        )
        return self.price * lost / 3600.0


def consolidate(draft: Draft) -> None:
    """Adds the nodes to empty to what the planner removes; the drain asks their trials for checkpoints."""
    policy = draft.spec.consolidation
    packing, request = draft.packing, draft.pack_request
    if policy is Consolidation.OFF or packing is None or request is None or not draft.seen.forecasts:
        return
    if packing.launch or packing.removals or not draft.may_scale:
        return  # the cluster is changing: what is free is about to be something else
    under_way = [
        one
        for one in draft.in_state(_S.RAY_STOP_REQUESTED, _S.RAY_STOPPING)
        if one.stop_cause is StopCause.CONSOLIDATION
    ]
    running = draft.count(_S.RAY_RUNNING)
    room = max(1, running // _MOST_AT_ONCE) - len(under_way)
    removals: list[Removal] = []
    free = _free_room(draft, request.nodes)
    for candidate in sorted(_candidates(draft), key=lambda one: (one.move_cost(), one.instance.instance_id)):
        text = _reason_to_empty(draft, candidate, free, _FACTOR[policy])
        if not text:
            continue
        if len(removals) < room and _place(candidate, free, take=True) is not None:
            removals.append(_removal(candidate, text))
            free.pop(candidate.instance.instance_id, None)
        elif len(removals) < room and not removals and not under_way:
            removals.append(
                _removal(candidate, text)
            )  # into one cheaper machine, which its work will ask for
            break
    if removals:
        draft.packing = replace(packing, removals=(*packing.removals, *removals))


Free = dict[str, Resources]  # instance id -> what is free on its node


def _free_room(draft: Draft, nodes: Sequence[PackNode]) -> Free:
    """Returns the free room of running nodes that are in use: an idle node goes by itself."""
    waiting = draft.packing.needed if draft.packing is not None else frozenset()
    return {
        node.key: node.available
        for node in nodes
        if node.runs and node.available and node.idle_s <= 0 and node.key not in waiting
    }


def _candidates(draft: Draft) -> list[BusyNode]:
    trials: dict[str, list[RunningTrial]] = {}
    for forecast in draft.seen.forecasts:
        for trial in forecast.trials:
            trials.setdefault(trial.node_id, []).append(trial)
    found = []
    for instance in draft.in_state(_S.RAY_RUNNING):
        report = draft.nodes.get(instance.node_id or "")
        on_it = tuple(trials.get(instance.node_id or "", ()))
        is_ours = on_it and report is not None and report.status is NodeStatus.RUNNING
        if not is_ours or is_head(instance) or instance.provisional or instance.cancelled:
            continue
        assert report is not None
        why_not = _why_not(draft, report, on_it) or _late_if_moved(draft, instance, on_it)
        if why_not:
            _explain(draft, instance, why_not)
        elif instance.price_per_hour:
            found.append(
                BusyNode(instance=instance, report=report, trials=on_it, price=instance.price_per_hour)
            )
    return found


def _why_not(draft: Draft, report: NodeReport, trials: tuple[RunningTrial, ...]) -> str:
    """Returns why the node may not be emptied whatever it saves; "" when it may."""
    used = EMPTY
    for trial in trials:
        used = used.plus(trial.shape)
        if not trial.is_movable:
            return f"trial {trial.trial_id} cannot be moved: it has no checkpoint to go on from"
        if trial.rest_s is None:
            return f"it is not known how long trial {trial.trial_id} will run"
        if trial.moved_at is not None and draft.now - trial.moved_at < BETWEEN_MOVES_S:
            return f"trial {trial.trial_id} was moved {draft.now - trial.moved_at:.0f} s ago"
    for name, have in report.total.items():
        if have - report.available.units(name) > used.units(name) and name in ("CPU", "GPU", "memory"):
            return f"something else than trials uses {name} on it"
    return ""


def _late_if_moved(draft: Draft, instance: Instance, trials: tuple[RunningTrial, ...]) -> str:
    """Returns which trial might miss the deadline of its experiment on the slowest type; "" when none."""
    speeds = [known.speed for known in draft.spec.node_types if known.name != draft.spec.head_node_type]
    known = draft.types.get(instance.node_type)
    slower = known.speed / min(speeds) if known is not None and speeds else 1.0
    deadlines = {
        trial.trial_id: forecast.deadline for forecast in draft.seen.forecasts for trial in forecast.trials
    }
    for trial in trials:
        deadline = deadlines.get(trial.trial_id)
        needed_s = (trial.rest_s or 0.0) * slower + trial.restart_s + draft.boot_s
        if deadline is not None and draft.now + _TIMES_TO_SPARE * needed_s > deadline:
            return f"trial {trial.trial_id} might miss its deadline if it were moved"
    return ""


def _reason_to_empty(draft: Draft, candidate: BusyNode, free: Free, factor: float) -> str:
    """Returns why emptying pays, with the figures; "" when it does not, which is explained."""
    cost = candidate.move_cost()
    goes_elsewhere = _place(candidate, free, take=False) is not None
    if goes_elsewhere:
        saved = candidate.price * candidate.rest_s / 3600.0
        where = "the free room of other nodes"
    else:
        cheaper = _cheaper_price(draft, candidate)
        if cheaper is None:
            _explain(draft, candidate.instance, "its trials fit nowhere else for less")
            return ""
        saved = (candidate.price - cheaper) * candidate.rest_s / 3600.0
        cost += cheaper * draft.boot_s / 3600.0
        where = f"a machine of ${cheaper:g} per hour"
    # Coarse, so that the text changes with the decision and not with every tick.
    figures = f"saves ${saved:.1g} in {candidate.rest_s / 60:.1g} min, moving costs ${cost:.1g}"
    if saved <= factor * cost:
        _explain(draft, candidate.instance, f"emptying it into {where} {figures}: not worth it")
        return ""
    return f"its {len(candidate.trials)} trials go into {where}: {figures}"


def _place(candidate: BusyNode, free: Free, *, take: bool) -> dict[str, Resources] | None:
    """Returns the room left when every trial fits on other nodes, largest first; None when not all do."""
    left = {key: room for key, room in free.items() if key != candidate.instance.instance_id}
    for trial in sorted(candidate.trials, key=lambda one: -sum(one.shape.values())):
        spot = next((key for key, room in left.items() if room.holds(trial.shape)), None)
        if spot is None:
            return None
        left[spot] = left[spot].minus(trial.shape)
    if take:
        free.update(left)
    return left


def _cheaper_price(draft: Draft, candidate: BusyNode) -> float | None:
    """Returns the least price of one machine that holds all trials of the node and costs less."""
    needed = EMPTY
    for trial in candidate.trials:
        needed = needed.plus(trial.shape)
    prices = []
    for known in draft.spec.node_types:
        if not known.resources.holds(needed) or known.name == draft.spec.head_node_type:
            continue
        taken = sum(one.node_type == known.name for one in draft.holding())
        if taken >= known.most_nodes:
            continue
        if known.offers:
            prices += [each.expected_price for each in by_price(draft.choices_of(known))[:1]]
        else:
            prices.append(known.price_per_hour)
    least = min((price for price in prices if price is not None), default=None)
    return least if least is not None and least < candidate.price else None


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

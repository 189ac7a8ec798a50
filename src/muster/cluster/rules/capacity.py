"""Ask the planner what the cluster needs, and keeps the answer in the draft for the rules that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from muster.base.forecast import RunningTrial, trials_by_node
from muster.base.resources import EMPTY, Resources
from muster.cluster.expected_work import ExpectedWork, everyone_forecasts, expected_work
from muster.cluster.model import (
    ClusterSpec,
    Constraint,
    Demand,
    Gang,
    Instance,
    NodeReport,
    NodeStatus,
    RuntimeReport,
    StopCause,
    health_key,
)
from muster.cluster.plan import Reason
from muster.cluster.planner.offers import TypeHold, effective_holds, held_types, hold_offers, problem_of
from muster.cluster.planner.pack import PlannedDemand, offers_of, request_of
from muster.cluster.planner.request import PackNode, PackRequest, labels_of
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import InstanceState, ResizeStatus

_S = InstanceState
_IDLE = NodeStatus.IDLE
_COMING = (_S.QUEUED, _S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING)
Holds = Mapping[str, TypeHold]  # types of which none is launched at present
_MAX_COUNT = 1_000_000_000  # more equal requests than this are a mistake


def capacity(draft: Draft) -> None:
    """Plan whenever the runtime could be read; `may_scale` decides whether the plan is acted on."""
    runtime = draft.snapshot.runtime
    if runtime is None:
        return
    draft.planned.expected = _expected(draft)
    draft.planned.solve(_request(draft, runtime))
    if not any(is_head(i) and i.state is _S.RAY_RUNNING for i in draft.instances.values()):
        draft.add_cluster_verdict(
            Reason.WAITING_FOR_HEAD, "nothing is launched or removed before the head node runs"
        )
        draft.planned.may_scale = False
    if draft.snapshot.traits.read_only:
        draft.add_cluster_verdict(
            Reason.READ_ONLY, "the provider is read-only: nothing is launched or removed"
        )
        draft.planned.may_scale = False


def _request(draft: Draft, runtime: RuntimeReport) -> PackRequest:
    spec = _planned_spec(draft)
    offers = offers_of(spec, draft.decided.health, draft.now, draft.risks)
    starting, cloud = draft.in_state(_S.ALLOCATED), draft.snapshot.cloud or {}
    wanted_now = (*runtime.demands, *(one for gang in runtime.gangs for way in gang.options for one in way))
    holds = effective_holds(held_types(spec, starting, cloud, draft.now), offers, wanted_now)
    nodes, surplus = _nodes(draft, holds)
    asked = _sane(draft, runtime.demands, "demand")
    wanted = PlannedDemand(
        demands=(*asked, *_work_that_moves(draft), *_work_to_come(draft, runtime)),
        gangs=_sane_gangs(draft, runtime.gangs),
        constraints=tuple(
            Constraint(demands=_sane(draft, c.demands, "constraint")) for c in runtime.constraints
        ),
        nodes=nodes,
    )
    leaving = _leaving(draft)
    request = request_of(
        spec,
        wanted,
        hold_offers(offers, holds),
        now=draft.now,
        leaving=(
            Counter(i.node_type for i in leaving)
            + draft.unclear_by_type()
            + surplus
            + Counter({"": draft.unusable})
        ),
        pending_idle=draft.snapshot.memory.pending_idle,
    )
    of_offers = Counter(health_key(i.node_type, i.offer.name) for i in leaving if i.offer is not None)
    if draft.spec.forecasts.is_used and everyone_forecasts(draft.snapshot.forecasts, runtime):
        request = replace(request, most_idle_s=draft.spec.forecasts.keep_s)
    return replace(request, leaving_offers=of_offers) if of_offers else request


def _expected(draft: Draft) -> list[ExpectedWork]:
    spec = draft.spec
    if not spec.forecasts.is_used or not draft.snapshot.forecasts:
        return []
    speeds: dict[str, float] = {}
    if any(known.speed != 1.0 for known in spec.node_types):
        for instance in draft.in_state(_S.RAY_RUNNING):
            known = draft.types.get(instance.node_type)
            if known is not None and instance.node_id:
                speeds[instance.node_id] = known.speed
    return expected_work(draft.snapshot.forecasts, spec, draft.boot_s, draft.now, speeds)


def _work_to_come(draft: Draft, runtime: RuntimeReport) -> list[Demand]:
    """Trials that will want room within a boot time are planned for now, as far as they are worth a boot."""
    policy, found = draft.spec.forecasts, []
    asked = Counter[Resources]()
    for demand in runtime.demands:
        asked[demand.shape] += demand.count
    for gang in runtime.gangs:
        for bundle in gang.options[0] if gang.options else ():
            asked[bundle.shape] += bundle.count
    for work in draft.planned.expected:
        # What waits already has asked, or is about to start: only what is still to come is not seen.
        wanted = work.new_places(policy.most_boot_share, policy.first_slots) - asked[work.shape]
        count = min(work.soon, wanted)
        if count > 0:
            name = f"forecast of {{{work.shape}}}"
            found.append(Demand(shape=work.shape, count=count, name=name, is_asked=False))
    return found


def _planned_spec(draft: Draft) -> ClusterSpec:
    """Return the spec to plan with, without growth where the provider cannot.

    New machines of a type that could not grow recently count as they are launched: otherwise one after
    the other would be launched for demand that none of them can take.
    """
    spec = _for_deadlines(draft.spec, draft.planned.expected)
    if not any(known.resize is not None for known in spec.node_types):
        return spec
    types = []
    for known in spec.node_types:
        limits = known.resize if draft.snapshot.traits.resizable else None
        if limits is not None and known.name in draft.decided.ungrowing:
            limits = replace(limits, of_new=known.resources)
        types.append(known if limits is known.resize else replace(known, resize=limits))
    return replace(spec, node_types=tuple(types))


_AT_ANY_PRICE = 10  # a power of speed: a machine that is a third faster may cost 17 times as much


def _for_deadlines(spec: ClusterSpec, expected: Iterable[ExpectedWork]) -> ClusterSpec:
    """Where the slowest type may be too slow for a deadline, the faster ones are worth any price."""
    speeds = {
        known.speed for known in spec.node_types if known.max_nodes and known.name != spec.head_node_type
    }
    if len(speeds) < 2 or not any(work.needs_faster_than(min(speeds)) for work in expected):
        return spec
    types = (replace(known, speed=known.speed**_AT_ANY_PRICE) for known in spec.node_types)
    return replace(spec, node_types=tuple(types))


def _nodes(draft: Draft, holds: Holds) -> tuple[tuple[PackNode, ...], Counter[str]]:
    """Return every record that may serve work, in the order of the ledger. Draining ones offer nothing.

    The second value counts machines by type that are left out and may not be ended yet.
    """
    result: list[PackNode] = []
    unlisted: list[tuple[Instance, NodeReport]] = []
    late = Counter[str]()
    reports, running, dead = draft.nodes, _S.RAY_RUNNING, NodeStatus.DEAD
    for instance in draft.instances.values():
        if instance.state is running:
            report = reports.get(instance.node_id or "")
            if report is not None and not instance.provisional:
                if report.status is not dead:
                    result.append(_running(draft, instance, report))
            elif report is not None:
                unlisted.append((instance, report))
            elif instance.provisional:  # it may not be ended yet, whatever its type is
                late[instance.node_type] += bool(instance.launch_request_id)
            else:  # unreadable or late: it counts, but nothing on it is known to be free
                result.append(replace(_coming(draft, instance, holds), available=EMPTY))
        elif instance.state in _COMING and not instance.cancelled:
            result.append(_coming(draft, instance, holds))
    kept, surplus = _unlisted(draft, result, unlisted) if unlisted else ((), Counter[str]())
    return (*result, *kept), surplus + late


def _unlisted(
    draft: Draft, ours: list[PackNode], unlisted: list[tuple[Instance, NodeReport]]
) -> tuple[list[PackNode], Counter[str]]:
    """Nodes whose machines no list has shown serve, and are neither idle nor outdated: none may be ended yet.

    One that is over a limit is left out, so that none of ours goes for it, and counts as leaving when it came
    for a request; one that came for none may be somebody's own.
    """
    count, most = Counter(node.node_type for node in ours), draft.spec.max_nodes
    kept, surplus = list[PackNode](), Counter[str]()
    for instance, report in unlisted:
        known = draft.types.get(instance.node_type)
        fits = known is not None and count[known.name] < known.max_nodes
        if fits and (most is None or count.total() < most):
            count[instance.node_type] += 1
            node = _running(draft, instance, report)
            kept.append(replace(node, idle_s=0.0, launch_hash=_todays_hash(draft, instance)))
        elif instance.launch_request_id:
            surplus[instance.node_type] += 1
    return kept, surplus


def _running(draft: Draft, instance: Instance, report: NodeReport) -> PackNode:
    node = PackNode(
        key=instance.instance_id,
        node_type=instance.node_type,
        total=report.total,
        available=report.available,
        kind=instance.kind,
        labels=report.labels,
        launch_hash=instance.launch_hash,
    )
    if report.status is not _IDLE and instance.offer is None and not draft.snapshot.traits.resizable:
        return node  # nearly all: fewer fields take half the time
    return replace(
        node,
        labels={**labels_of(instance.offer, None), **report.labels},
        idle_s=_idle_s(draft, instance, report) if report.status is _IDLE else 0.0,
        resize=_resize_of(draft, instance) if draft.snapshot.traits.resizable else None,
        offer=instance.offer_name,
    )


def _idle_s(draft: Draft, instance: Instance, report: NodeReport) -> float:
    """A node whose drain was refused or lost must be idle again before the next drain: no hot loop."""
    was_asked = len(instance.history) > 1 and instance.history[-2].state is _S.RAY_STOP_REQUESTED
    return min(report.idle_s, max(0.0, draft.now - instance.since)) if was_asked else report.idle_s


def _coming(draft: Draft, instance: Instance, holds: Holds) -> PackNode:
    known = draft.types.get(instance.node_type)
    size = known.resources if known else EMPTY
    is_kept = instance.state in (_S.ALLOCATED, _S.RAY_INSTALLING) and draft.may_work_unseen(instance)
    is_type_held = instance.node_type in holds and _is_held(draft, instance)
    # Its node is there and cannot be matched, or nobody knows when it comes: nothing is free.
    is_full = is_type_held or draft.is_held(instance)
    return PackNode(
        key=instance.instance_id,
        node_type=instance.node_type,
        total=EMPTY if is_type_held else size,
        available=EMPTY if is_full else size,
        state=instance.state,
        kind=instance.kind,
        labels=labels_of(instance.offer, known),
        idle_s=-1.0 if is_kept else 0.0,  # where limits shrink it goes last, because it cannot be ended yet
        launch_hash=_todays_hash(draft, instance) if is_kept else instance.launch_hash,
        resize=_resize_of(draft, instance) if draft.snapshot.traits.resizable else None,
        offer=instance.offer_name,
    )


def _is_held(draft: Draft, instance: Instance) -> bool:
    """Return whether nobody knows when the machine comes, so that another one serves the demand."""
    is_gated = bool(draft.types[instance.node_type].gates) if instance.node_type in draft.types else False
    is_waiting = problem_of(instance, draft.snapshot.cloud or {}) is not None
    return is_waiting if instance.state is _S.ALLOCATED else is_gated


def _todays_hash(draft: Draft, instance: Instance) -> str:
    """What may not be ended yet is not planned as outdated: its replacement would be one too many."""
    known = draft.types.get(instance.node_type)
    return known.launch_hash if known else instance.launch_hash


_MOVING = (StopCause.NOTICE, StopCause.CONSOLIDATION)


def _work_that_moves(draft: Draft) -> list[Demand]:
    """What runs on nodes that the cloud will take, or that are emptied, needs room before it asks for it."""
    found = []
    trials: dict[str, list[RunningTrial]] | None = None
    for instance in draft.in_state(_S.RAY_STOP_REQUESTED, _S.RAY_STOPPING):
        node, known = draft.nodes.get(instance.node_id or ""), draft.types.get(instance.node_type)
        if instance.stop_cause not in _MOVING or node is None or known is None:
            continue
        used = Resources(
            {name: node.total.units(name) - node.available.units(name) for name in known.resources}
        ).positive()
        if node.status is not NodeStatus.DEAD and used:
            trials = trials_by_node(draft.snapshot.forecasts) if trials is None else trials
            shapes = (trial.shape for trial in trials.get(node.node_id, ()))
            name = f"work on {instance.instance_id}"
            for shape, count in Counter(_parts(used, shapes)).items():
                found.append(Demand(shape=shape, count=count, name=name, is_asked=False))
    return found


def _parts(used: Resources, shapes: Iterable[Resources]) -> Iterable[Resources]:
    """Trials continue wherever there is room for each of them; what else runs on a node stays together."""
    for shape in shapes:
        if used.holds(shape):
            used = used.minus(shape).positive()
            yield shape
    if used:
        yield used


def _leaving(draft: Draft) -> list[Instance]:
    """Machines that may still come back or arrive: a refused drain, a cancelled request, a node unseen."""
    passing = [
        i
        for i in draft.in_state(_S.RAY_STOP_REQUESTED, _S.REQUESTED)
        if i.cancelled or (i.state is _S.RAY_STOP_REQUESTED and i.stop_cause in (None, StopCause.IDLE))
    ]
    return [*passing, *draft.restartable()]


def _resize_of(draft: Draft, instance: Instance) -> ResizeStatus | None:
    """Return where the machine's size stands: what the ledger knows counts before what is listed.

    While no list can be read, a change under way still counts: otherwise machines would be launched for it.
    """
    machine = (draft.snapshot.cloud or {}).get(instance.cloud_id) if instance.cloud_id else None
    status, record = machine.resize if machine is not None else None, instance.resize
    if record is None:
        return status
    is_under_way = record.since is not None
    if status is None:
        return ResizeStatus(current=EMPTY, desired=record.desired, in_progress=True) if is_under_way else None
    has_failed = status.failed or record.failed_at is not None
    return replace(
        status,
        desired=record.desired if is_under_way else status.desired,
        in_progress=not has_failed and (is_under_way or status.in_progress),
        failed=has_failed,
        suggested_maximum=record.suggested_maximum or status.suggested_maximum,
    )


def _sane(draft: Draft, demands: Iterable[Demand], what: str) -> tuple[Demand, ...]:
    """Requests that cannot be planned for are reported and left out."""
    result = []
    for position, demand in enumerate(demands):
        if 0 < demand.count <= _MAX_COUNT:
            result.append(demand)
        else:
            name = demand.name or str(position)
            draft.quarantine(f"{what} {name}", f"count {demand.count} is not between 1 and {_MAX_COUNT}")
    return tuple(result)


def _sane_gangs(draft: Draft, gangs: Iterable[Gang]) -> tuple[Gang, ...]:
    result: dict[str, Gang] = {}
    for gang in gangs:
        fault = _gang_fault(gang) or ("its id was used before" if gang.gang_id in result else "")
        if fault:
            draft.quarantine(f"gang {gang.gang_id or '(no id)'}", fault)
        else:
            result[gang.gang_id] = gang
    return tuple(result.values())


def _gang_fault(gang: Gang) -> str:
    if not gang.gang_id or not gang.options or not all(gang.options):
        return "it has no id or no bundles"
    counts = [bundle.count for option in gang.options for bundle in option]
    return "" if all(0 < count <= _MAX_COUNT for count in counts) else f"bundle counts {counts} make no sense"

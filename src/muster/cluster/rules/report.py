"""Fill the report for the runtime, and record one reason for every request, node and node type."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from muster.cluster.backoff import failures_among
from muster.cluster.model import Demand, Instance
from muster.cluster.plan import PendingInstance, PendingRequest, Reason, ScalingReport
from muster.cluster.planner.explain import explain
from muster.cluster.planner.request import ItemOutcome
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState

_S = InstanceState
_MAX_FAILED = 100  # only recent ones


def report(draft: Draft) -> None:
    """Fill the report from what the other rules decided; changes nothing else."""
    runtime, request, packing = draft.snapshot.runtime, draft.planned.request, draft.planned.outcome
    changed = failures_among(draft.decided.changed.values())
    failed_now = [failure for failure in changed if failure.failed_at == draft.now]
    draft.decided.report = ScalingReport(
        seen_runtime_version=runtime.version if runtime else 0,
        pending_requests=_pending_requests(draft),
        pending_instances=tuple(
            PendingInstance(
                instance_id=i.instance_id,
                node_type=i.node_type,
                machine_type=_machine_type(draft, i.node_type),
                ip=i.internal_ip,
                details=i.details,
            )
            for i in draft.in_state(_S.ALLOCATED, _S.RAY_INSTALLING)
        ),
        failed_launches=tuple(
            replace(failure, machine_type=_machine_type(draft, failure.node_type))
            for failure in (*failed_now, *draft.snapshot.recent_failures)[:_MAX_FAILED]
        ),
    )
    if request is None or packing is None:
        return
    bundles = [demand for constraint in request.constraints for demand in constraint.demands]
    draft.decided.report = replace(
        draft.decided.report,
        infeasible_demands=_left_over(request.demands, packing.demands),
        infeasible_gangs=tuple(request.gangs[o.index] for o in packing.gangs if o.unplaced),
        infeasible_constraints=_left_over(bundles, packing.constraints),
    )


def _left_over(demands: Iterable[Demand], outcomes: Iterable[ItemOutcome]) -> tuple[Demand, ...]:
    """Work that still runs on a node which must go, or is only forecast, has not asked for anything yet."""
    wanted = tuple(demands)
    return tuple(
        replace(wanted[o.index], count=o.unplaced)
        for o in outcomes
        if o.unplaced and wanted[o.index].is_asked
    )


def _machine_type(draft: Draft, node_type: str) -> str:
    known = draft.types.get(node_type)
    return known.machine_type if known else ""


def _pending_requests(draft: Draft) -> tuple[PendingRequest, ...]:
    """Return REQUESTED, then QUEUED (also those never requested), by request id and type."""
    groups: dict[tuple[str, str], list[Instance]] = {}
    for instance in draft.in_state(_S.REQUESTED, _S.QUEUED):
        groups.setdefault((instance.launch_request_id or "", instance.node_type), []).append(instance)
    first_asked: dict[str, float] = {}
    for (request_id, _), members in groups.items():
        first_asked.setdefault(request_id, max(members[0].entered(_S.REQUESTED), default=0.0))
    return tuple(
        PendingRequest(
            node_type=name,
            machine_type=_machine_type(draft, name),
            count=len(members),
            requested_at=first_asked[request_id],
            request_id=request_id,
        )
        for (request_id, name), members in groups.items()
    )


_GOING = {
    _S.RAY_STOP_REQUESTED: Reason.LEAVING,
    _S.RAY_STOPPING: Reason.LEAVING,
    _S.RAY_STOPPED: Reason.REMOVED_FAILED,
    _S.TERMINATING: Reason.LEAVING,
    _S.TERMINATION_FAILED: Reason.LEAVING,
    _S.ALLOCATION_TIMEOUT: Reason.REMOVED_FAILED,
    _S.RAY_INSTALL_FAILED: Reason.REMOVED_FAILED,
}


def verdicts(draft: Draft) -> None:
    """Add the planner's verdicts, and those of machines outside the planning."""
    planned: set[str] = set()
    request, packing = draft.planned.request, draft.planned.outcome
    if request is not None and packing is not None:
        draft.add_verdicts(*explain(request, packing))
        planned = {node.key for node in request.nodes} if draft.in_state(*_GOING) else set()
    for state, reason in _GOING.items():
        for instance in draft.in_state(state):
            if instance.instance_id not in planned:
                loss = instance.loss
                if loss is None:
                    draft.add_node_verdict(instance, reason, instance.details)
                else:
                    draft.add_node_verdict(instance, Reason.LOST, loss.details)
    draft.add_verdicts(*draft.decided.node_verdicts)

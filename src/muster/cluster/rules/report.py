"""Fills the report for the runtime and its tools: what is pending, what failed, what is infeasible."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from muster.cluster.binpack.request import ItemOutcome
from muster.cluster.model import Demand, Instance
from muster.cluster.plan import PendingInstance, PendingRequest, ScalingReport
from muster.cluster.rules.draft import FORECAST, WORK_OF, Draft
from muster.cluster.snapshot import FailedLaunch
from muster.cluster.states import InstanceState

_S = InstanceState
_MAX_FAILED = 100  # only recent ones


def report(draft: Draft) -> None:
    """Fills the report from what the other rules decided; changes nothing else."""
    runtime, request, packing = draft.seen.runtime, draft.pack_request, draft.packing
    draft.report = ScalingReport(
        seen_runtime_version=runtime.version if runtime else 0,
        pending_requests=_pending_requests(draft),
        pending_instances=tuple(
            _pending_instance(draft, i) for i in draft.in_state(_S.ALLOCATED, _S.RAY_INSTALLING)
        ),
        failed_launches=(*_failed_now(draft), *draft.seen.recent_failures)[:_MAX_FAILED],
    )
    if request is None or packing is None:
        return
    bundles = [demand for constraint in request.constraints for demand in constraint.demands]
    draft.report = replace(
        draft.report,
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
        if o.unplaced and not wanted[o.index].name.startswith((WORK_OF, FORECAST))
    )


def _machine_type(draft: Draft, node_type: str) -> str:
    known = draft.types.get(node_type)
    return known.machine_type if known else ""


def _pending_requests(draft: Draft) -> tuple[PendingRequest, ...]:
    """Returns REQUESTED, then QUEUED (also those never requested), by request id and type."""
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


def _pending_instance(draft: Draft, instance: Instance) -> PendingInstance:
    return PendingInstance(
        instance_id=instance.instance_id,
        node_type=instance.node_type,
        machine_type=_machine_type(draft, instance.node_type),
        ip=instance.internal_ip,
        details=instance.details,
    )


def _failed_now(draft: Draft) -> list[FailedLaunch]:
    return [
        FailedLaunch(
            instance_id=i.instance_id,
            node_type=i.node_type,
            started_at=max(i.entered(_S.REQUESTED), default=0.0),
            failed_at=i.since,
            reason=i.details,
            offer=i.offer_name,
        )
        for i in draft.in_state(_S.ALLOCATION_FAILED)
    ]

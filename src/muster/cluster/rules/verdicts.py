"""Records one reason for every request, every node and every node type. Decides nothing."""

from __future__ import annotations

from muster.cluster.binpack.explain import explain
from muster.cluster.model import Instance
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState

_S = InstanceState
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
    """Adds the planner's verdicts, and those of machines outside the planning."""
    planned: set[str] = set()
    if draft.pack_request is not None and draft.packing is not None:
        draft.add_verdicts(*explain(draft.pack_request, draft.packing))
        planned = {node.key for node in draft.pack_request.nodes} if any(map(draft.count, _GOING)) else set()
    for state, reason in _GOING.items():
        for instance in draft.in_state(state):
            if instance.instance_id not in planned:
                draft.add_verdicts(_leaving(instance, reason))
    draft.add_verdicts(*draft.announced)  # last: of several reasons of a node, reports show the newest


def _leaving(instance: Instance, reason: Reason) -> Verdict:
    loss = instance.loss
    return Verdict(
        subject=Subject.NODE,
        subject_id=instance.instance_id,
        reason=reason if loss is None else Reason.LOST,
        target=instance.node_type,
        detail=instance.details if loss is None else loss.details,
    )

"""Cancels, drains or terminates what the planner no longer wants, as the record's state allows."""

from __future__ import annotations

from muster.base.ids import RequestId
from muster.cluster.binpack.request import Removal
from muster.cluster.model import Instance, StopCause
from muster.cluster.plan import Drain
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import InstanceState

_S = InstanceState


def scale_down(draft: Draft) -> None:
    """Removes nodes. A running node is drained first, with a deadline when it must go: no work is killed."""
    if draft.packing is None or not draft.may_scale:
        return
    for removal in draft.packing.removals:
        instance = draft.instances.get(removal.instance_id)
        # A node whose machine no list has shown may be somebody's own: it is not ended.
        if instance is not None and not is_head(instance) and not instance.provisional:
            _remove(draft, instance, removal)


def _remove(draft: Draft, instance: Instance, removal: Removal) -> None:
    match instance.state:
        case _S.QUEUED:
            draft.move(instance, _S.TERMINATED, f"cancelled: {removal.details}", stop_cause=removal.cause)
        case _S.REQUESTED | _S.ALLOCATED | _S.RAY_INSTALLING:
            # A launch in flight cannot be called back; the terminate rule gives the machine back when it is
            # there. Nothing runs on it yet.
            draft.amend(instance, cancelled=True, stop_cause=removal.cause)
        case _S.RAY_RUNNING if instance.node_id:
            _drain(draft, instance, removal)
        case _:
            pass  # already on its way out


def _drain(draft: Draft, instance: Instance, removal: Removal) -> None:
    if draft.move(instance, _S.RAY_STOP_REQUESTED, removal.details, stop_cause=removal.cause) is None:
        return
    assert instance.node_id is not None
    idle = removal.cause is StopCause.IDLE
    draft.act(
        Drain(
            request_id=RequestId(draft.fresh("d")),
            instance_id=instance.instance_id,
            node_id=instance.node_id,
            cause=removal.cause,
            deadline_s=0.0 if idle else draft.spec.timeouts.drain_deadline_s,
            message=removal.details,
        )
    )

"""Turns what the planner wants to buy into QUEUED records, and what it wants to enlarge into Resize."""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.ids import InstanceId, RequestId
from muster.base.resources import Resources
from muster.cluster.machine_size import ResizeRecord
from muster.cluster.plan import Resize
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState

_S = InstanceState


def scale_up(draft: Draft) -> None:
    """Adds records. A request that was cancelled while in flight is used again before a new one is made."""
    if draft.packing is None or not draft.may_scale:
        return
    for name, count in draft.packing.launch.items():
        for _ in range(count - _reinstate(draft, name, count)):
            draft.create(_S.QUEUED, name, "wanted by the planner")
    for instance_id, size in draft.packing.resize.items():
        _resize(draft, InstanceId(instance_id), size)


def _reinstate(draft: Draft, node_type: str, wanted: int) -> int:
    cancelled = [i for i in draft.in_state(_S.REQUESTED) if i.cancelled and i.node_type == node_type]
    for instance in cancelled[:wanted]:
        draft.amend(instance, cancelled=False, stop_cause=None)
    return min(wanted, len(cancelled))


def _resize(draft: Draft, instance_id: InstanceId, size: Resources) -> None:
    instance = draft.instances.get(instance_id)
    if instance is not None and instance.cloud_id and instance.state is _S.RAY_RUNNING:
        known = instance.resize or ResizeRecord()
        draft.amend(instance, resize=replace(known, desired=size, since=draft.now, asked_at=draft.now))
        draft.act(
            Resize(
                request_id=RequestId(draft.fresh("z")),
                instance_id=instance_id,
                cloud_id=instance.cloud_id,
                desired=size,
            )
        )

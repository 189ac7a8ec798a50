"""Cancels, drains or terminates what the planner no longer wants, as the record's state allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

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
    slices = _slices(draft) if draft.packing.removals or any(map(draft.count, _LOST)) else {}
    if slices:
        removals = (*_whole_slices(slices, draft.packing.removals), *_broken_slices(draft, slices))
        draft.packing = replace(draft.packing, removals=removals)
    for removal in draft.packing.removals:
        instance = draft.instances.get(removal.instance_id)
        # A node whose machine no list has shown may be somebody's own: it is not ended.
        if instance is not None and not is_head(instance) and not instance.provisional:
            _remove(draft, instance, removal)


_STAYING = (_S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING)
_LOST = (_S.RAY_STOPPED, _S.TERMINATING, _S.TERMINATION_FAILED)

Slices = dict[str, list[Instance]]


def _slices(draft: Draft) -> Slices:
    """Returns the staying machines of each slice; {} where machines stand alone."""
    found: Slices = {}
    cloud = draft.seen.cloud or {}
    for instance in draft.in_state(*_STAYING):
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        is_staying = not instance.cancelled or instance.state is _S.RAY_RUNNING
        if machine is not None and machine.slice_id and is_staying:
            found.setdefault(machine.slice_id, []).append(instance)
    return found


def _whole_slices(slices: Slices, removals: Sequence[Removal]) -> list[Removal]:
    """Machines of one slice go together: idle ones when all are, others slice by slice.

    The slices with the most machines to remove go first, and no more of them than are needed.
    """
    slice_of = {one.instance_id: name for name, members in slices.items() for one in members}
    chosen = {removal.instance_id: removal for removal in removals}
    result = [removal for removal in removals if removal.instance_id not in slice_of]
    forced: dict[tuple[str, StopCause], list[Removal]] = {}
    for removal in removals:
        if removal.instance_id not in slice_of:
            continue
        if removal.cause is not StopCause.IDLE:
            forced.setdefault((removal.node_type, removal.cause), []).append(removal)
        elif all(one.instance_id in chosen for one in slices[slice_of[removal.instance_id]]):
            result.append(removal)
    for group in forced.values():
        hit = Counter(slice_of[removal.instance_id] for removal in group)
        left = len(group)
        for name, _ in hit.most_common():
            if left > 0:
                result += [replace(group[0], instance_id=one.instance_id) for one in slices[name]]
                left -= len(slices[name])
    return result


def _broken_slices(draft: Draft, slices: Slices) -> list[Removal]:
    """A slice that lost a machine is of no use: the work on the others is moved, and all of them go.

    So is one of which a part was drained while it was idle, and another part has got work meanwhile.
    """
    cloud = draft.seen.cloud or {}
    lost = (cloud.get(i.cloud_id) for i in draft.in_state(*_LOST) if i.cloud_id)
    broken = dict.fromkeys(machine.slice_id for machine in lost if machine is not None and machine.slice_id)
    return [
        Removal(
            instance_id=one.instance_id,
            node_type=one.node_type,
            cause=StopCause.UNKNOWN,
            details="another machine of its slice is gone",
        )
        for name in broken
        for one in slices.get(name, ())
    ]


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

"""Follow the planner: cancel, drain or terminate what it removes, queue what it launches, ask for growth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.base.resources import Resources
from muster.cluster.budget_policy import NEXT_CHECKPOINT_S
from muster.cluster.model import Instance, NodeStatus, StopCause
from muster.cluster.plan import drain_of, resize_of
from muster.cluster.planner.request import Removal
from muster.cluster.rules.draft import STAYING, Draft, is_head
from muster.cluster.states import InstanceState, ResizeRecord

_S = InstanceState


def scale_down(draft: Draft) -> None:
    """Remove nodes. A running node is drained first, with a deadline when it must go: no work is killed."""
    packing = draft.planned.outcome
    if packing is None or not draft.planned.may_scale:
        return
    removals = packing.removals
    slices = _slices(draft) if removals or draft.in_state(*_LOST) else {}
    if slices:
        removals = (*_whole_slices(draft, slices, removals), *_broken_slices(draft, slices))
        draft.planned.whole_slices = removals
    for removal in removals:
        instance = draft.instances.get(removal.instance_id)
        # A node whose machine no list has shown may be somebody's own: it is not ended.
        if instance is not None and not is_head(instance) and not instance.provisional:
            _remove(draft, instance, removal)


_LOST = (_S.RAY_STOPPED, _S.TERMINATING, _S.TERMINATION_FAILED)

Slices = dict[str, list[Instance]]


def _slices(draft: Draft) -> Slices:
    """Return the staying machines of each slice; {} where machines stand alone."""
    found: Slices = {}
    cloud = draft.snapshot.cloud or {}
    for instance in draft.in_state(*STAYING):
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        is_staying = not instance.cancelled or instance.state is _S.RAY_RUNNING
        if machine is not None and machine.slice_id and is_staying:
            found.setdefault(machine.slice_id, []).append(instance)
    return found


def _whole_slices(draft: Draft, slices: Slices, removals: Sequence[Removal]) -> list[Removal]:
    """Machines of one slice go together, as many as single ones would: idle ones when all of a slice are."""
    slice_of = {one.instance_id: name for name, members in slices.items() for one in members}
    result = [removal for removal in removals if removal.instance_id not in slice_of]
    groups: dict[tuple[str, StopCause], list[Removal]] = {}
    for removal in removals:
        if removal.instance_id in slice_of:
            groups.setdefault((removal.node_type, removal.cause), []).append(removal)
    for group in groups.values():
        hit = Counter(slice_of[removal.instance_id] for removal in group)
        going = [one for name in _chosen_slices(draft, slices, hit, group[0].cause) for one in slices[name]]
        if group[0].cause is not StopCause.IDLE:
            # What is still to come goes first, the newest at first: a part of a slice is of no use.
            coming = draft.in_state(_S.REQUESTED, _S.QUEUED)[::-1]
            coming = [one for one in coming if one.node_type == group[0].node_type]
            going += coming[: len(group) - len(going)]
        result += [replace(group[0], instance_id=one.instance_id) for one in going]
    return result


def _chosen_slices(draft: Draft, slices: Slices, hit: Counter[str], cause: StopCause) -> list[str]:
    """Return the slices with the most machines to remove, and no more of them than are needed."""
    left, chosen = hit.total(), []
    for name, _ in hit.most_common():
        size = len(slices[name])
        if left < size or (cause is StopCause.IDLE and not _are_idle(draft, slices[name])):
            continue
        chosen.append(name)
        left -= size
    return chosen


def _are_idle(draft: Draft, members: Sequence[Instance]) -> bool:
    """Return whether all are idle for as long as their type may be, and nothing was planned onto them."""
    packing = draft.planned.outcome
    needed = packing.needed if packing is not None else frozenset()
    for one in members:
        node, known = draft.nodes.get(one.node_id or ""), draft.types.get(one.node_type)
        own = known.idle_timeout_s if known is not None else None
        limit_s = draft.spec.idle_timeout_s if own is None else own
        is_idle = node is not None and node.status is NodeStatus.IDLE
        if node is None or not is_idle or limit_s is None or node.idle_s <= limit_s:
            return False
        if one.instance_id in needed:
            return False
    return True


def _broken_slices(draft: Draft, slices: Slices) -> list[Removal]:
    """A slice that lost a machine is of no use: the work on the others is moved, and all of them go.

    So is one of which a part was drained while it was idle, and another part has got work meanwhile.
    """
    cloud = draft.snapshot.cloud or {}
    lost = (cloud.get(i.cloud_id) for i in draft.in_state(*_LOST) if i.cloud_id)
    broken = dict.fromkeys(machine.slice_id for machine in lost if machine is not None and machine.slice_id)
    cause, details = StopCause.BROKEN_SLICE, "another machine of its slice is gone"
    members = (one for name in broken for one in slices.get(name, ()))
    return [Removal(one.instance_id, one.node_type, cause, details) for one in members]


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
    deadline_s = draft.spec.timeouts.drain_deadline_s
    if removal.cause is StopCause.IDLE:
        deadline_s = 0.0
    elif removal.cause is StopCause.CONSOLIDATION:
        deadline_s = max(deadline_s, NEXT_CHECKPOINT_S)
    draft.act(drain_of(instance, draft.fresh("d"), removal.cause, deadline_s, removal.details))


def scale_up(draft: Draft) -> None:
    """Add records. A request that was cancelled while in flight is used again before a new one is made."""
    packing = draft.planned.outcome
    if packing is None or not draft.planned.may_scale:
        return
    for name, count in packing.launch.items():
        pinned = Counter(packing.pinned.get(name, {}))
        for offer in (*pinned.elements(), *[""] * (count - pinned.total())):
            known = draft.types[name].offer(offer) if offer else None
            if not _reinstate(draft, name, offer):
                terms = {} if known is None else {**draft.terms_of(name, known), "is_pinned": True}
                draft.create(_S.QUEUED, name, "wanted by the planner", **terms)
    for instance_id, size in packing.resize.items():
        _resize(draft, InstanceId(instance_id), size)


def _reinstate(draft: Draft, node_type: str, offer: str) -> bool:
    """Use a cancelled request of this type again, of the offer if one is given; False when there is none."""
    requested = (i for i in draft.in_state(_S.REQUESTED) if i.cancelled and i.node_type == node_type)
    instance = next((i for i in requested if offer in ("", i.offer_name)), None)
    if instance is not None:
        draft.amend(instance, cancelled=False, stop_cause=None)
    return instance is not None


def _resize(draft: Draft, instance_id: InstanceId, size: Resources) -> None:
    instance = draft.instances.get(instance_id)
    if instance is not None and instance.cloud_id and instance.state is _S.RAY_RUNNING:
        known = instance.resize or ResizeRecord()
        draft.amend(instance, resize=replace(known, desired=size, since=draft.now, asked_at=draft.now))
        draft.act(resize_of(instance, draft.fresh("z"), size))

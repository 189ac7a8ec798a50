"""Closes, mends or sets aside records that make no sense, before any other rule sees them."""

from __future__ import annotations

from muster.cluster.model import Instance, StatusChange
from muster.cluster.rules.draft import Draft
from muster.cluster.states import ON_CLOUD, TERMINAL, InstanceState

_S = InstanceState


def repair(draft: Draft) -> None:
    """Quarantines the records that cannot be used; the rest of the tick continues."""
    on_cloud = ON_CLOUD
    for instance in [
        i
        for i in draft.instances.values()
        if not (  # nearly all of them are as they should be
            i.cloud_id
            and i.node_type
            and i.history
            and i.history[-1].state is i.state
            and i.state in on_cloud
        )
    ]:
        history = instance.history
        dated = bool(history) and history[-1].state is instance.state
        fault = _fault(instance)
        if fault:
            _close(draft, instance, fault)
        elif not dated and all(change.state is not instance.state for change in history):
            # Without a date every timeout would fire at once, so the time starts now.
            draft.quarantine(
                f"record {instance.instance_id}",
                f"its history does not contain when it became {instance.state.name}",
            )
            entry = StatusChange(instance.state, draft.now, "history was incomplete: counted from here")
            draft.amend(instance, history=(*instance.history, entry))


def _fault(instance: Instance) -> str:
    """Returns what is missing for the record's state; "" when nothing is."""
    state = instance.state
    if state is _S.UNKNOWN or state in TERMINAL:
        return f"{state.name} is not a state of a live record"
    if not instance.node_type:
        return "it has no node type"
    if state in ON_CLOUD and not instance.cloud_id:
        return f"{state.name} needs a cloud id"
    if state is _S.REQUESTED and not instance.launch_request_id:
        return "REQUESTED needs a launch request id"
    return ""


def _close(draft: Draft, instance: Instance, fault: str) -> None:
    """A record that refers to nothing ends. Its machine, if the cloud lists one, is adopted."""
    if instance.state is _S.UNKNOWN or instance.state in TERMINAL:
        draft.set_aside(instance, fault)
        return
    draft.quarantine(f"record {instance.instance_id}", f"{fault}: closed")
    target = _S.ALLOCATION_FAILED if instance.state is _S.REQUESTED else _S.TERMINATED
    draft.move(instance, target, f"closed: {fault}")

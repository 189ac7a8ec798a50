"""Moves ALLOCATED to RAY_INSTALLING when the machine is up and the provider does not install the runtime."""

from __future__ import annotations

from muster.base.ids import RequestId
from muster.cluster.model import CloudInstance, Instance
from muster.cluster.plan import Install, base_id
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import InstanceState

_S = InstanceState


def install(draft: Draft) -> None:
    """Starts the installation on workers. Waits without a report: a node may already run there."""
    cloud = draft.seen.cloud
    if cloud is None or draft.seen.runtime is None:
        return
    if draft.seen.traits.installs_runtime or not draft.spec.install_runtime:
        return
    for instance in draft.in_state(_S.ALLOCATED):
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        if machine is None or not machine.is_running or is_head(instance):
            continue
        if not _is_new(draft, instance, machine) and draft.may_work_unseen(instance):
            continue  # adopted, or of an earlier request: a node that cannot be matched may run there
        if draft.move(instance, _S.RAY_INSTALLING, "the machine is up"):
            draft.act(
                Install(
                    request_id=RequestId(draft.fresh("s")),
                    instance_id=instance.instance_id,
                    cloud_id=machine.cloud_id,
                    node_type=instance.node_type,
                )
            )


def _is_new(draft: Draft, instance: Instance, machine: CloudInstance) -> bool:
    """Returns whether the machine was bought for this record, as far as its tag shows, by this head.

    What was requested before the head's own record began was requested by an earlier head, which may have
    set the machine up after the copy of the ledger was made that this one started from.
    """
    request = machine.request_id
    is_own = request is None or base_id(request) == instance.launch_request_id
    heads = (one.history[0].at for one in draft.instances.values() if is_head(one) and one.history)
    return is_own and any(at >= min(heads, default=0.0) for at in instance.entered(_S.REQUESTED)[-1:])

"""Matches machines to records: arrived, refused, gone, not terminated, and those without a record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from muster.base.ids import CloudId, RequestId
from muster.cluster.backoff import after_failure
from muster.cluster.model import CloudInstance, Instance, LaunchFailure, NodeKind, NodeStatus
from muster.cluster.plan import Reason, attempt_of, base_id
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.snapshot import TypeHealth
from muster.cluster.states import ON_CLOUD, InstanceState

_S = InstanceState
_ALIVE = frozenset({NodeStatus.RUNNING, NodeStatus.IDLE})


def observe_cloud(draft: Draft) -> None:
    """Mirrors what the provider lists; decides nothing."""
    cloud = draft.seen.cloud
    if cloud is None:
        draft.add_cluster_verdict(
            Reason.CLOUD_UNREADABLE, "the provider could not list its machines; nothing was concluded"
        )
        _fail_refused(draft)
        _note_terminate_failures(draft)
        return
    unowned = _unowned(draft, cloud)
    _bind_arrivals(draft, unowned)
    _fail_refused(draft)
    _note_vanished(draft, cloud)
    _note_terminate_failures(draft)
    _adopt(draft, unowned.values())


def _unowned(draft: Draft, cloud: Mapping[CloudId, CloudInstance]) -> dict[CloudId, CloudInstance]:
    """Machines that no live record holds, without unusable and unmanaged ones."""
    owned = {i.cloud_id for i in draft.instances.values() if i.cloud_id and i.state in ON_CLOUD}
    result = {}
    for cloud_id, machine in cloud.items():
        if cloud_id in owned:
            continue
        if machine.kind is NodeKind.UNMANAGED or not machine.node_type:
            draft.quarantine(
                f"machine {cloud_id}", f"kind {machine.kind.name}, type {machine.node_type!r}: not ours"
            )
            continue
        result[cloud_id] = machine
    return result


def _bind_arrivals(draft: Draft, unowned: dict[CloudId, CloudInstance]) -> None:
    """REQUESTED records get their machines: first by request id, then by type, oldest request first."""
    waiting = sorted(draft.in_state(_S.REQUESTED), key=lambda i: i.entered(_S.REQUESTED))
    if not waiting or not unowned:
        return
    by_request: dict[tuple[RequestId, str], deque[CloudInstance]] = {}
    for machine in unowned.values():
        if machine.request_id:
            by_request.setdefault((base_id(machine.request_id), machine.node_type), deque()).append(machine)
    left = []
    for instance in waiting:
        queue = by_request.get((instance.launch_request_id or RequestId(""), instance.node_type))
        if queue:
            _bind(draft, instance, queue.popleft(), unowned)
        else:
            left.append(instance)
    # A tagged machine whose own request still waits must not be given to another record.
    open_requests = {i.launch_request_id for i in left}
    by_type: dict[str, deque[CloudInstance]] = {}
    for machine in unowned.values():
        if not machine.request_id or base_id(machine.request_id) not in open_requests:
            by_type.setdefault(machine.node_type, deque()).append(machine)
    for instance in left:
        queue = by_type.get(instance.node_type)
        if queue:
            _bind(draft, instance, queue.popleft(), unowned)


def _bind(
    draft: Draft, instance: Instance, machine: CloudInstance, unowned: dict[CloudId, CloudInstance]
) -> None:
    del unowned[machine.cloud_id]
    draft.move(
        instance,
        _S.ALLOCATED,
        "the machine arrived",
        cloud_id=machine.cloud_id,
        kind=machine.kind,
        launch_hash=machine.launch_hash or instance.launch_hash,
        internal_ip=machine.internal_ip,
        external_ip=machine.external_ip,
    )


def _fail_refused(draft: Draft) -> None:
    """Each refused unit fails exactly one record; a batch of five with one refusal keeps four.

    A late refusal of an earlier attempt does not concern the attempt under way.
    """
    refused: dict[tuple[RequestId, int, str], deque[LaunchFailure]] = {}
    newest: dict[str, LaunchFailure] = {}
    for failure in draft.seen.launch_failures:
        call = (base_id(failure.request_id), attempt_of(failure.request_id), failure.node_type)
        refused.setdefault(call, deque()).append(failure)
        newest[failure.node_type] = failure
    if not refused:
        return
    for instance in sorted(draft.in_state(_S.REQUESTED), key=lambda i: i.entered(_S.REQUESTED)):
        asked = len(instance.entered(_S.REQUESTED))
        queue = refused.get((instance.launch_request_id or RequestId(""), asked, instance.node_type))
        if queue:
            failure = queue.popleft()
            draft.move(instance, _S.ALLOCATION_FAILED, f"{failure.kind.value}: {failure.message}")
    for name, failure in newest.items():
        health = draft.health.get(name, TypeHealth())
        draft.health[name] = after_failure(
            health, failure.kind, failure.message, draft.now, draft.spec.backoff
        )


def _note_vanished(draft: Draft, cloud: Mapping[CloudId, CloudInstance]) -> None:
    """A machine that the cloud no longer lists is gone, unless its node reports otherwise: then wait.

    Lists are eventually consistent. One missing line must not end a machine whose node is alive, and the
    head is alive as long as its node is: we may be running on it. Nodes that could not be read may live.
    """
    is_blind = draft.seen.runtime is None
    alive: set[str] | None = None
    for instance in draft.in_state(*_ON_CLOUD_ORDERED):
        if instance.cloud_id in cloud:
            if instance.missing_since is not None:
                draft.amend(instance, missing_since=None)
            continue
        if alive is None:
            alive = _alive_nodes(draft)
        may_live = instance.state in _MAY_BE_LATE and (is_blind or instance.node_id in alive)
        if may_live and _wait_for(draft, instance):
            continue
        draft.move(instance, _S.TERMINATED, "the cloud no longer lists it")


_ON_CLOUD_ORDERED = tuple(state for state in InstanceState if state in ON_CLOUD)
_MAY_BE_LATE = frozenset({_S.RAY_RUNNING, _S.RAY_STOP_REQUESTED})


def _alive_nodes(draft: Draft) -> set[str]:
    runtime = draft.seen.runtime
    return {n.node_id for n in runtime.nodes if n.status in _ALIVE} if runtime else set()


def _wait_for(draft: Draft, instance: Instance) -> bool:
    if is_head(instance):
        return True
    since = instance.missing_since
    if since is None:
        draft.amend(instance, missing_since=draft.now)
        return draft.spec.timeouts.listing_grace_s > 0
    return draft.now - since <= draft.spec.timeouts.listing_grace_s


def _note_terminate_failures(draft: Draft) -> None:
    messages = {f.cloud_id: f"{f.kind.value}: {f.message}" for f in draft.seen.terminate_failures}
    if not messages:
        return
    for instance in draft.in_state(_S.TERMINATING):
        if instance.cloud_id in messages:
            draft.move(instance, _S.TERMINATION_FAILED, messages[instance.cloud_id])


def _adopt(draft: Draft, machines: Iterable[CloudInstance]) -> None:
    """Machines without a record get one: the head, machines started by hand, and leaks.

    From there the ordinary rules decide: useful ones stay, surplus and silent ones go.
    """
    for machine in machines:
        draft.create(
            _S.ALLOCATED,
            machine.node_type,
            "found in the cloud without a record: adopted",
            kind=machine.kind,
            cloud_id=machine.cloud_id,
            internal_ip=machine.internal_ip,
            external_ip=machine.external_ip,
            **({"launch_hash": machine.launch_hash} if machine.launch_hash else {}),
        )

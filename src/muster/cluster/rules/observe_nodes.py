"""Match runtime nodes to records: running, draining, dead, vanished, restarted, failed to stop or install."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from muster.base.ids import CloudId
from muster.cluster.model import Instance, NodeKind, NodeReport, NodeStatus
from muster.cluster.plan import Reason
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import INSTANCE_MACHINE, ON_CLOUD, InstanceState

_S = InstanceState
_TARGET = {
    NodeStatus.RUNNING: _S.RAY_RUNNING,
    NodeStatus.IDLE: _S.RAY_RUNNING,
    NodeStatus.DRAINING: _S.RAY_STOPPING,
    NodeStatus.DEAD: _S.RAY_STOPPED,
}
_SAID = {
    _S.RAY_RUNNING: "its node is running",
    _S.RAY_STOPPING: "its node is draining",
    _S.RAY_STOPPED: "its node is dead",
}
# A record whose machine serves, or served a moment ago: a new node on it is a restart, not an arrival.
_SERVED = frozenset({_S.RAY_RUNNING, _S.RAY_STOP_REQUESTED, _S.RAY_STOPPING, _S.RAY_STOPPED})


def observe_nodes(draft: Draft) -> None:
    """Passive: mirrors what the runtime reports, decides nothing."""
    _note_install_failures(draft)
    runtime = draft.seen.runtime
    if runtime is None:
        draft.say_cluster(Reason.RUNTIME_UNREADABLE, "the runtime could not be read; nothing was concluded")
        return
    draft.nodes = _readable(draft, runtime.nodes)
    draft.ended_nodes = {n: at for n, at in draft.ended_nodes.items() if n in draft.nodes}
    strangers = _follow_known(draft)
    _meet_strangers(draft, strangers)
    _note_stop_failures(draft)
    _note_missing(draft, {node.node_id for node in runtime.nodes})


def _readable(draft: Draft, nodes: Iterable[NodeReport]) -> dict[str, NodeReport]:
    result: dict[str, NodeReport] = {}
    for node in nodes:
        if not node.node_id or node.status is NodeStatus.UNSPECIFIED:
            draft.quarantine(f"node {node.node_id or '(no id)'}", f"status {node.status.name}: ignored")
        else:
            result[node.node_id] = node
    return result


def _follow_known(draft: Draft) -> list[NodeReport]:
    """Nodes that a record already names; the others are returned."""
    by_node = {i.node_id: i for i in draft.instances.values() if i.node_id}
    strangers = []
    for node in draft.nodes.values():
        instance = by_node.get(node.node_id)
        if instance is None:
            strangers.append(node)
        elif instance.state is not _TARGET[node.status]:
            _follow(draft, instance, node)
    return strangers


def _follow(draft: Draft, instance: Instance, node: NodeReport) -> None:
    """Move the record to what its node shows; never backwards."""
    target = _TARGET[node.status]
    current = draft.instances[instance.instance_id].state
    if current is target or current in INSTANCE_MACHINE.reachable(target):
        return
    if not INSTANCE_MACHINE.allows(current, target):
        # Too late for this machine: it timed out or failed to install and is on its way out (10.1.1).
        draft.quarantine(
            f"node {node.node_id}", f"came while its record is {current.name}: the machine is leaving"
        )
        return
    draft.move(instance, target, _SAID[target], node_id=node.node_id)
    if target is _S.RAY_RUNNING:
        _forgive(draft, instance)


def _forgive(draft: Draft, instance: Instance) -> None:
    """A machine that came up clears its type's record, unless the failure is newer than its request."""
    health = draft.health.get(instance.node_type)
    requested = max(instance.entered(_S.REQUESTED), default=draft.now)
    if health is not None and requested >= max(health.failed_at, health.timed_out_at or 0.0):
        del draft.health[instance.node_type]


def _meet_strangers(draft: Draft, strangers: Iterable[NodeReport]) -> None:
    by_cloud: dict[CloudId, Instance] = {}
    for instance in draft.instances.values():
        if instance.cloud_id and instance.state in ON_CLOUD:
            by_cloud[instance.cloud_id] = instance
    for node in strangers:
        cloud_id = node.cloud_id or (CloudId(node.node_id) if draft.seen.traits.read_only else None)
        owner = by_cloud.get(cloud_id) if cloud_id else None
        if owner is None:
            _meet_unowned(draft, node, cloud_id)
        elif node.status is not NodeStatus.DEAD and draft.instances[owner.instance_id].node_id:
            _meet_restarted(draft, owner, node)
        elif node.status is not NodeStatus.DEAD or not _is_older_life(draft, owner, node):
            _follow(draft, owner, node)


def _is_older_life(draft: Draft, owner: Instance, node: NodeReport) -> bool:
    """Whether this dead node lived on the machine before the record did (W34, RC-29): then it says nothing.

    A record adopted in this very tick cannot have lost a node already; the node is remembered as ended.
    """
    if owner.node_id is None and owner.instance_id not in draft.seen.instances:
        draft.ended_nodes[node.node_id] = draft.now
    return owner.node_id is not None or node.node_id in draft.ended_nodes


def _meet_unowned(draft: Draft, node: NodeReport, cloud_id: CloudId | None) -> None:
    """A live node on a machine without a record: adopt it; the list gets a while to show the machine."""
    if node.status is NodeStatus.DEAD or node.node_id in draft.ended_nodes:
        return
    if cloud_id is None or not node.node_type:
        draft.quarantine(
            f"node {node.node_id}", f"cloud id {cloud_id!r}, type {node.node_type!r}: cannot be managed"
        )
        return
    details = "a node runs on a machine without a record: adopted"
    _adopt_node(
        draft, node, cloud_id, details, missing_since=draft.now if draft.seen.cloud is not None else None
    )


def _meet_restarted(draft: Draft, owner: Instance, node: NodeReport) -> None:
    """The runtime was restarted on a machine: a new record takes the machine over, the old one ends."""
    state = draft.instances[owner.instance_id].state
    old = draft.nodes.get(owner.node_id or "")
    if state not in _SERVED:
        return  # the machine is leaving
    if old is not None and old.status is not NodeStatus.DEAD:
        draft.quarantine(
            f"node {node.node_id}", f"machine {owner.cloud_id} already has live node {owner.node_id}"
        )
        return
    if state is not _S.RAY_STOPPED:
        draft.move(owner, _S.RAY_STOPPED, "its node was replaced by a new one on the same machine")
    details = "the runtime was restarted on this machine"
    _adopt_node(
        draft,
        node,
        owner.cloud_id,
        details,
        price_per_hour=owner.price_per_hour,
        launch_hash=owner.launch_hash,
    )


def _adopt_node(
    draft: Draft, node: NodeReport, cloud_id: CloudId | None, details: str, **fields: object
) -> None:
    kind = NodeKind.HEAD if node.is_head else NodeKind.WORKER
    instance = draft.create(_S.ALLOCATED, node.node_type, details, kind=kind, cloud_id=cloud_id, **fields)
    _follow(draft, instance, node)


def _note_stop_failures(draft: Draft) -> None:
    """A refused drain puts the record back; a node that meanwhile vanished is dealt with as missing (W6)."""
    refused = {f.instance_id: f.message for f in draft.seen.drain_failures}
    if not refused:
        return
    for instance in draft.in_state(_S.RAY_STOP_REQUESTED):
        node = draft.nodes.get(instance.node_id or "")
        if instance.instance_id in refused and node is not None and node.status is not NodeStatus.DEAD:
            message = f"drain refused: {refused[instance.instance_id]}"
            draft.move(instance, _S.RAY_RUNNING, message, stop_cause=None)


def _note_install_failures(draft: Draft) -> None:
    failed = {f.instance_id: f.message for f in draft.seen.install_failures}
    if not failed:
        return
    for instance in draft.in_state(_S.RAY_INSTALLING):
        if instance.instance_id in failed:
            draft.move(instance, _S.RAY_INSTALL_FAILED, failed[instance.instance_id])


def _note_missing(draft: Draft, listed: Collection[str]) -> None:
    """A worker whose node is no longer listed has lost it. The head's may be late after a restart.

    A node that is listed with nonsense is not missing: it may be working.
    """
    for instance in draft.in_state(_S.RAY_RUNNING, _S.RAY_STOP_REQUESTED, _S.RAY_STOPPING):
        if instance.node_id not in listed and not is_head(instance):
            draft.move(instance, _S.RAY_STOPPED, "the runtime no longer lists its node")

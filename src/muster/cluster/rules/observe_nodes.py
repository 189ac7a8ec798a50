"""Matches runtime nodes to records: running, draining, dead, vanished, restarted, failed to stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from muster.base.ids import CloudId
from muster.cluster.model import Instance, NodeKind, NodeReport, NodeStatus, health_key
from muster.cluster.plan import Reason
from muster.cluster.rules.draft import Draft, fields_of_request, is_head
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
    """Mirrors what the runtime reports; decides nothing."""
    runtime = draft.snapshot.runtime
    if runtime is None:
        _note_install_failures(draft)
        _note_stop_failures(draft)
        draft.add_cluster_verdict(
            Reason.RUNTIME_UNREADABLE, "the runtime could not be read; nothing was concluded"
        )
        return
    draft.nodes, unclear = _readable(draft, runtime.nodes)
    all_readable = len(draft.nodes) == len(runtime.nodes)
    listed: Collection[str] = draft.nodes if all_readable else {node.node_id for node in runtime.nodes}
    draft.decided.ended_nodes = {n: at for n, at in draft.decided.ended_nodes.items() if n in listed}
    strangers = _follow_known(draft)
    _meet_strangers(draft, strangers)
    _note_install_failures(draft)  # after the nodes: a node that runs was installed
    _note_stop_failures(draft)
    _note_missing(draft, listed, unclear)
    draft.unplaced = None  # records have got their nodes


def _readable(
    draft: Draft, nodes: Iterable[NodeReport]
) -> tuple[dict[str, NodeReport], Collection[CloudId | None]]:
    """Returns the usable reports, and the machines of the others: a node may be working there."""
    result: dict[str, NodeReport] = {}
    unclear: list[CloudId] = []
    for node in nodes:
        if not node.node_id or node.status not in _TARGET:
            shown = getattr(node.status, "name", repr(node.status))
            draft.quarantine(f"node {node.node_id or '(no id)'}", f"status {shown}: ignored")
            if node.cloud_id:
                unclear.append(node.cloud_id)
            continue
        if node.node_id in result:
            draft.quarantine(f"node {node.node_id}", "reported twice: the last report counts")
        result[node.node_id] = _named(draft, node) if node.is_head else node
    if unclear:
        dead = NodeStatus.DEAD
        result = {k: n for k, n in result.items() if n.status is not dead or n.cloud_id not in unclear}
    return result, unclear


def _named(draft: Draft, head: NodeReport) -> NodeReport:
    """A head that was started by hand reports neither machine nor type.

    Its type is the cluster file's; its machine is the one listed as the head, else it has the node's name.
    """
    cloud, cloud_id = draft.snapshot.cloud, head.cloud_id
    if draft.snapshot.traits.lists_nodes or (cloud_id and head.node_type) or cloud is None:
        return head
    if not cloud_id:
        listed = [machine.cloud_id for machine in cloud.values() if machine.kind is NodeKind.HEAD]
        cloud_id = listed[0] if len(listed) == 1 else CloudId(head.node_id)
    return replace(head, cloud_id=cloud_id, node_type=head.node_type or draft.spec.head_node_type)


def _follow_known(draft: Draft) -> list[NodeReport]:
    """Follows the nodes that a record already names and returns the others."""
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
    """Moves the record to what its node shows; never backwards."""
    target = _TARGET[node.status]
    known = draft.instances[instance.instance_id]
    current = known.state
    if current is target or current in INSTANCE_MACHINE.reachable(target):
        if not known.node_id:  # a record that lost its node's name finds it again by the machine
            draft.amend(known, node_id=node.node_id)
        return
    if not INSTANCE_MACHINE.allows(current, target):
        # Too late for this machine: it timed out or failed to install and is on its way out.
        draft.quarantine(
            f"node {node.node_id}", f"came while its record is {current.name}: the machine is leaving"
        )
        return
    # The runtime knows its head best; a provider may list it as one machine among others.
    kind = NodeKind.HEAD if node.is_head else known.kind
    details = _SAID[target] if target is not _S.RAY_STOPPED else _lost(known, _SAID[target])
    draft.move(instance, target, details, node_id=node.node_id, kind=kind)
    if target is _S.RAY_RUNNING:
        # A machine that came up clears its type's failures, unless a failure is newer than its request,
        # and its offer's failed set-ups.
        of_offer = health_key(instance.node_type, instance.offer_name)
        requested = max(instance.entered(_S.REQUESTED), default=float("-inf"))
        for key in dict.fromkeys((instance.node_type, of_offer)):
            health = draft.decided.health.get(key)
            is_cleared = health is not None and (key == instance.node_type or health.is_on_trial)
            if health and is_cleared and requested > max(health.failed_at, health.timed_out_at or 0.0):
                del draft.decided.health[key]


def _lost(instance: Instance, node: str) -> str:
    return node if instance.missing_since is None else f"{node}, and the cloud no longer lists its machine"


def _meet_strangers(draft: Draft, strangers: Sequence[NodeReport]) -> None:
    if not strangers:
        return
    by_cloud: dict[CloudId, Instance] = {}
    for instance in draft.instances.values():
        if instance.cloud_id and instance.state in ON_CLOUD:
            by_cloud[instance.cloud_id] = instance
    ips: dict[str, list[Instance]] | None = None
    for node in strangers:
        cloud_id = node.cloud_id or (CloudId(node.node_id) if draft.snapshot.traits.lists_nodes else None)
        owner = by_cloud.get(cloud_id) if cloud_id else None
        if owner is None and node.ip and node.status is not NodeStatus.DEAD:
            ips = ips if ips is not None else _ips(draft, by_cloud.values())
            owner = _by_ip(draft, node, ips)
        heir: Instance | None = None
        if owner is None:
            heir = _meet_unowned(draft, node, cloud_id)
        elif node.status is not NodeStatus.DEAD and draft.instances[owner.instance_id].node_id:
            heir = _meet_restarted(draft, draft.instances[owner.instance_id], node)
        elif node.status is not NodeStatus.DEAD or not _is_older_life(draft, owner, node):
            _follow(draft, owner, node)
        if heir is not None and heir.cloud_id:
            by_cloud[heir.cloud_id] = heir  # a second new node must not get a second record


def _is_older_life(draft: Draft, owner: Instance, node: NodeReport) -> bool:
    """Returns whether this dead node lived on the machine before the record did: then it is ignored.

    A record adopted in this very tick cannot have lost a node already; the node is remembered as ended.
    """
    if owner.node_id is None and owner.instance_id not in draft.snapshot.instances:
        draft.decided.ended_nodes[node.node_id] = draft.now
    return owner.node_id is not None or node.node_id in draft.decided.ended_nodes


def _ips(draft: Draft, owners: Iterable[Instance]) -> dict[str, list[Instance]]:
    """Returns the records by every ip that is known of their machines."""
    listed, found = draft.snapshot.cloud or {}, defaultdict[str, list[Instance]](list)
    for owner in owners:
        machine = listed.get(owner.cloud_id) if owner.cloud_id else None
        known = (owner.internal_ip, owner.external_ip)
        for ip in {*known, *((machine.internal_ip, machine.external_ip) if machine else ())}:
            found[ip].append(owner)
    return found


def _by_ip(draft: Draft, node: NodeReport, ips: Mapping[str, list[Instance]]) -> Instance | None:
    """Returns the one record whose machine has the node's ip and no other live node.

    A node that names a machine which no list shows is matched to a listed machine only: ips are used again.
    """
    listed = draft.snapshot.cloud or {}
    if node.cloud_id is not None and node.cloud_id in listed:
        return None
    current = (draft.instances[i.instance_id] for i in ips.get(node.ip, ()))
    same = (i for i in current if node.cloud_id is None or i.cloud_id in listed)
    free = []
    for instance in same:
        other = draft.nodes.get(instance.node_id or "")
        has_live_node = other is not None and other.status is not NodeStatus.DEAD
        if node.node_type in ("", instance.node_type) and not has_live_node:
            free.append(instance)
    return free[0] if len(free) == 1 else None


def _meet_unowned(draft: Draft, node: NodeReport, cloud_id: CloudId | None) -> Instance | None:
    """A live node on a machine without a record: the answer to a request, or adopted until it is listed."""
    if node.status is NodeStatus.DEAD or node.node_id in draft.decided.ended_nodes:
        return None
    if cloud_id is None or not node.node_type:
        draft.quarantine(f"node {node.node_id}", _unmatched(node))
        return None
    machine = draft.snapshot.cloud.get(cloud_id) if draft.snapshot.cloud is not None else None
    if machine is not None and machine.kind is NodeKind.UNMANAGED:
        return None  # the provider lists this machine as unmanaged
    details = "a node runs on a machine without a record: adopted"
    if node.is_head or draft.snapshot.traits.lists_nodes:
        missing_since = draft.now if draft.snapshot.cloud is not None and machine is None else None
        return _adopt_node(draft, node, cloud_id, details, missing_since=missing_since)
    return _take_for_answer(draft, node, cloud_id, details)


def _take_for_answer(draft: Draft, node: NodeReport, cloud_id: CloudId, details: str) -> Instance:
    """A node that comes before its machine is listed answers a request of its type, until a list shows more.

    Without a waiting request it gets a record all the same: it may be ours, and may be somebody's own.
    """
    unseen: dict[str, object] = {"internal_ip": node.ip, "provisional": True, "missing_since": draft.now}
    waiting = _waiting(draft, node)
    if waiting is not None and waiting.state is _S.REQUESTED:
        text = "a node of its type joined before a machine was listed"
        draft.move(waiting, _S.ALLOCATED, text, cloud_id=cloud_id, **unseen)
        _follow(draft, waiting, node)
        return draft.instances[waiting.instance_id]
    if waiting is not None:
        draft.move(waiting, _S.TERMINATED, "a node of its type joined, and has a record of its own")
        unseen |= fields_of_request(waiting)
    return _adopt_node(draft, node, cloud_id, details, **unseen)


def _unmatched(node: NodeReport) -> str:
    return (
        f"type {node.node_type!r}, cloud id {node.cloud_id!r}, ip {node.ip!r}: matches no machine, so it is "
        "not managed, and no machine that may be its own is given up; start it with RAY_CLOUD_INSTANCE_ID "
        "(the id that the provider lists) and RAY_NODE_TYPE_NAME in its environment"
    )


def _waiting(draft: Draft, node: NodeReport) -> Instance | None:
    """Returns the oldest request of the node's type without a machine, or one about to be repeated.

    A node that leaves, or that is on a machine which was given up a moment ago, answers none.
    """
    if node.status is NodeStatus.DRAINING or node.cloud_id in draft.decided.ended_machines:
        return None
    asked = [
        i
        for i in draft.in_state(_S.REQUESTED, _S.QUEUED)
        if i.node_type == node.node_type and i.launch_request_id
    ]
    return min(asked, key=_rank, default=None)


def _rank(instance: Instance) -> tuple[bool, bool, tuple[float, ...]]:
    return instance.state is _S.QUEUED, instance.cancelled, instance.entered(_S.REQUESTED)


def _meet_restarted(draft: Draft, owner: Instance, node: NodeReport) -> Instance | None:
    """The runtime was restarted on a machine: a new record takes the machine over, the old one ends."""
    state = owner.state
    old = draft.nodes.get(owner.node_id or "")
    if state not in _SERVED:
        return None  # the machine is leaving
    if old is not None and old.status is not NodeStatus.DEAD:
        draft.quarantine(
            f"node {node.node_id}", f"machine {owner.cloud_id} already has live node {owner.node_id}"
        )
        return None
    if state is not _S.RAY_STOPPED:
        draft.move(owner, _S.RAY_STOPPED, "its node was replaced by a new one on the same machine")
    details = "the runtime was restarted on this machine"
    return _adopt_node(
        draft,
        node,
        owner.cloud_id,
        details,
        node_type=owner.node_type,  # the machine is still what it was bought as
        kind=NodeKind.HEAD if node.is_head else owner.kind,
        **{name: getattr(owner, name) for name in _OF_THE_MACHINE},
    )


# What a record that takes a machine over keeps of the record before it.
_OF_THE_MACHINE = (
    "price_per_hour",
    "offer",
    "launch_hash",
    "launch_request_id",
    "internal_ip",
    "external_ip",
    "missing_since",
    "provisional",
)


def _adopt_node(
    draft: Draft, node: NodeReport, cloud_id: CloudId | None, details: str, **fields: object
) -> Instance:
    known = {"kind": NodeKind.HEAD if node.is_head else NodeKind.WORKER, "node_type": node.node_type}
    terms = {**known, **fields}
    name = str(terms.pop("node_type"))
    instance = draft.create(_S.ALLOCATED, name, details, cloud_id=cloud_id, **terms)
    _follow(draft, instance, node)
    return draft.instances[instance.instance_id]


def _note_stop_failures(draft: Draft) -> None:
    """A refused drain puts the record back; a node that vanished meanwhile counts as missing.

    Refusals are reported once, so they count also when the nodes could not be read this time.
    """
    refused = {f.instance_id: f.message for f in draft.snapshot.drain_failures}
    if not refused:
        return
    is_blind = draft.snapshot.runtime is None
    for instance in draft.in_state(_S.RAY_STOP_REQUESTED):
        node = draft.nodes.get(instance.node_id or "")
        is_alive = is_blind or (node is not None and node.status is not NodeStatus.DEAD)
        if instance.instance_id in refused and instance.node_id and is_alive:
            message = f"drain refused: {refused[instance.instance_id]}"
            draft.move(instance, _S.RAY_RUNNING, message, stop_cause=None)


def _note_install_failures(draft: Draft) -> None:
    """Give up machines that could not be set up, where a report shows that no node runs there.

    The last command may start the node although its answer is lost: until then the failure waits.
    """
    for failure in draft.snapshot.install_failures:
        instance = draft.instances.get(failure.instance_id)
        if instance is None or instance.state is not _S.RAY_INSTALLING:
            continue
        if draft.snapshot.runtime is None or draft.may_work_unseen(instance):
            draft.decided.undecided.append(failure)
        else:
            draft.move(instance, _S.RAY_INSTALL_FAILED, failure.message)


def _note_missing(draft: Draft, listed: Collection[str], unclear: Collection[CloudId | None]) -> None:
    """A worker whose node is no longer listed has lost it. The head's may be late after a restart.

    A node that is listed with unusable data is not missing: it may be working. A report without the head's
    own node is incomplete (the runtime has just restarted): nothing is concluded from what it lacks.
    """
    serving = draft.in_state(_S.RAY_RUNNING, _S.RAY_STOP_REQUESTED, _S.RAY_STOPPING)
    missing = [instance for instance in serving if instance.node_id not in listed]
    if any(is_head(i) and i.state is _S.RAY_RUNNING for i in missing):
        draft.quarantine("runtime", "the report lacks the head's own node, so no node counts as missing")
        return
    for instance in missing:
        if instance.cloud_id not in unclear and not is_head(instance):
            if not instance.node_id:
                draft.quarantine(
                    f"record {instance.instance_id}",
                    f"{instance.state.name} without a node id, and no node is on its machine",
                )
            draft.move(instance, _S.RAY_STOPPED, _lost(instance, "the runtime no longer lists its node"))

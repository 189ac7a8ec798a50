"""Match runtime nodes to records: running, draining, dead, vanished, restarted, failed to stop."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from muster.base.ids import CloudId
from muster.cluster.identity import is_of_type, known_ips, unreported_since
from muster.cluster.model import Instance, NodeKind, NodeReport, NodeStatus, StopCause, health_key
from muster.cluster.plan import Reason, drain_of
from muster.cluster.rules.draft import MISSED_S, SERVING, Draft, fields_of_request, is_head
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
    """Mirror what the runtime reports; decides nothing."""
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
    _move_misplaced(draft)
    strangers = _follow_known(draft)
    _meet_strangers(draft, strangers)
    _note_stop_failures(draft)
    draft.note_unplaced(_note_missing(draft, listed, unclear), bool(strangers) or not all_readable)
    _note_install_failures(draft)  # after the nodes: one that runs was installed, one may be left out


def _readable(
    draft: Draft, nodes: Iterable[NodeReport]
) -> tuple[dict[str, NodeReport], Collection[CloudId | None]]:
    """Return the usable reports, and the machines of the others: a node may be working there."""
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


def _move_misplaced(draft: Draft) -> None:
    """Move nodes that name another machine to the one that has their ip, once that machine is listed."""
    listed = draft.snapshot.cloud or {}
    waiting: dict[str, Instance] = {}
    for instance in draft.in_state(_S.ALLOCATED, _S.RAY_INSTALLING):
        machine = listed.get(instance.cloud_id) if instance.cloud_id else None
        if machine is not None and machine.internal_ip and not instance.node_id:
            waiting[machine.internal_ip] = instance
    if not waiting:
        return
    holders = {i.node_id: i for i in draft.instances.values() if i.node_id}
    for node in draft.nodes.values():
        right = waiting.get(node.ip)
        wrong = holders.get(node.node_id) if right is not None else None
        if right is None or wrong is None or node.status is NodeStatus.DEAD or is_head(wrong):
            continue
        is_gone = wrong.state not in SERVING and wrong.cloud_id not in listed  # and its ip is used again
        is_elsewhere = wrong.provisional or is_gone or node.ip not in known_ips(wrong, listed)
        if is_elsewhere and node.node_type in ("", right.node_type):
            if node.cloud_id != right.cloud_id:
                _name_wrong_id(draft, node)
            if wrong.state in SERVING:
                left = {"node_id": None, "stop_cause": None}  # a drain was one of that node
                draft.move(wrong, _S.RAY_STOPPED, "its node runs on another machine", **left)
            else:
                draft.amend(wrong, node_id=None)
            _follow(draft, right, node)


def _name_wrong_id(draft: Draft, node: NodeReport) -> None:
    draft.quarantine(
        f"node {node.node_id}",
        f"names the machine {node.cloud_id} and has the ip {node.ip} of another one, on which it is taken to "
        "run; if its image was made of a running node, remove RAY_CLOUD_INSTANCE_ID from the image",
    )


def _follow_known(draft: Draft) -> list[NodeReport]:
    """Follow the nodes that a record already names and returns the others."""
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
    owners = _Owners(draft)
    for node in strangers:
        owner, cloud_id = owners.find(node)
        heir: Instance | None = None
        known = owner and draft.instances[owner.instance_id]
        if owner is None or known is None:
            heir = _meet_unowned(draft, node, cloud_id)
        elif node.status is not NodeStatus.DEAD and (known.node_id or known.state is _S.RAY_STOPPED):
            heir = _meet_restarted(draft, known, node)
        elif node.status is not NodeStatus.DEAD or not _is_older_life(draft, owner, node):
            _follow(draft, owner, node)
        if heir is not None and heir.cloud_id:
            owners.by_cloud[heir.cloud_id] = heir  # a second new node must not get a second record


class _Owners:
    """The records by their machines' cloud ids and ips, to find the one whose machine a node is on."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._listed = draft, draft.snapshot.cloud or {}
        on_cloud = (i for i in draft.instances.values() if i.cloud_id and i.state in ON_CLOUD)
        self.by_cloud: dict[CloudId | None, Instance] = {i.cloud_id: i for i in on_cloud}
        last = {name for name, i in self.by_cloud.items() if i.missing_since is None}
        self._shown: Collection[CloudId | None] = last if draft.snapshot.cloud is None else self._listed

    @cached_property
    def _ips(self) -> Mapping[str, list[Instance]]:
        found = defaultdict[str, list[Instance]](list)
        for owner in self.by_cloud.values():
            for ip in known_ips(owner, self._listed):
                found[ip].append(owner)
        return found

    @cached_property
    def _claims(self) -> Counter[CloudId | None]:
        """How many live nodes name each machine."""
        return Counter(n.cloud_id for n in self._draft.nodes.values() if n.status is not NodeStatus.DEAD)

    def find(self, node: NodeReport) -> tuple[Instance | None, CloudId | None]:
        """Return the record whose machine the node is on, and the machine that it names, if that is one."""
        is_listing = self._draft.snapshot.traits.lists_nodes
        cloud_id = node.cloud_id or (CloudId(node.node_id) if is_listing else None)
        named = self.by_cloud.get(cloud_id) if cloud_id else None
        is_dead = node.status is NodeStatus.DEAD
        if not node.ip or (is_dead if named is None else node.ip == named.internal_ip):
            return named, cloud_id
        if named is None:
            found = self._by_ip(node)
            return found, None if found is None and self._is_second(node) else cloud_id
        is_of_named = is_of_type(node.node_type, named, self._listed) and (is_head(named) or not node.is_head)
        own = self._draft.nodes.get(named.node_id or "")  # the one before, perhaps
        ips = known_ips(named, self._listed) or ({own.ip} - {""} if own is not None else set())
        if node.ip in ips or (not ips and (is_of_named or node.ip not in self._ips)):
            return named, cloud_id
        if is_dead:
            return None, None
        # An id that several nodes have at once proves nothing: an image was made of a running machine. Nor
        # does one of a machine with another address, if its type differs or its own machine may be another.
        found = self._by_ip(replace(node, cloud_id=None))
        waiting = (i for i in self.by_cloud.values() if not i.node_id and not known_ips(i, self._listed))
        is_unsure = any(is_of_type(node.node_type, i, self._listed) for i in waiting)
        is_of_named = is_of_named and node.node_type in ("", named.node_type) and not is_unsure
        if found is None and is_of_named and self._claims[node.cloud_id] < 2:
            return named, cloud_id
        _name_wrong_id(self._draft, node)
        return found, None

    def _by_ip(self, node: NodeReport) -> Instance | None:
        """Return the one record whose machine has the node's ip and no other live node.

        Ips are used again, so a listed machine comes first. A node that names a machine which no list shows
        is matched to a listed one only.
        """
        if node.cloud_id is not None and node.cloud_id in self._shown:
            return None
        free = []
        owners = (self.by_cloud[i.cloud_id] for i in self._ips.get(node.ip, ()))  # by now, perhaps an heir
        for instance in (self._draft.instances[i.instance_id] for i in owners):
            other = self._draft.nodes.get(instance.node_id or "")
            has_live_node = other is not None and other.status is not NodeStatus.DEAD
            if is_of_type(node.node_type, instance, self._listed) and not has_live_node:
                free.append(instance)
        shown = [i for i in free if i.cloud_id in self._shown]
        found = shown or (free if node.cloud_id is None else [])
        return found[0] if len(found) == 1 else None

    def _is_second(self, node: NodeReport) -> bool:
        """Return whether it names a machine that no list shows, and has the ip of one with another node."""
        known = (i for i in self._ips.get(node.ip, ()) if i.cloud_id in self._shown and not node.is_head)
        is_named = node.cloud_id is None or node.cloud_id in self._shown
        return not is_named and any(is_of_type(node.node_type, i, self._listed) for i in known)


def _is_older_life(draft: Draft, owner: Instance, node: NodeReport) -> bool:
    """Return whether this dead node lived on the machine before the record did: then it is ignored.

    A record adopted in this very tick cannot have lost a node already; the node is remembered as ended.
    """
    if owner.node_id is None and owner.instance_id not in draft.snapshot.instances:
        draft.decided.ended_nodes[node.node_id] = draft.now
    return owner.node_id is not None or node.node_id in draft.decided.ended_nodes


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
        draft.move(waiting, _S.TERMINATED, "a node of its type joined, and has its own record")
        unseen |= fields_of_request(waiting)
    return _adopt_node(draft, node, cloud_id, details, **unseen)


def _unmatched(node: NodeReport) -> str:
    return (
        f"type {node.node_type!r}, cloud id {node.cloud_id!r}, ip {node.ip!r}: matches no machine, so it is "
        "not managed, and no machine that may be its own is given up; start it with RAY_CLOUD_INSTANCE_ID "
        "(the id that the provider lists) and RAY_NODE_TYPE_NAME in its environment"
    )


def _waiting(draft: Draft, node: NodeReport) -> Instance | None:
    """Return the oldest request of the node's type without a machine, or one about to be repeated.

    A node that leaves, or that is on a machine which was given up a moment ago, answers none.
    """
    if node.status is NodeStatus.DRAINING or node.cloud_id in draft.decided.ended_machines:
        return None
    asked = (i for i in draft.in_state(_S.REQUESTED, _S.QUEUED) if i.launch_request_id)
    own = (i for i in asked if i.node_type == node.node_type)
    return min(own, key=lambda i: (i.state is _S.QUEUED, i.cancelled, i.entered(_S.REQUESTED)), default=None)


def _meet_restarted(draft: Draft, owner: Instance, node: NodeReport) -> Instance | None:
    """The runtime was restarted on a machine: a new record takes the machine over, the old one ends."""
    state = owner.state
    old = draft.nodes.get(owner.node_id or "")
    if state not in _SERVED:  # the machine is leaving: work that the node takes would end with it
        is_new = node.status is not NodeStatus.DRAINING and not (node.is_head or is_head(owner))
        if state is _S.TERMINATING and is_new and not draft.snapshot.traits.read_only:
            new, left_s = replace(owner, node_id=node.node_id), draft.spec.timeouts.drain_deadline_s
            draft.act(drain_of(new, draft.fresh("d"), StopCause.NOTICE, left_s, "its machine is terminated"))
        return None
    if old is not None and old.status is not NodeStatus.DEAD:
        draft.quarantine(
            f"node {node.node_id}", f"machine {owner.cloud_id} already has live node {owner.node_id}"
        )
        return None
    if state is not _S.RAY_STOPPED:
        draft.move(owner, _S.RAY_STOPPED, "its node was replaced by a new one on the same machine")
    kept = {name: getattr(owner, name) for name in _OF_THE_MACHINE}
    kept["kind"] = NodeKind.HEAD if node.is_head else owner.kind
    return _adopt_node(draft, node, owner.cloud_id, "the runtime was restarted on this machine", **kept)


# What a record that takes a machine over keeps of the record before it.
_OF_THE_MACHINE = (
    "node_type",
    "price_per_hour",
    "offer",
    "launch_hash",
    "launch_request_id",
    "requested_at",
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


def _note_missing(draft: Draft, listed: Collection[str], unclear: Collection[CloudId | None]) -> bool:
    """A record whose node the reports lack for longer than a grace, or twice after a drain, has lost it.

    A node that is listed with unusable data is not missing: it may be working. A report without any head's
    node is incomplete (the runtime has just restarted): nothing is concluded from what it lacks. One with
    another head's node shows that the head was replaced, whatever the provider still lists.
    """
    serving = draft.in_state(*SERVING)
    missing = [instance for instance in serving if instance.node_id not in listed]
    is_headless = any(is_head(i) and i.state is _S.RAY_RUNNING for i in missing)
    if is_headless and not any(n.is_head and n.status is not NodeStatus.DEAD for n in draft.nodes.values()):
        draft.quarantine("runtime", "the report lacks the head's own node, so no node counts as missing")
        return False
    before, grace_s = draft.decided.unreported, draft.spec.timeouts.listing_grace_s
    # Reports that leave out now these nodes and now those are incomplete: the grace begins again.
    is_back = bool(before) and any(i.instance_id in before for i in serving if i.node_id in listed)
    stopped = {i.instance_id for i in draft.in_state(_S.RAY_STOPPED)} if before else set()
    unreported = {name: times for name, times in before.items() if name in stopped}
    for instance in missing:
        if instance.cloud_id in unclear:
            continue
        times = before.get(instance.instance_id)
        first = draft.now if times is None else times[2]
        known = None if times is None or (is_back and draft.now - first <= MISSED_S) else times[:2]
        since = unreported_since(known, draft.now, grace_s)
        unreported[instance.instance_id] = (since, draft.now, first)
        is_drained = instance.state is not _S.RAY_RUNNING and known is not None  # expected: two reports do
        if is_drained or draft.now - since > grace_s or not instance.node_id:
            _give_up_node(draft, instance)
    draft.decided.unreported = unreported
    return True


def _give_up_node(draft: Draft, instance: Instance) -> None:
    if not instance.node_id:
        draft.quarantine(
            f"record {instance.instance_id}",
            f"{instance.state.name} without a node id, and no node is on its machine",
        )
    lost = "another node is the head now" if is_head(instance) else "the runtime no longer lists its node"
    draft.move(instance, _S.RAY_STOPPED, _lost(instance, lost))

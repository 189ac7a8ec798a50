"""Decide which machine a node may be on, and which type a machine was requested as, where tags and ids lie.

Used by the rules that match machines, nodes and records; pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, Instance, NodeKind, NodeStatus, NodeType, RuntimeReport
from muster.cluster.plan import base_id
from muster.cluster.snapshot import UnplacedNode
from muster.cluster.states import InstanceState

Machines = Mapping[CloudId, CloudInstance]


def known_ips(instance: Instance, cloud: Machines) -> set[str]:
    """Return the addresses of the record's machine, of the record and of the list."""
    machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
    listed = (machine.internal_ip, machine.external_ip) if machine is not None else ()
    return {instance.internal_ip, instance.external_ip, *listed} - {""}


def is_of_type(node_type: str, instance: Instance, cloud: Machines) -> bool:
    """Return whether a node of this type, with the ip of the record's machine, may be on it.

    The type of a machine that answers no request of ours is what its tag says, which may be wrong; that of a
    record which a node of another machine had named may be that node's. Without a tag it is one of those
    requested.
    """
    machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
    listed_type = machine.node_type if machine is not None else instance.node_type
    is_guessed = listed_type in ("", node_type) or instance.launch_request_id is None
    return is_guessed or node_type in ("", instance.node_type)


def may_be_on(node: UnplacedNode, instance: Instance, cloud: Machines) -> bool:
    """Two of three things speak for another machine: the node's id, its ip, and that it has no type.

    The id of a listed machine is enough, unless that one has another ip: an image was made of it. A cloned
    id counts only against a machine that lists lack.
    """
    if node.cloud_id and node.cloud_id == instance.cloud_id:
        return True
    named = cloud.get(node.cloud_id) if node.cloud_id else None
    if named is not None and node.ip in ("", named.internal_ip or node.ip, named.external_ip):
        return False
    machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
    ip = (machine.internal_ip if machine else "") or instance.internal_ip
    if ip and ip == node.ip and (named is not None or not node.cloud_id):
        return is_of_type(node.node_type, instance, cloud)
    is_other = bool(node.cloud_id) or (node.has_clone and instance.missing_since is not None)
    doubts = is_other + bool(ip and node.ip and ip != node.ip) + (not node.node_type)
    listed_type = machine.node_type if machine else ""
    return node.node_type in ("", instance.node_type, listed_type) and doubts < 2


def was_elsewhere(
    node: UnplacedNode, instance: Instance, cloud: Machines, lost_at: float, grace_s: float
) -> bool:
    """Return whether the node was there next to the record's own node, or before its machine was requested.

    A machine has one node at a time. The end of the one before, at `lost_at`, may be noticed a little later.
    Where an id was cloned, only an address proves that it was this machine's.
    """
    if instance.node_id:
        is_proven = not node.has_clone or bool(known_ips(instance, cloud))
        return is_proven and lost_at - node.since > grace_s
    machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
    tag = base_id(machine.request_id) if machine is not None and machine.request_id else None
    asked_at = instance.requested_at
    return asked_at is not None and tag == instance.launch_request_id and node.since < asked_at


def find_unplaced(
    report: RuntimeReport,
    records: Collection[Instance],
    before: Mapping[str, UnplacedNode],
    cloud: Machines,
    now: float,
    grace_s: float,
) -> dict[str, UnplacedNode]:
    """Return the live nodes that are on no known machine, and those of `before` that just this report lacks.

    A cloud id proves nothing where that machine has another node, or another node has it, too: an image was
    made of a running machine. Then the machine is the one that has the node's ip, if the list shows just one.
    A node whose machine no list has shown may have a cloned id, and be on a machine whose ip is not known.
    """
    placed = {i.node_id: i.cloud_id for i in records if not i.provisional}
    live = [n for n in report.nodes if n.status is not NodeStatus.DEAD]
    by_ip = dict[str, CloudId | None]()
    for m in cloud.values():
        by_ip[m.internal_ip] = None if m.internal_ip in by_ip or not m.internal_ip else m.cloud_id
    there = [n for n in live if n.node_id in placed]
    claimed = {None, *(n.cloud_id for n in there), *(placed[n.node_id] for n in there)}
    # One with the ip of another machine than its record's is on that one, and cannot always be moved there.
    left = [n for n in live if n.node_id not in placed or by_ip.get(n.ip) not in (None, placed[n.node_id])]
    found: dict[str, UnplacedNode] = {
        n.node_id: UnplacedNode(
            since=before[n.node_id].since if n.node_id in before else now,
            node_type=n.node_type,
            cloud_id=by_ip.get(n.ip) if n.cloud_id in claimed else n.cloud_id,
            ip=n.ip,
            has_clone=n.cloud_id is not None and n.cloud_id in claimed,
        )
        for n in left
    }
    reported = {n.node_id for n in report.nodes} if before else set()
    for name, node in before.items():
        since = unreported_since(node.unreported, now, grace_s)
        if name not in reported and name not in placed and now - since <= grace_s:
            found[name] = replace(node, unreported=(since, now))
    return found


def unreported_since(known: tuple[float, float] | None, now: float, grace_s: float) -> float:
    """Return since when reports lack something; `known` are the first and the newest one that did.

    Of the time between two reports at most the grace counts: nobody looked, and the clock may be wrong.
    """
    since, looked_at = known or (now, now)
    return since + max(0.0, now - looked_at - grace_s)


# Of each request: its node types with their launch hashes, and how many records still wait.
RequestedTypes = dict[RequestId, Counter[tuple[str, str]]]


def requested_types(records: Iterable[Instance], machines: Iterable[CloudInstance]) -> RequestedTypes:
    """Return what each request still waits for, without the machines that are listed as it."""
    types: RequestedTypes = {}
    for record in records:
        if record.launch_request_id:
            waits = record.state in (InstanceState.REQUESTED, InstanceState.QUEUED)
            kind = record.node_type, record.launch_hash
            types.setdefault(record.launch_request_id, Counter())[kind] += waits
    for machine in machines:
        asked = types.get(base_id(machine.request_id)) if machine.request_id else None
        kind = machine.node_type, machine.launch_hash
        if asked and kind in asked:
            asked[kind] -= 1
    return types


def type_of(machine: CloudInstance, config: Mapping[str, NodeType]) -> str:
    """Return the machine's type: the one that has its launch hash, else what its tag says.

    Only what we launched has a request id, and the hash of its type.
    """
    alike = [t.name for t in config.values() if t.launch_hash and t.launch_hash == machine.launch_hash]
    is_ours = machine.request_id is not None and machine.kind is not NodeKind.UNMANAGED
    return alike[0] if is_ours and len(alike) == 1 else machine.node_type


def as_requested(
    machine: CloudInstance, types: RequestedTypes, config: Mapping[str, NodeType]
) -> CloudInstance:
    """Return the machine with the type that was requested, where its type tag was lost or changed."""
    asked = types.get(base_id(machine.request_id)) if machine.request_id else None
    own = type_of(machine, config)
    if own != machine.node_type:
        return replace(machine, node_type=own)
    if not asked or machine.kind is NodeKind.UNMANAGED or any(own == name for name, _ in asked):
        return machine
    kind = max(asked, key=lambda kind: (kind[1] == machine.launch_hash, asked[kind]))
    is_unsure = own in config and kind[1] != machine.launch_hash
    if is_unsure and (config[own].launch_hash in ("", machine.launch_hash) or asked[kind] <= 0):
        return machine
    asked[kind] -= 1
    return replace(machine, node_type=kind[0])

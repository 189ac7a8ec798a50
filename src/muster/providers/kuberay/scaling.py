"""Build the one JSON patch that asks KubeRay for more pods and names those to delete. Pure.

Groups do not wait for each other, and a deletion under way stops nothing: the operator deletes every name in
a group's `workersToDelete` and makes pods up to `replicas`, whichever comes first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from muster.base.ids import RequestId
from muster.cluster.plan import attempt_of
from muster.providers.kuberay.pods import Pod

REQUESTS = "muster/requests"  # annotation of the RayCluster: launches that are in its replicas already
REMEMBERED = 40
_ABSENT_REPLICAS = 1  # KubeRay's default

Plain = Mapping[str, Any]
Operation = dict[str, Any]


class WorkerGroup(Struct, frozen=True, kw_only=True):
    """The part of a `workerGroupSpecs` entry that is about its size."""

    index: int
    name: str
    replicas: int | None = None
    least: int = 0
    most: int | None = None
    hosts: int = 1
    strategy: Plain | None = None  # None: the group has no `scaleStrategy`
    suspended: bool = False

    @property
    def current(self) -> int:
        return _ABSENT_REPLICAS if self.replicas is None else self.replicas

    @property
    def to_delete(self) -> tuple[str, ...]:
        """Return the names that the operator is to delete."""
        named = (self.strategy or {}).get("workersToDelete") or ()
        return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()

    @property
    def gates(self) -> tuple[str, ...]:
        """Return who forbids that the group grows; a gate that cannot be read forbids it as well."""
        listed = (self.strategy or {}).get("scaleGate") or []
        gates = listed if isinstance(listed, list) else [listed]
        return tuple(str(one.get("name") if isinstance(one, Mapping) else one) for one in gates)


def worker_groups(cluster: Plain) -> dict[str, WorkerGroup]:
    """Return the groups of a RayCluster by name; what cannot be read is left out, and so is left alone."""
    spec = cluster.get("spec")
    listed = spec.get("workerGroupSpecs") if isinstance(spec, Mapping) else None
    found: dict[str, WorkerGroup] = {}
    for index, group in enumerate(listed if isinstance(listed, list) else ()):
        name = group.get("groupName") if isinstance(group, Mapping) else None
        if isinstance(name, str) and name:
            strategy = group.get("scaleStrategy")
            least, most = _count(group.get("minReplicas")) or 0, _count(group.get("maxReplicas"))
            found[name] = WorkerGroup(
                index=index,
                name=name,
                replicas=_count(group.get("replicas")),
                least=least if most is None else min(least, most),  # as the operator cuts it
                most=most,
                hosts=max(1, _count(group.get("numOfHosts")) or 1),
                strategy=strategy if isinstance(strategy, Mapping) else None,
                suspended=group.get("suspend") is True,
            )
    return found


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class PatchRequest(Struct, frozen=True, kw_only=True):
    """All that is asked for at once: launches by request, and pods to end."""

    launches: Mapping[RequestId, Mapping[str, int]] = field(default_factory=dict)
    ends: Collection[str] = ()
    spare: Mapping[str, int] = field(default_factory=dict)  # per group: pods that come and nobody waits for
    gone: Mapping[str, int] = field(default_factory=dict)  # per group: pods to end that ended by themselves
    unlisted: Collection[str] = ()  # pods that the loop did not know of: for it they still come


class ScalePatch(Struct, frozen=True, kw_only=True):
    """The patch, and what it leaves open."""

    operations: tuple[Operation, ...] = ()
    refused: Mapping[RequestId, Mapping[str, int]] = field(default_factory=dict)  # pods above maxReplicas
    # Of groups that are not there, and of groups with a gate.
    unknown: Mapping[RequestId, Mapping[str, int]] = field(default_factory=dict)
    gated: Mapping[RequestId, Mapping[str, int]] = field(default_factory=dict)
    ownerless: Mapping[str, str] = field(default_factory=dict)  # to end, of groups that are not there
    held: frozenset[str] = frozenset()  # to end, but other hosts of their slice are in use
    spare: Mapping[str, int] = field(default_factory=dict)


def scale_patch(cluster: Plain, pods: Mapping[str, Pod], request: PatchRequest) -> ScalePatch:
    """Return the patch that turns the cluster as it is into the one asked for."""
    builder = _Builder(cluster, pods, request)
    for group in builder.groups.values():
        builder.change(group)
    builder.remember()
    return builder.result()


def applied_requests(cluster: Plain) -> tuple[str, ...]:
    """Return the launches that an earlier patch has asked for, oldest first."""
    metadata = cluster.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = notes.get(REQUESTS) if isinstance(notes, Mapping) else None
    return tuple(text.split()) if isinstance(text, str) else ()


def guards(cluster: Plain, operations: Sequence[Operation], *, by_version: bool) -> list[Operation]:
    """Return the operations behind tests that refuse the patch when the object is another by now.

    By version every change of the object counts, also of its status. By value only what is written counts:
    for clusters whose operator writes the status faster than a patch can follow. No value shows that a
    `scaleStrategy` is still missing, and a gate that another controller adds meanwhile must stay.
    """
    tests: list[Operation] = []
    if by_version or any(operation["path"].endswith("/scaleStrategy") for operation in operations):
        version = cluster.get("metadata", {}).get("resourceVersion", "")
        return [_op("test", "/metadata/resourceVersion", version), *operations]
    listed = cluster["spec"]["workerGroupSpecs"]
    for operation in operations:
        parts = operation["path"].split("/")
        if parts[1] != "spec":
            continue
        group, value = listed[int(parts[3])], listed[int(parts[3])]
        tests.append(_op("test", "/".join([*parts[:4], "groupName"]), group.get("groupName")))
        for key in parts[4:]:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            tests.append(_op("test", operation["path"], value))
    return [*tests, *operations]


class _Builder:
    """Collects the operations of one patch."""

    def __init__(self, cluster: Plain, pods: Mapping[str, Pod], request: PatchRequest) -> None:
        self._cluster, self._pods = cluster, pods
        self.groups = worker_groups(cluster)
        done = set(applied_requests(cluster))
        self._launches = {r: dict(shape) for r, shape in request.launches.items() if r not in done}
        self._fresh = tuple(self._launches)
        self._ends = frozenset(request.ends)
        self._spare, self._gone = dict(request.spare), request.gone
        self._unlisted = frozenset(request.unlisted)
        self._operations: list[Operation] = []
        self._refused: dict[RequestId, dict[str, int]] = {}
        self._gated: dict[RequestId, dict[str, int]] = {}
        self._held: set[str] = set()
        named = {name for group in self.groups.values() for name in group.to_delete}
        self._living: dict[str, list[Pod]] = {}
        for pod in pods.values():
            if pod.is_worker and pod.is_living and pod.name not in named:
                self._living.setdefault(pod.group, []).append(pod)

    def change(self, group: WorkerGroup) -> None:
        """Add what one group needs."""
        asked = {r: shape[group.name] for r, shape in self._launches.items() if shape.get(group.name)}
        if group.suspended or group.gates:
            for request_id, count in asked.items():
                refused = self._refused if group.suspended else self._gated
                refused.setdefault(request_id, {})[group.name] = count
            asked = {}
        if group.suspended:
            return
        going = self._going(group)
        # How many replicas the pods are; a pod without a slice is one.
        counted = Counter(pod.replica or pod.name for pod in going)
        replicas = self._replicas(group, asked, len(counted))
        pending = [name for name in group.to_delete if name in self._pods]
        names = [*pending, *(pod.name for pod in going)]
        self._set(group, "replicas", replicas, group.replicas, changed=replicas != group.current)
        if tuple(names) != group.to_delete:  # alone: other fields of the strategy have other owners
            if group.strategy is None:
                self._set(group, "scaleStrategy", {"workersToDelete": names}, None, changed=True)
            else:
                before = group.strategy.get("workersToDelete")
                self._set(group, "scaleStrategy/workersToDelete", names, before, changed=True)

    def _going(self, group: WorkerGroup) -> list[Pod]:
        """Return the pods to name: whole slices only, once all their hosts may go."""
        living = self._living.get(group.name, [])
        wanted = [pod for pod in living if pod.name in self._ends]
        if group.hosts == 1:
            return wanted
        used = {pod.replica for pod in living if pod.replica and pod.name not in self._ends}
        self._held |= {pod.name for pod in wanted if pod.replica in used}
        return [pod for pod in wanted if pod.replica not in used]

    def _replicas(self, group: WorkerGroup, asked: Mapping[RequestId, int], fewer: int) -> int:
        """Return the new replicas. What the operator makes for a minimum above them nobody has asked for."""
        gone = self._gone.get(group.name, 0)
        if not asked and not fewer and not gone:
            return group.current
        pods = self._living.get(group.name, ())
        living, unlisted = len(pods), sum(pod.name in self._unlisted for pod in pods)
        base = max(group.current, group.least, math.ceil(living / group.hosts))
        most = base if group.most is None else min(base, group.most)
        coming = max(0, most * group.hosts - living + unlisted)
        # A request that is made again after a while waits for pods that are in the replicas already.
        again = min(coming, sum(count for r, count in asked.items() if attempt_of(r) > 1))
        for_minimum = max(0, group.least - group.current) * group.hosts
        spare = min(self._spare.get(group.name, 0) + for_minimum, coming - again)
        wanted = sum(asked.values()) - again
        launched = wanted - min(spare, wanted)
        more = math.ceil(launched / group.hosts)
        total = base + more - fewer
        over = 0 if group.most is None else max(0, total - group.most)
        granted = more - min(over, more)
        refused = min((more - granted) * group.hosts, launched)
        self._refuse(group, asked, refused)
        left = spare - (wanted - launched) + granted * group.hosts - (launched - refused)
        # The operator replaces a pod that ended before it was named, as one whose node was drained does. When
        # the loop knows the replacement already, it stays above the replicas until the loop ends it.
        replaced = min(gone, max(0, left)) if asked else gone
        lost = min(replaced, max(0, total - over - group.least) * group.hosts) // group.hosts
        self._spare[group.name] = left - lost * group.hosts
        total = max(0, total - over - lost)
        # The owner of a gate may have lowered the replicas below the pods that are there.
        return min(total, group.current) if group.gates else total

    def _refuse(self, group: WorkerGroup, asked: Mapping[RequestId, int], count: int) -> None:
        """The newest requests are the ones that are too many."""
        for request_id in reversed(list(asked)):
            cut = min(count, asked[request_id])
            if cut > 0:
                self._refused.setdefault(request_id, {})[group.name] = cut
                count -= cut

    def _set(self, group: WorkerGroup, key: str, value: object, before: object, *, changed: bool) -> None:
        if changed:
            op = "add" if before is None else "replace"
            self._operations.append(_op(op, f"/spec/workerGroupSpecs/{group.index}/{key}", value))

    def remember(self) -> None:
        """Write the launches into the object they change, so that a repeated one asks for nothing more."""
        granted = [r for r in self._fresh if any(self._granted(r).values())]
        if not granted or not self._operations:
            return
        notes = self._cluster.get("metadata", {}).get("annotations")
        text = " ".join([*applied_requests(self._cluster), *granted][-REMEMBERED:])
        if isinstance(notes, Mapping):
            path = f"/metadata/annotations/{REQUESTS.replace('/', '~1')}"
            self._operations.append(_op("add", path, text))
        else:
            self._operations.append(_op("add", "/metadata/annotations", {REQUESTS: text}))

    def _granted(self, request_id: RequestId) -> dict[str, int]:
        refused, gated = self._refused.get(request_id, {}), self._gated.get(request_id, {})
        shape = self._launches[request_id].items()
        return {
            name: count - refused.get(name, 0) - gated.get(name, 0)
            for name, count in shape
            if name in self.groups
        }

    def result(self) -> ScalePatch:
        unknown = {
            request_id: {name: count for name, count in shape.items() if name not in self.groups}
            for request_id, shape in self._launches.items()
        }
        return ScalePatch(
            operations=tuple(self._operations),
            refused=self._refused,
            gated=self._gated,
            unknown={request_id: shape for request_id, shape in unknown.items() if shape},
            ownerless={
                name: pod.group
                for name, pod in self._pods.items()
                if name in self._ends and pod.is_living and pod.is_worker and pod.group not in self.groups
            },
            held=frozenset(self._held),
            spare={name: count for name, count in self._spare.items() if count > 0},
        )


def _op(op: str, path: str, value: object) -> Operation:
    return {"op": op, "path": path, "value": value}

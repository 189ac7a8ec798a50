"""Apply, describe and delete a RayCluster from outside, for `muster up`, `status`, `why` and `down`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from muster.base.clock import Clock, SystemClock
from muster.errors import ClusterError
from muster.providers.kuberay.client import APPLY_PATCH, KubeClient, KubeError, KubePaths, with_query
from muster.providers.kuberay.pods import CLUSTER_LABEL, Pod, read_plain
from muster.providers.kuberay.provider import why_untouched
from muster.providers.kuberay.ray_cluster import HEAD_GROUP
from muster.providers.kuberay.scaling import WorkerGroup, worker_groups

TRIES = 5
FIELD_MANAGER = "muster-up"
_OF_THE_AUTOSCALER = ("replicas", "scaleStrategy")  # what an applied file does not take back
_NOT_FOUND, _CONFLICT = 404, 409

Plain = Mapping[str, Any]


class PodRow(Struct, frozen=True, kw_only=True):
    """One pod for users: its state, and why it is in it."""

    name: str
    group: str
    state: str
    detail: str = ""
    ip: str = ""


class GroupRow(Struct, frozen=True, kw_only=True):
    """One group for users; counts are of pods, replicas of replicas."""

    name: str
    replicas: int
    least: int
    most: int | None
    hosts: int
    states: Mapping[str, int]
    to_delete: tuple[str, ...] = ()


class RayClusterReport(Struct, frozen=True, kw_only=True):
    """A RayCluster as the API server shows it."""

    name: str
    namespace: str
    untouched: str  # why nothing is scaled; "": it is
    groups: tuple[GroupRow, ...]
    pods: tuple[PodRow, ...]

    @property
    def head_pod(self) -> str:
        """Return the name of the head's pod; a placeholder while there is none."""
        return next((pod.name for pod in self.pods if pod.group == HEAD_GROUP), "POD-OF-THE-HEAD")


class RayClusterManager:
    """Works on one RayCluster."""

    def __init__(self, client: KubeClient, paths: KubePaths, clock: Clock | None = None) -> None:
        self._client, self._paths, self._clock = client, paths, clock or SystemClock()

    def apply(self, manifest: Plain) -> str:
        """Make the object what the file says; returns whether it was created, changed, or is as it was.

        Server-side apply removes what an earlier file of muster had and this one has not. The replicas of
        groups that are there already are the autoscaler's, and stay.
        """
        path = with_query(self._paths.ray_cluster, {"fieldManager": FIELD_MANAGER, "force": "true"})
        for _ in range(TRIES):
            found = self.find()
            try:
                changed = self._client.patch(path, applied(manifest, found, self._paths), APPLY_PATCH)
                before = None if found is None else found["metadata"].get("resourceVersion")
                is_same = before == changed["metadata"].get("resourceVersion")
                return "created" if found is None else "as it was" if is_same else "changed"
            except KubeError as error:
                if error.code != _CONFLICT:
                    raise
        raise ClusterError(
            f"RayCluster {self._paths.cluster} was changed by others {TRIES} times meanwhile: try again"
        )

    def find(self) -> dict[str, Any] | None:
        """Return the object; None when there is none."""
        try:
            return self._client.get(self._paths.ray_cluster)
        except KubeError as error:
            if error.code == _NOT_FOUND and error.reason == "NotFound" and "not found" in str(error):
                return None
            raise

    def delete(self) -> bool:
        """Delete the object, and with it its pods; returns whether there was one."""
        if self.find() is None:
            return False
        try:
            self._client.delete(self._paths.ray_cluster, {"propagationPolicy": "Background"})
        except KubeError as error:
            if error.code != _NOT_FOUND:
                raise
        return True

    def report(self) -> RayClusterReport:
        """Return what the API server shows. Raises ClusterError when there is no such object."""
        cluster = self.find()
        if cluster is None:
            raise ClusterError(
                f"there is no RayCluster {self._paths.cluster} in namespace {self._paths.namespace}",
                fix="`muster up FILE` makes it",
            )
        listed = self._client.get(
            self._paths.pods, {"labelSelector": f"{CLUSTER_LABEL}={self._paths.cluster}"}
        )
        pods = [pod for one in listed["items"] if (pod := self._pod(one)) is not None]
        groups = worker_groups(cluster)
        return RayClusterReport(
            name=self._paths.cluster,
            namespace=self._paths.namespace,
            untouched=why_untouched(cluster),
            groups=tuple(_group_row(group, pods) for group in groups.values()),
            pods=tuple(_pod_row(pod) for pod in pods),
        )

    def _pod(self, found: Plain) -> Pod | None:
        try:
            return read_plain(found, self._clock.now())
        except msgspec.ValidationError:
            return None


def applied(manifest: Plain, found: Plain | None, paths: KubePaths) -> dict[str, Any]:
    """Return the object to apply: the file, what the autoscaler owns, and the version that was read."""
    spec = dict(manifest.get("spec") or {})
    listed = () if found is None else found["spec"].get("workerGroupSpecs") or ()
    there = {group.get("groupName"): group for group in listed}
    spec["workerGroupSpecs"] = [
        {
            **group,
            **{
                key: value
                for key, value in there.get(group.get("groupName"), {}).items()
                if key in _OF_THE_AUTOSCALER
            },
        }
        for group in spec.get("workerGroupSpecs") or ()
    ]
    given = manifest.get("metadata") or {}
    metadata = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    version = {} if found is None else {"resourceVersion": found["metadata"]["resourceVersion"]}
    return {
        "apiVersion": f"ray.io/{paths.crd_version}",
        "kind": "RayCluster",
        "metadata": {"name": paths.cluster, "namespace": paths.namespace, **metadata, **version},
        "spec": spec,
    }


def _group_row(group: WorkerGroup, pods: list[Pod]) -> GroupRow:
    states = Counter(_state(pod) for pod in pods if pod.group == group.name)
    return GroupRow(
        name=group.name,
        replicas=group.current,
        least=group.least,
        most=group.most,
        hosts=group.hosts,
        states=dict(states),
        to_delete=group.to_delete,
    )


def _pod_row(pod: Pod) -> PodRow:
    problem = pod.machine.problem
    detail = pod.ended or pod.leaving or ("" if problem is None else problem.message)
    return PodRow(
        name=pod.name, group=pod.group, state=_state(pod), detail=detail, ip=pod.machine.internal_ip
    )


def _state(pod: Pod) -> str:
    if pod.ended:
        return "ended"
    if pod.leaves_at is not None:
        return "leaving"
    if pod.machine.is_running:
        return "running"
    return "starting" if pod.machine.problem is None else "stuck"

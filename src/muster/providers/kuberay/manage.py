"""Applies, describes and deletes a RayCluster from outside, for `muster up`, `status`, `why` and `down`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from muster.base.clock import Clock, SystemClock
from muster.errors import ClusterError
from muster.providers.kuberay.client import MERGE_PATCH, KubeClient, KubeError, KubePaths
from muster.providers.kuberay.pods import CLUSTER_LABEL, Pod, read_plain
from muster.providers.kuberay.provider import why_untouched
from muster.providers.kuberay.scaling import WorkerGroup, worker_groups

TRIES = 5
_OF_THE_AUTOSCALER = ("replicas", "scaleStrategy")  # what an applied file does not take back
_NOT_FOUND, _CONFLICT = 404, 409

Plain = Mapping[str, Any]


class PodRow(Struct, frozen=True, kw_only=True):
    """A PodRow is one pod for users: its state, and why it is in it."""

    name: str
    group: str
    state: str
    detail: str = ""
    ip: str = ""


class GroupRow(Struct, frozen=True, kw_only=True):
    """A GroupRow is one group for users; counts are of pods, replicas of replicas."""

    name: str
    replicas: int
    least: int
    most: int | None
    hosts: int
    states: Mapping[str, int]
    to_delete: tuple[str, ...] = ()


class RayClusterReport(Struct, frozen=True, kw_only=True):
    """A RayClusterReport is a RayCluster as the API server shows it."""

    name: str
    namespace: str
    untouched: str  # why nothing is scaled; "": it is
    groups: tuple[GroupRow, ...]
    pods: tuple[PodRow, ...]


class RayClusterManager:
    """A RayClusterManager works on one RayCluster."""

    def __init__(self, client: KubeClient, paths: KubePaths, clock: Clock | None = None) -> None:
        self._client, self._paths, self._clock = client, paths, clock or SystemClock()

    def apply(self, manifest: Plain) -> str:
        """Makes the object what the file says; returns whether it was created, changed, or is as it was.

        The replicas of groups that are there already are the autoscaler's, and stay.
        """
        for _ in range(TRIES):
            found = self.find()
            try:
                if found is None:
                    self._client.post(self._paths.clusters, manifest)
                    return "created"
                changed = self._client.patch(self._paths.ray_cluster, merge_of(manifest, found), MERGE_PATCH)
                before, after = (one["metadata"].get("resourceVersion") for one in (found, changed))
                return "as it was" if before == after else "changed"
            except KubeError as error:
                if error.code != _CONFLICT:
                    raise
        raise ClusterError(
            f"RayCluster {self._paths.cluster} was changed by others {TRIES} times meanwhile: try again"
        )

    def find(self) -> dict[str, Any] | None:
        """Returns the object; None when there is none."""
        try:
            return self._client.get(self._paths.ray_cluster)
        except KubeError as error:
            if error.code == _NOT_FOUND and error.reason == "NotFound" and "not found" in str(error):
                return None
            raise

    def delete(self) -> bool:
        """Deletes the object, and with it its pods; returns whether there was one."""
        if self.find() is None:
            return False
        try:
            self._client.delete(self._paths.ray_cluster, {"propagationPolicy": "Background"})
        except KubeError as error:
            if error.code != _NOT_FOUND:
                raise
        return True

    def report(self) -> RayClusterReport:
        """Returns what the API server shows. Raises ClusterError when there is no such object."""
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


def merge_of(manifest: Plain, found: Plain) -> dict[str, Any]:
    """Returns the merge patch that makes `found` what the file says, behind the version that was read."""
    spec = dict(manifest.get("spec") or {})
    there = {group.get("groupName"): group for group in (found["spec"].get("workerGroupSpecs") or ())}
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
    metadata = {key: value for key in ("labels", "annotations") if (value := (manifest["metadata"].get(key)))}
    return {"metadata": {**metadata, "resourceVersion": found["metadata"]["resourceVersion"]}, "spec": spec}


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

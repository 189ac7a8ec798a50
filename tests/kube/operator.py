"""A double of KubeRay's operator and of the kubelets: makes and deletes pods as they do, over the API.

It has the operator's habits: every name in `workersToDelete` goes at once, whatever `replicas` says and
without a drain; in a pass that deletes unhealthy pods it makes none; with the autoscaler on it never chooses
a pod to delete by itself; all hosts of a replica come and go together; its status changes the version.
"""

from __future__ import annotations

import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from tests.kube.api_server import NAMESPACE

Object = dict[str, Any]
CLUSTER = "ray.io/cluster"
_numbers = itertools.count(1)


def worker_group(name: str, replicas: int | None = 0, **more: Any) -> Object:
    """Return a group with a container of 4 CPUs and 8 GiB; `more` adds or replace keys."""
    container = {"name": "ray-worker", "resources": {"limits": {"cpu": "4", "memory": "8Gi"}}}
    group: Object = {
        "groupName": name,
        "minReplicas": 0,
        "maxReplicas": 10,
        "rayStartParams": {},
        "template": {"spec": {"containers": [container]}},
    }
    if replicas is not None:
        group["replicas"] = replicas
    return {**group, **more}


def ray_cluster(name: str = "demo", *groups: Object, **spec: Any) -> Object:
    head = {"name": "ray-head", "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "annotations": {}},
        "spec": {
            "rayVersion": "2.60.0",
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [head]}}},
            "workerGroupSpecs": list(groups),
            **spec,
        },
    }


class AdminClient:
    """Talks to any API server as its administrator, independently of muster's client."""

    def __init__(self, url: str, token: str, context: Any = None) -> None:
        self.url, self.token, self.context = url, token, context

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            request.add_header("Content-Type", kind)
        with urllib.request.urlopen(request, data=data, timeout=30, context=self.context) as answer:
            return json.loads(answer.read())

    def pods(self, selector: str = "") -> list[Object]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={quote(selector)}"
        found: list[Object] = self.ask("GET", path)["items"]
        return found

    def pod(self, name: str) -> Object:
        return self.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")

    def cluster(self, name: str = "demo") -> Object:
        return self.ask("GET", f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters/{name}")

    def create_cluster(self, given: Object) -> Object:
        return self.ask("POST", f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters", given)

    def merge_cluster(self, change: Object, name: str = "demo", sub: str = "") -> Object:
        path = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters/{name}{sub}"
        return self.ask("PATCH", path, change, "application/merge-patch+json")

    def edit_group(self, index: int, name: str = "demo", **values: Any) -> Object:
        """Edit a group as a person with kubectl does."""
        path = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters/{name}"
        patch = [
            {"op": "add", "path": f"/spec/workerGroupSpecs/{index}/{key}", "value": value}
            for key, value in values.items()
        ]
        return self.ask("PATCH", path, patch, "application/json-patch+json")

    def create_pod(self, given: Object) -> Object:
        return self.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", given)

    def set_status(self, pod: str, status: Object) -> Object:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/status"
        return self.ask("PATCH", path, {"status": status}, "application/merge-patch+json")

    def delete_pod(self, name: str, grace_s: int | None = None) -> None:
        """A pod that is gone already is a success."""
        grace = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        try:
            self.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}{grace}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise


def labels_of(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def is_unhealthy(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


class OperatorDouble:
    """One RayCluster; `step()` is one pass of the operator, and then of the kubelets."""

    def __init__(
        self,
        admin: AdminClient,
        name: str = "demo",
        *,
        start: Callable[[Object], None] = lambda pod: None,
        stop: Callable[[Object], None] = lambda pod: None,
        slices_by_label: bool = True,
    ) -> None:
        self.admin, self.name, self.slices_by_label = admin, name, slices_by_label
        self._start, self._stop = start, stop
        self.deleted: list[str] = []
        self.made: list[str] = []  # workers, oldest first
        self.termination_s = 0.0  # from the deletion of a pod to its end, by `now`
        self.now: Callable[[], float] = lambda: 0.0
        self._leaving_since: dict[str, float] = {}
        self.starts = True  # False: pods stay as they were made
        self.held: set[str] = set()  # deleted pods that still have their grace: a kubelet waits for their end
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # -- passes -------------------------------------------------------------------------------

    def step(self, passes: int = 1) -> None:
        for _ in range(passes):
            self.reconcile()
            self.kubelets()

    def reconcile(self) -> None:
        """One pass of the operator."""
        cluster = self.admin.cluster(self.name)
        pods = self.admin.pods(f"{CLUSTER}={self.name}")
        if not any(labels_of(pod).get("ray.io/node-type") == "head" for pod in pods):
            self._make_head()
        for group in cluster["spec"].get("workerGroupSpecs") or []:
            if not group.get("suspend"):
                self._reconcile_group(group, pods)
        count = len(self.admin.pods(f"{CLUSTER}={self.name},ray.io/node-type=worker"))
        self.admin.merge_cluster({"status": {"desiredWorkerReplicas": count}}, self.name, "/status")

    def kubelets(self) -> None:
        """One pass of all kubelets: pods start, and those that were deleted end."""
        for pod in self.admin.pods(f"{CLUSTER}={self.name}"):
            name = pod["metadata"]["name"]
            if pod["metadata"].get("deletionTimestamp"):
                since = self._leaving_since.setdefault(name, self.now())
                if name in self.held or self.now() < since + self.termination_s:
                    continue
                self._stop(pod)
                self.admin.delete_pod(name, grace_s=0)
            elif self.starts and pod["status"].get("phase") == "Pending":
                self.run_pod(name)

    def run_pod(self, name: str) -> None:
        self.admin.set_status(name, running_status(next(_numbers)))
        self._start(self.admin.pod(name))

    def run(self, period_s: float = 0.05) -> None:
        """Pass in a separate thread until `close`."""

        def loop() -> None:
            while not self._ended.wait(period_s):
                try:
                    self.step()
                except (urllib.error.URLError, OSError):
                    continue  # the server was told to fail

        self._thread = threading.Thread(target=loop, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(30)

    # -- groups -------------------------------------------------------------------------------

    def workers(self, group: str) -> list[str]:
        """Return the pods of a group that were not deleted."""
        return [
            pod["metadata"]["name"]
            for pod in self.admin.pods(f"{CLUSTER}={self.name},ray.io/group={group}")
            if not pod["metadata"].get("deletionTimestamp")
        ]

    def _reconcile_group(self, group: Object, pods: list[Object]) -> None:
        mine = [
            pod
            for pod in pods
            if labels_of(pod).get("ray.io/group") == group["groupName"]
            and not pod["metadata"].get("deletionTimestamp")
        ]
        named = set((group.get("scaleStrategy") or {}).get("workersToDelete") or [])
        unhealthy = [pod for pod in mine if is_unhealthy(pod)]
        going = unhealthy or [pod for pod in mine if pod["metadata"]["name"] in named]
        if group.get("numOfHosts", 1) > 1:  # a replica without one of its hosts is of no use
            broken = {replica_of(pod) for pod in going}
            going = [pod for pod in mine if replica_of(pod) in broken]
        for pod in going:
            self.delete(pod)
        left = [pod for pod in mine if pod not in going]
        if unhealthy:
            return  # it makes pods in the next pass
        hosts = group.get("numOfHosts", 1)
        wanted = max(group.get("replicas", 1), group.get("minReplicas", 0))
        wanted = min(wanted, group.get("maxReplicas", wanted))  # a maximum below the minimum wins
        for _ in range(wanted - -(-len(left) // hosts)):
            self._make_replica(group, hosts)

    def delete(self, pod: Object) -> None:
        self.deleted.append(pod["metadata"]["name"])
        self.admin.delete_pod(pod["metadata"]["name"])

    def _make_replica(self, group: Object, hosts: int) -> None:
        name = group["groupName"]
        replica = f"{name}-{next(_numbers):05d}"
        for host in range(hosts):
            labels = {CLUSTER: self.name, "ray.io/node-type": "worker", "ray.io/group": name}
            if hosts > 1 and self.slices_by_label:
                labels |= {"ray.io/worker-group-replica-name": replica, "ray.io/host-index": str(host)}
            elif hosts > 1:
                labels["replicaIndex"] = replica
            self._make_pod(f"{self.name}-{name}-worker-{next(_numbers):05d}", labels, group["template"])

    def _make_head(self) -> None:
        labels = {CLUSTER: self.name, "ray.io/node-type": "head", "ray.io/group": "headgroup"}
        template = self.admin.cluster(self.name)["spec"]["headGroupSpec"]["template"]
        self._make_pod(f"{self.name}-head", labels, template)

    def _make_pod(self, name: str, labels: dict[str, str], template: Object) -> None:
        spec = json.loads(json.dumps(template.get("spec") or {}))
        for container in spec.get("containers", []):
            container.setdefault("image", "ray")
        spec["nodeName"] = "node-1"
        self.made += [name] if labels["ray.io/node-type"] == "worker" else []
        self.admin.create_pod(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "spec": spec,
            }
        )


def replica_of(pod: Object) -> str:
    labels = labels_of(pod)
    return labels.get("ray.io/worker-group-replica-name") or labels.get("replicaIndex", "")


def running_status(number: int, **more: Any) -> Object:
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"name": "ray", "state": state, "ready": True, "restartCount": 0, "image": "ray", "imageID": ""}
    return {
        "phase": "Running",
        "podIP": f"10.0.{number // 250 % 250}.{number % 250 + 1}",
        "containerStatuses": [status],
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        **more,
    }

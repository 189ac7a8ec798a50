"""Simulate the world of a RayCluster: an operator that lags, kubelets, and pods as machines.

The port is the real `KubeRayProvider` over a simulated API server; its routines run in virtual time. What the
operator makes has no request of ours on it, and it replaces what dies by itself.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tests.kube.objects import Object
from tests.simulation.kuberay.api import BOOKMARK_S, NAME, PATHS, SimKubeApi
from tests.simulation.kuberay.pods import annotations, group_object, pod_object, pod_status
from tests.simulation.provider_cloud import ProviderCloud

from muster.base.ids import CloudId, RequestId
from muster.base.resources import Resources
from muster.base.rng import Stream
from muster.cluster.model import (
    ClusterSpec,
    IdlePolicy,
    NodeKind,
    Offer,
    ResizeFailure,
)
from muster.cluster.ports import CloudInstance, NoticeReport
from muster.cluster.snapshot import ProviderTraits
from muster.providers.kuberay import pod_watch
from muster.providers.kuberay.effects import IDLE
from muster.providers.kuberay.provider import KubeRayProvider
from muster.providers.kuberay.scaling import REQUESTS
from muster.providers.kuberay.watch import Routine
from muster.sim.cluster.cloud import LaunchCall
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.world import World

FAULTS: Mapping[str, tuple[float, float]] = {
    "operator_away": (0.01, 0.08),  # per pass: it does nothing for minutes
    "pod_evicted": (0.2, 0.8),  # per machine that ends by itself: its pod stays as failed for a pass
    "pod_stuck": (0.02, 0.2),  # per pod: no node has room for it until the calm
}
pod_watch.TOO_OLD_S = 3 * BOOKMARK_S  # as in production
STEP_S = 0.2  # from a call of the controller to the request that it leads to
LOOK_S = 1.0  # between two looks into a stream
RETRY_S = 10.0
GRACE_S = 30

T = TypeVar("T")


class Routines:
    """Runs the routines of one provider in virtual time, until another process takes over."""

    def __init__(self, world: World, api: SimKubeApi, routines: Sequence[Routine]) -> None:
        self._world, self._api = world, api
        self._due: dict[Routine, float] = {}
        self.is_over = False
        for routine in routines:
            self._schedule(routine, 0.0)

    def look(self) -> None:
        """Let those continue that a call has woken."""
        for routine, due in list(self._due.items()):
            if routine.woken.is_set() and due > self._world.time + STEP_S:
                self._schedule(routine, STEP_S)

    def _schedule(self, routine: Routine, in_s: float) -> None:
        due = self._due[routine] = self._world.time + in_s
        self._world.after(in_s, lambda: self._run(routine, due))

    def _run(self, routine: Routine, due: float) -> None:
        if self.is_over or self._due[routine] != due:
            return
        routine.woken.clear()
        self._api.is_quiet = False
        pause_s = routine.step()
        while pause_s == 0.0 and not self._api.is_quiet:
            pause_s = routine.step()
        self._schedule(routine, STEP_S if routine.woken.is_set() else pause_s or LOOK_S)
        self.look()


class KubeRayCloud(ProviderCloud):
    """The machines of a RayCluster; the port is the real provider."""

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.api = SimKubeApi(world, faults, draw)
        self.api.sync, self.api.resize, self.api.on_patch = self._sync, self._resized, self._note_raise
        self.lag_s = draw.choice((1.0, 5.0, 20.0))
        self.hosts: dict[str, int] = {}  # per group: pods of a replica; absent: one
        self.disrupted: dict[CloudId, str] = {}  # pods that are to be evicted, and why
        # Requests that a patch has noted, and by how much each group grew.
        self.raises: list[tuple[frozenset[str], dict[str, int]]] = []
        self._waiting: set[CloudId] = set()  # pods that no node has room for
        self._stuck: set[CloudId] = set()
        self._slices: dict[CloudId, str] = {}  # of pods with several hosts
        self._evicted: dict[CloudId, str] = {}
        self._written: dict[CloudId, object] = {}
        self._replicas = 0  # ever made
        self._will_resume = False
        self.recreated = 0  # times that the object was deleted and made again
        self._routines: Routines | None = None
        self.provider = KubeRayProvider(self.api.client(), PATHS, world)
        head = {"name": "ray", "resources": {"limits": {"cpu": "1"}}}
        groups = {"headGroupSpec": {"template": {"spec": {"containers": [head]}}}, "workerGroupSpecs": []}
        self._create_object(groups, {})
        world.after(self.lag_s, self._pass)

    def stop(self) -> None:
        """End the process that the provider runs in."""
        if self._routines is not None:
            self._routines.is_over = True

    def reconnect(self) -> None:
        self.stop()
        self.provider = KubeRayProvider(self.api.client(), PATHS, self._world)
        self._routines = Routines(self._world, self.api, self.provider.routines)
        self.provider.scaler.wake()

    # -- the port ---------------------------------------------------------------------------------

    def _woken(self, answer: T) -> T:
        if self._routines is not None:
            self._routines.look()
        return answer

    def traits(self) -> ProviderTraits:
        return self.provider.traits()

    @crash_point("cloud.list_instances")
    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        self.listed = None
        self.listed = self._woken(self.provider.list_instances())
        return self.listed

    @crash_point("cloud.notices")
    def read(self) -> NoticeReport:
        return self.provider.read()

    @crash_point("cloud.launch")
    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        self.launch_calls.append(LaunchCall(self._world.time, request_id, dict(shape)))
        self._woken(self.provider.launch(request_id, shape, offers))

    @crash_point("cloud.terminate")
    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self.terminated.extend((self._world.time, cloud_id) for cloud_id in cloud_ids)
        self._woken(self.provider.terminate(request_id, cloud_ids))

    @crash_point("cloud.resize")
    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        self._woken(self.provider.resize(request_id, cloud_id, desired))

    @crash_point("cloud.end_idle_cluster")
    def end_idle_cluster(self, request_id: RequestId, policy: IdlePolicy) -> None:
        self._woken(self.provider.end_idle_cluster(request_id, policy))

    def poll_resize_failures(self) -> Sequence[ResizeFailure]:
        return self.provider.poll_resize_failures()

    # -- the objects ------------------------------------------------------------------------------

    def object(self) -> Object:
        return self.api.store.find("rayclusters", NAME, NAME)

    def change_object(self, after: Object) -> None:
        with self.api.store.changed:
            self.api.store.replace("rayclusters", self.object(), after)

    def _create_object(self, spec: Object, notes: dict[str, str]) -> None:
        made = {"metadata": {"name": NAME, "annotations": notes}, "spec": spec}
        with self.api.store.changed:
            self.api.store.create("rayclusters", NAME, made)

    def follow(self, spec: ClusterSpec) -> None:
        """Write the object as its owner does: groups, limits and annotations."""
        after = copy.deepcopy(self.object())
        groups = {group["groupName"]: group for group in after["spec"]["workerGroupSpecs"]}
        for group in groups.values():
            group.update(minReplicas=0, maxReplicas=0)  # of types that are gone
        for known in spec.node_types[1:]:
            groups[known.name] = group_object(
                known, self.hosts.get(known.name, 1), groups.get(known.name, {})
            )
        after["spec"]["workerGroupSpecs"] = list(groups.values())
        after["metadata"]["annotations"] |= annotations(spec)
        idle = spec.idle_cluster
        if idle is not None:
            policy = "Suspend" if idle.policy is IdlePolicy.SUSPEND else "Delete"
            options = {"timeoutSeconds": idle.timeout_s, "policy": policy}
            after["metadata"]["annotations"][IDLE] = json.dumps(options)
        self.change_object(after)

    def _note_raise(self, before: Object, after: Object) -> None:
        """Note what a patch asks for above the minimums and the pods that are there, for the checks."""
        old_requests, new_requests = (
            frozenset((one["metadata"].get("annotations") or {}).get(REQUESTS, "").split())
            for one in (before, after)
        )
        grown = {
            new["groupName"]: new["replicas"]
            - max(old["replicas"], old.get("minReplicas", 0), self._living(new["groupName"]))
            for old, new in zip(
                before["spec"]["workerGroupSpecs"], after["spec"]["workerGroupSpecs"], strict=True
            )
        }
        self.raises.append(
            (new_requests - old_requests, {name: more for name, more in grown.items() if more > 0})
        )

    def _living(self, name: str) -> int:
        """Count the pods that the provider knows of."""
        try:
            return sum(pod.group == name and pod.is_living for pod in self.provider.pods().values())
        except Exception:
            return 0

    def _sync(self) -> None:
        """Write what operator and kubelets have done since the last request into the pods."""
        for machine in self.machines.values():
            state = self._state(machine)
            if self._written.get(machine.cloud_id) != state:
                self._write(machine, state)
                self._written[machine.cloud_id] = state

    def _state(self, machine: CloudMachine) -> tuple[object, ...]:
        name = machine.cloud_id
        if not machine.exists:
            return ("evicted", self._evicted[name]) if name in self._evicted else ("gone",)
        status = self.sizes.now.get(name)
        return (machine.up, machine.leaving, name in self._waiting, status, self.disrupted.get(name, ""))

    def _write(self, machine: CloudMachine, state: tuple[object, ...]) -> None:
        store, name = self.api.store, machine.cloud_id
        found = store.objects.get(("pods", NAME, name))
        if state[0] == "gone":
            if found is not None:
                store.delete("pods", found, 0)
            return
        status = self.sizes.now.get(name)
        known = self.sells.types.get(machine.node_type)
        size = known.resources if known is not None else Resources.of(CPU=1)
        if status is not None:
            size = Resources({**size, **status.desired})
        after = pod_object(machine, size, self._slices.get(name, ""))
        is_waiting = name in self._waiting
        if not is_waiting:
            after["spec"]["nodeName"] = "node"
        after["status"] = pod_status(
            machine,
            status,
            is_waiting=is_waiting,
            evicted=self._evicted.get(name, "") if not machine.exists else "",
            disrupted=self.disrupted.get(name, ""),
        )
        found = store.create("pods", NAME, after) if found is None else store.replace("pods", found, after)
        if machine.leaving and machine.exists:
            store.delete("pods", found, GRACE_S)

    def _resized(self, name: str, desired: dict[str, float]) -> None:
        self.sizes.ask(CloudId(name), desired)

    def slice_of(self, machine: CloudMachine) -> list[CloudMachine]:
        """Return the other hosts of a pod's slice."""
        mine = self._slices.get(machine.cloud_id)
        return [m for m in self.alive() if mine and self._slices.get(m.cloud_id) == mine and m is not machine]

    # -- the operator and the kubelets ------------------------------------------------------------

    def end(self, machine: CloudMachine, how: str) -> None:
        if machine.exists and how != "terminated" and self._faults.hit("pod_evicted"):
            self._evicted[machine.cloud_id] = "Evicted"
        super().end(machine, how)

    def end_shortages(self) -> None:
        super().end_shortages()
        self._stuck.clear()

    def _pass(self) -> None:
        away_s = self._faults.between("operator_away", 60, 700) if self._faults.hit("operator_away") else 0.0
        self._world.after(self.lag_s + away_s, self._pass)
        self._evicted.clear()
        if not self.is_there() or self._finish_deletion():
            return
        self._suspend()
        for group in self.object()["spec"]["workerGroupSpecs"]:
            self._reconcile(group)

    def is_there(self) -> bool:
        return ("rayclusters", NAME, NAME) in self.api.store.objects

    def _finish_deletion(self) -> bool:
        """End the pods of a cluster that was deleted, and lets it go; its owner makes it again."""
        found = self.object()
        if "deletionTimestamp" not in found["metadata"]:
            return False
        for machine in self.alive():
            if machine.kind is NodeKind.WORKER:
                self.end(machine, "terminated")
        spec = copy.deepcopy(found["spec"])
        for group in spec["workerGroupSpecs"]:
            group.update(replicas=0, scaleStrategy={})
        notes = {key: text for key, text in found["metadata"]["annotations"].items() if key != REQUESTS}
        with self.api.store.changed:
            self.api.store.replace("rayclusters", found, {**found, "metadata": {"annotations": notes}})
        self.recreated += 1
        self._world.after(60.0, lambda: self._create_object(spec, notes))
        return True

    def _suspend(self) -> None:
        """Suspend a cluster that nobody uses; its owner resumes it after a while."""
        if self.object()["spec"].get("suspend") is True and not self._will_resume:
            self._will_resume = True
            self._world.after(60.0, self._resume)

    def _resume(self) -> None:
        self._will_resume = False
        if not self.is_there():
            return
        after = copy.deepcopy(self.object())
        after["spec"]["suspend"] = False
        self.change_object(after)

    def _reconcile(self, group: Mapping[str, Any]) -> None:
        name = group["groupName"]
        named = set((group.get("scaleStrategy") or {}).get("workersToDelete") or ())
        mine = [m for m in self.alive() if m.node_type == name and m.kind is NodeKind.WORKER]
        for machine in mine:
            if machine.cloud_id in named:
                self._delete(machine)
        mine = [m for m in mine if m.exists]
        hosts = self.hosts.get(name, 1)
        whole = Counter(self._slices.get(m.cloud_id, m.cloud_id) for m in mine if not m.leaving)
        for machine in mine:  # a replica without one of its hosts is of no use
            if hosts > 1 and whole[self._slices[machine.cloud_id]] < hosts and not machine.leaving:
                self.end(machine, "preempted")
        living = sum(count == hosts for count in whole.values())
        wanted = min(max(group["replicas"], group.get("minReplicas", 0)), group.get("maxReplicas", 0))
        for _ in range(wanted - living):
            self._replicas += 1
            for _ in range(hosts):
                self._make(name, f"{name}-{self._replicas}" if hosts > 1 else "")

    def _delete(self, machine: CloudMachine) -> None:
        if machine.cloud_id in self._waiting:  # on no node: it is gone at once
            self.end(machine, "terminated")
        elif not machine.leaving:
            machine.leaving = True
            down_s = round(self._draw.uniform(*self.sells.shutdown_s), 1)
            self._world.after(down_s, lambda: self.end(machine, "terminated"))

    def _make(self, name: str, replica: str) -> None:
        """Make a pod; it is scheduled when a node has room."""
        machine = self.create(name)
        if replica:
            self._slices[machine.cloud_id] = replica
        if self._faults.hit("pod_stuck"):
            self._stuck.add(machine.cloud_id)
        self._waiting.add(machine.cloud_id)
        self._schedule(machine)

    def _schedule(self, machine: CloudMachine) -> None:
        if not machine.exists:
            self._waiting.discard(machine.cloud_id)
        elif self._is_full(machine.node_type) or machine.cloud_id in self._stuck:
            self._world.after(RETRY_S, lambda: self._schedule(machine))
        else:
            self._waiting.discard(machine.cloud_id)
            self.boot(machine, round(self._draw.uniform(*self.sells.boot_s), 1))

    def _is_full(self, name: str) -> bool:
        if self._world.time < self._sold_out_until.get(name, 0.0):
            return True
        placed = sum(m.node_type == name and m.cloud_id not in self._waiting for m in self.alive())
        return placed >= self.sells.capacity.get(name, placed + 1)

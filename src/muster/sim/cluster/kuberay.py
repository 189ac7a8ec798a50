"""Simulates a RayCluster: an API server with one object, an operator that lags, and pods as machines.

The port is muster's own scaler over a client that fails by seed: conflicts, refusals, lost replies. What the
operator makes has no request of ours on it, and it replaces what dies by itself.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from muster.base.ids import CloudId, RequestId
from muster.base.rng import Seed, Stream
from muster.cluster.model import (
    CloudInstance,
    FailureKind,
    LaunchFailure,
    MachineProblem,
    NodeKind,
    NodeType,
    TerminateFailure,
)
from muster.cluster.snapshot import ProviderTraits
from muster.errors import MusterError
from muster.providers.kuberay.client import KubeError, KubePaths, KubeUnreachable
from muster.providers.kuberay.pods import UNSCHEDULABLE_S, Pod
from muster.providers.kuberay.provider import Scaler
from muster.providers.kuberay.scaling import REQUESTS
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.cluster.checkers import Check
from muster.sim.cluster.cloud import Catalogue, CloudMachine, LaunchCall, SimCloud
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE, RunOptions, draw_options
from muster.sim.cluster.run import SeedRun
from muster.sim.cluster.world import World

FAULTS: Mapping[str, tuple[float, float]] = {
    "api_breaks": (0.01, 0.15),  # per request: no answer, and no effect
    "api_refuses": (0.01, 0.1),  # per request: 429, 500 or 503
    "patch_conflicts": (0.02, 0.3),  # per patch: somebody has changed the object meanwhile
    "patch_reply_lost": (0.02, 0.2),  # per patch: it is in force, and nobody knows
    "operator_away": (0.01, 0.08),  # per pass: it does nothing for minutes
}
# A watch shows what there is, late at most: it invents, forgets and omits nothing.
IMPOSSIBLE = ("list_omits", "list_ghost", "list_garbage", "list_only_head", "list_omits_passing")
STEP_S = 0.2  # from a request to its patch
RETRY_S = 10.0


class SimRayClusterApi:
    """A SimRayClusterApi answers GET and PATCH of one RayCluster, as `KubeClient` does."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world, self._faults = world, faults
        self.version = 1
        self.groups: list[dict[str, Any]] = []
        self.annotations: dict[str, str] = {}
        self.living: Callable[[str], int] = lambda name: 0  # pods of a group
        self.raises: list[
            tuple[frozenset[str], dict[str, int]]
        ] = []  # requests, and by how much each group grew

    def group(self, name: str) -> dict[str, Any]:
        """Returns the group of a type; one that is new begins without pods."""
        for group in self.groups:
            if group["groupName"] == name:
                return group
        self.groups.append({"groupName": name, "replicas": 0})
        return self.groups[-1]

    def get(self, path: str) -> dict[str, Any]:
        self._fail()
        return copy.deepcopy(self._object())

    def patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        self._fail()
        if self._faults.hit("patch_conflicts"):
            self.version += 1
        found = self._object()
        for operation in operations:
            if not _applied(found, operation):
                raise KubeError("simulated: the object is another by now", code=422)
        self._note_raise(found)
        self.annotations = found["metadata"]["annotations"]
        self.groups = found["spec"]["workerGroupSpecs"]
        self.version += 1
        if self._faults.hit("patch_reply_lost"):
            raise KubeUnreachable("simulated: the reply was lost", code=0)
        return found

    def _note_raise(self, found: Mapping[str, Any]) -> None:
        """Notes what a patch asks for above the minimums and the pods that are there, for the checks."""
        before, after = (
            frozenset(notes.get(REQUESTS, "").split())
            for notes in (self.annotations, found["metadata"]["annotations"])
        )
        grown = {
            new["groupName"]: new["replicas"]
            - max(old["replicas"], old.get("minReplicas", 0), self.living(new["groupName"]))
            for old, new in zip(self.groups, found["spec"]["workerGroupSpecs"], strict=True)
        }
        self.raises.append((after - before, {name: more for name, more in grown.items() if more > 0}))

    def _object(self) -> dict[str, Any]:
        metadata = {"resourceVersion": str(self.version), "annotations": dict(self.annotations)}
        return {"metadata": metadata, "spec": {"workerGroupSpecs": copy.deepcopy(self.groups)}}

    def _fail(self) -> None:
        if self._faults.hit("api_breaks"):
            raise KubeUnreachable("simulated: no answer", code=0)
        if self._faults.hit("api_refuses"):
            raise KubeError("simulated", code=self._faults.stream("api_refuses").choice((429, 500, 503)))


def _applied(found: dict[str, Any], operation: Mapping[str, Any]) -> bool:
    """Applies one operation; returns False for a test that fails."""
    steps = [step.replace("~1", "/") for step in operation["path"].split("/")[1:]]
    place: Any = found
    for step in steps[:-1]:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if operation["op"] == "test":
        return bool(place.get(steps[-1]) == operation["value"])
    place[steps[-1]] = copy.deepcopy(operation["value"])
    return True


class KubeRayCloud(SimCloud):
    """A KubeRayCloud is a SimCloud whose machines are made and ended by an operator."""

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.api = SimRayClusterApi(world, faults)
        self.api.living = lambda name: sum(
            pod.group == name and pod.is_living for pod in self._pods().values()
        )
        self.lag_s = draw.choice((1.0, 5.0, 20.0))
        self.hosts: dict[str, int] = {}  # per group: pods of a replica; absent: one
        self._waiting: set[CloudId] = set()  # pods that no node has room for
        self._slices: dict[CloudId, str] = {}  # of pods with several hosts
        self._is_due = False
        self._replicas = 0  # ever made
        self.reconnect()
        world.after(self.lag_s, self._pass)

    def reconnect(self) -> None:
        client: Any = self.api
        self.scaler = Scaler(client, KubePaths("simulated", "simulated"), self._pods, self._world)

    # -- the port ---------------------------------------------------------------------------------

    def traits(self) -> ProviderTraits:
        return ProviderTraits(installs_runtime=self.installs_runtime)

    @crash_point("cloud.list_instances")
    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        self.listed = None
        shown = self.list_now()
        for cloud_id in [c for c in shown if c in self._waiting]:
            problem = MachineProblem(kind=FailureKind.CAPACITY, message="no room", give_up_s=UNSCHEDULABLE_S)
            shown[cloud_id] = replace(shown[cloud_id], problem=problem)
        for cloud_id in [c for c in shown if c in self._slices]:
            shown[cloud_id] = replace(shown[cloud_id], slice_id=self._slices[cloud_id])
        self.listed = shown
        self._wake()
        return shown

    @crash_point("cloud.launch")
    def launch(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        self.launch_calls.append(LaunchCall(self._world.time, request_id, dict(shape)))
        self.scaler.queue.launch(request_id, shape)
        self._wake()

    @crash_point("cloud.terminate")
    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self.terminated.extend((self._world.time, cloud_id) for cloud_id in cloud_ids)
        self.scaler.queue.end(request_id, cloud_ids)
        self._wake()

    def under_way(self, request_id: RequestId) -> bool:
        return self.scaler.queue.is_open(request_id)

    @crash_point("cloud.poll_launch_failures")
    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        failures = self.scaler.queue.poll_launch()
        self.failures_reported.extend(failures)
        return failures

    @crash_point("cloud.poll_terminate_failures")
    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self.scaler.queue.poll_terminate()

    # -- the thread of the scaler -----------------------------------------------------------------

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._world.after(STEP_S, self._step)

    def _step(self) -> None:
        self._is_due = False
        try:
            self.scaler.step()
        except MusterError:
            self._wake() if self.scaler.queue.waiting() is not None else None

    def _pods(self) -> dict[str, Pod]:
        now = self._world.time
        shown = {m.cloud_id: m for m in self.machines.values() if m.exists and m.is_listed(now)}
        return {
            name: Pod(
                machine=m.shown(), replica=self._slices.get(name, ""), leaves_at=now if m.leaving else None
            )
            for name, m in shown.items()
        }

    def slice_of(self, machine: CloudMachine) -> list[CloudMachine]:
        """Returns the other hosts of a pod's slice."""
        mine = self._slices.get(machine.cloud_id)
        return [m for m in self.alive() if mine and self._slices.get(m.cloud_id) == mine and m is not machine]

    # -- the operator and the kubelets ------------------------------------------------------------

    def follow(self, types: Mapping[str, tuple[int, int]]) -> None:
        """Takes over the limits of the configuration, which are those of the RayCluster."""
        for name in dict.fromkeys([*types, *(group["groupName"] for group in self.api.groups)]):
            hosts = self.hosts.get(name, 1)
            least, most = types.get(name, (0, 0))
            least, most = min(-(-least // hosts), most // hosts), most // hosts
            group = self.api.group(name)
            group["numOfHosts"] = hosts
            if (group.get("minReplicas"), group.get("maxReplicas")) != (least, most):
                group.update(minReplicas=least, maxReplicas=most)
                self.api.version += 1

    def _pass(self) -> None:
        away_s = self._faults.between("operator_away", 60, 700) if self._faults.hit("operator_away") else 0.0
        self._world.after(self.lag_s + away_s, self._pass)
        for group in self.api.groups:
            self._reconcile(group)

    def _reconcile(self, group: Mapping[str, Any]) -> None:
        name = group["groupName"]
        named = set((group.get("scaleStrategy") or {}).get("workersToDelete") or ())
        mine = [m for m in self.alive() if m.node_type == name and m.kind is NodeKind.WORKER]
        for machine in mine:
            if machine.cloud_id in named:
                self._delete(machine)
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
        if not machine.leaving:
            machine.leaving = True
            down_s = round(self._draw.uniform(*self.sells.shutdown_s), 1)
            self._world.after(down_s, lambda: self.end(machine, "terminated"))

    def _make(self, name: str, replica: str) -> None:
        """Makes a pod; it is scheduled when a node has room."""
        machine = self.create(name)
        if replica:
            self._slices[machine.cloud_id] = replica
        if self._faults.hit("list_late"):
            machine.listed_from = self._world.time + self._faults.between("list_late", 5, 100)
        self._waiting.add(machine.cloud_id)
        self._schedule(machine)

    def _schedule(self, machine: CloudMachine) -> None:
        if not machine.exists:
            self._waiting.discard(machine.cloud_id)
        elif self._is_full(machine.node_type):
            self._world.after(RETRY_S, lambda: self._schedule(machine))
        else:
            self._waiting.discard(machine.cloud_id)
            self.boot(machine, round(self._draw.uniform(*self.sells.boot_s), 1))

    def _is_full(self, name: str) -> bool:
        if self._world.time < self._sold_out_until.get(name, 0.0):
            return True
        placed = sum(m.node_type == name and m.cloud_id not in self._waiting for m in self.alive())
        return placed >= self.sells.capacity.get(name, placed + 1)


def draw_kuberay_options(seed: Seed) -> RunOptions:
    """Draws the options of this seed: no rack, no offers, no resizes, no limit but those of the groups."""
    options = draw_options(seed)
    options.catalogue.hosts = {}
    options.catalogue.quota = None
    types = tuple(replace(known, offers=(), resize=None) for known in options.spec.node_types)
    options.spec = replace(options.spec, node_types=types, max_nodes=None, check_launch_hash=False)
    options.shown |= {"hosts": None, "cloud": "kuberay"}
    return options


class KubeRayCluster(SimulatedCluster):
    """A KubeRayCluster is the simulated cluster as a RayCluster."""

    cloud_class = KubeRayCloud
    cloud: KubeRayCloud

    def __init__(self, seed: Seed, options: RunOptions, faults: Faults) -> None:
        draw = seed.derive("sim.kuberay.faults")
        for kind, (low, high) in FAULTS.items():
            on, rate = draw.random() < 0.5, draw.uniform(low, high)
            if on and faults.rates:
                faults.rates[kind] = round(rate, 4)
        for kind in IMPOSSIBLE:
            faults.rates.pop(kind, None)
        super().__init__(seed, options, faults)
        draw = seed.derive("sim.kuberay.hosts")
        names = [known.name for known in options.spec.node_types if known.name != HEAD_TYPE]
        self.cloud.hosts = {name: 2 for name in names if draw.random() < 0.25}
        self.cloud.is_tied = self._is_tied

    def _is_tied(self, machine: CloudMachine) -> bool:
        """Returns whether another host of its slice is at work, or not there to be idle."""
        others = self.cloud.slice_of(machine)
        nodes = [self.runtime.node_on(other) for other in others]
        return any(node is None or node.running for node in nodes)

    def tick(self) -> None:
        spec = self.spec.spec
        spec = replace(spec, node_types=tuple(map(self._in_replicas, spec.node_types)))
        self.spec.spec = spec
        limits = {t.name: (t.min_nodes, t.max_nodes) for t in spec.node_types if t.name != HEAD_TYPE}
        self.cloud.follow(limits)
        super().tick()

    def _in_replicas(self, known: NodeType) -> NodeType:
        """Limits are those of replicas: whole slices."""
        hosts = self.cloud.hosts.get(known.name, 1)
        least, most = (-(-count // hosts) * hosts for count in (known.min_nodes, known.max_nodes))
        return replace(known, min_nodes=least, max_nodes=most) if hosts > 1 else known


class RaisesAreAskedFor:
    """RaisesAreAskedFor checks that a launch is in the object once, and raises it by no more than it asks."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, cluster: SimulatedCluster) -> Iterator[str]:
        if not isinstance(cluster, KubeRayCluster):
            return
        cloud = cluster.cloud
        for requests, grown in cloud.api.raises:
            for again in sorted(requests & self._seen):
                yield f"the launch {again} was asked for twice"
            self._seen |= requests
            shapes = [
                call.shape
                for call in {c.request_id: c for c in cloud.launch_calls if c.request_id in requests}.values()
            ]
            for name, more in grown.items():
                asked = sum(shape.get(name, 0) for shape in shapes)
                if more > asked:
                    yield f"group {name} grew by {more}, and {asked} were asked for"
        cloud.api.raises.clear()


class KubeRayRun(SeedRun):
    """A KubeRayRun is one seed of a RayCluster."""

    cluster_class = KubeRayCluster
    command_options = " --cloud kuberay"
    cluster: KubeRayCluster

    def __init__(self, seed: int, on_line: Any = None) -> None:  # noqa: ANN401 - as its base
        logging.getLogger("muster.providers.kuberay").setLevel(logging.CRITICAL)
        super().__init__(seed, on_line)
        self.cluster.spec._cluster = lambda chosen, draw: None  # type: ignore[method-assign]

    def draw_options(self) -> RunOptions:
        return draw_kuberay_options(self.seed)

    def checks(self) -> tuple[Check, ...]:
        return (*super().checks(), RaisesAreAskedFor())

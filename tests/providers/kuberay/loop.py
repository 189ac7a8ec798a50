"""Run the loop of a RayCluster in tests: every running pod is a node, and the clock is the test's."""

from __future__ import annotations

import contextlib
import time

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds, NodeId
from muster.base.resources import Resources
from muster.base.rng import Ambient, Seed
from muster.cluster.controller import ClusterController
from muster.cluster.model import Demand, NodeReport, NodeStatus, RuntimeReport
from muster.cluster.ports import Ports
from muster.errors import MusterError
from muster.providers.kuberay.source import RayClusterSource
from muster.stores.ledger.memory import MemoryInstanceStore

CPUS = 4


class PodsAsRuntime:
    """A runtime in which every running pod is a node; work is placed on nodes with room, by group."""

    def __init__(self, world):
        self.world, self.version = world, 0
        self.busy, self.drained, self.idle_since, self.now = set(), set(), {}, 0.0
        self.waiting = 0  # tasks of one pod each
        self.demands = ()  # other demand, which nothing serves
        self.killed_work = []
        self.deadlines = {}
        self.lives = {}  # how often the raylet of a pod was restarted
        self.domain = ""  # nodes register with a name in it, as with KubeRay's `podFQDN`

    def pods(self):
        return self.world.admin.pods("ray.io/cluster=demo")

    def read(self):
        self.version += 1
        pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
        live = {name for name, pod in pods.items() if pod["status"].get("phase") == "Running"}
        self.killed_work += sorted(self.busy - live)
        self.waiting += len(self.busy - live)  # a task whose node died asks again
        self.busy &= live
        workers = sorted(name for name in live - {"demo-head"} if name not in self.drained)
        for name in workers:
            if self.waiting and name not in self.busy:
                self.busy.add(name)
                self.waiting -= 1
        nodes = [self._node(name, pods[name]) for name in sorted(live)]
        demands = (Demand(shape=Resources.of(CPU=CPUS), count=self.waiting),) if self.waiting else ()
        return RuntimeReport(version=self.version, nodes=tuple(nodes), demands=(*demands, *self.demands))

    def _node(self, name, pod):
        is_head, is_busy = name == "demo-head", name in self.busy
        since = self.idle_since.setdefault(name, self.now)
        if is_busy:
            self.idle_since[name] = self.now
        status = NodeStatus.RUNNING if is_busy or is_head else NodeStatus.IDLE
        status = NodeStatus.DEAD if name in self.drained and not is_busy else status
        status = NodeStatus.DRAINING if name in self.drained and is_busy else status
        total = Resources.of(CPU=0 if is_head else CPUS)
        return NodeReport(
            node_id=NodeId(f"n-{name}#{self.lives.get(name, 0)}"),
            cloud_id=name,
            node_type=pod["metadata"]["labels"]["ray.io/group"],
            status=status,
            is_head=is_head,
            total=total,
            available=Resources.of(CPU=0) if is_busy or is_head else total,
            idle_s=0.0 if is_busy else self.now - since,
            ip=f"{name}.{self.domain}" if self.domain else "",
        )

    def publish(self, version, report):
        pass

    def drain(self, action):
        name, _, life = str(action.node_id).removeprefix("n-").partition("#")
        if int(life) != self.lives.get(name, 0):
            return
        if name in self.busy and action.may_be_refused:
            return
        self.drained.add(name)
        self.deadlines[name] = action.deadline_s

    def restart(self, name):
        """The container starts again: another node in the same pod."""
        self.lives[name] = self.lives.get(name, 0) + 1
        self.drained.discard(name)

    def under_way(self, request_id):
        return False

    def poll(self):
        return ()


class Loop:
    """Ticks, patches and passes of the operator, one after the other; the clock is the test's."""

    def __init__(self, world, provider):
        self.world, self.provider = world, provider
        self.clock = ManualClock(time.time())  # deletion timestamps are those of the server
        world.operator.now = self.clock.now
        self.runtime = PodsAsRuntime(world)
        self.store = MemoryInstanceStore(clock=self.clock)
        self.source = RayClusterSource(provider, {})
        ambient = Ambient(clock=self.clock, ids=CountingIds(), seed=Seed(1))
        self.ports = Ports(
            provider=provider,
            nodes=self.runtime,
            drainer=self.runtime,
            installer=None,
            store=self.store,
            spec=self.source,
            notices=provider,
        )
        self.controller = ClusterController(self.ports, ambient)
        self.plans = []

    def tick(self, times=1, seconds=2.0, operator=True, patch=True):
        for _ in range(times):
            self.clock.advance(seconds)
            self.runtime.now = self.clock.now()
            self.plans.append(self.controller.tick().plan)
            with contextlib.suppress(MusterError):  # the thread would try again
                if patch:
                    self.provider.scaler.step()
            if operator:
                self.world.operator.step()
                self.world.caught_up(self.provider)

    def states(self):
        records = self.store.load().instances.values()
        return sorted(record.state.name for record in records if record.node_type != "headgroup")

"""Implement the ports of a simulated cluster beside cloud and runtime: spec, drains, installer, resizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.base.ids import CloudId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import (
    ClusterSpec,
    DrainFailure,
    InstallFailure,
    NodeStatus,
    ResizeFailure,
    health_key,
)
from muster.cluster.plan import Drain, Install, ResizeNode
from muster.cluster.ports import Drainer, Installer
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import SimNode, listeners_on
from muster.sim.cluster.world import World


class SimSpec:
    """Implements the SpecSource port."""

    def __init__(
        self, crash_points: CrashPoints, faults: Faults, spec: ClusterSpec, sells: Catalogue
    ) -> None:
        self.crash_points = crash_points
        self.spec = spec
        self._faults, self._sells = faults, sells

    @crash_point("spec.current")
    def current(self) -> tuple[ClusterSpec, str]:
        bad = self._faults.hit("edit_invalid")
        return self.spec, "simulated: available_node_types.gpu: not a mapping" if bad else ""


class SimDrains(Drainer):
    """SimDrains implements the Drainer port; with `ends_at_deadline` work ends when its time is up."""

    def __init__(self, world: World, crash_points: CrashPoints, faults: Faults, runtime: SimRuntime) -> None:
        self.crash_points = crash_points
        self.requested: list[Drain] = []
        self.ends_at_deadline = True
        self._world, self._faults, self._runtime = world, faults, runtime
        self._failures: list[DrainFailure] = []

    @crash_point("drainer.drain")
    def drain(self, action: Drain) -> None:
        self.requested.append(action)
        if self._faults.hit("drain_lost"):
            return
        if self._faults.hit("drain_refused"):
            if self._faults.stream("drain_refused").random() < 0.5:
                raise ConnectionError("simulated: the drain could not be delivered")
            self._refuse(action, "simulated: drain refused")
            return
        node = self._runtime.nodes.get(action.node_id)
        if node is None or not node.alive:
            return  # as the runtime does it: a node it does not know is drained already
        if not action.may_be_refused:
            self.begin(node, action.deadline_s)
        elif node.running:
            self._refuse(action, "the node to be idle terminated is no longer idle")
        else:
            self._runtime.kill_node(node)

    @crash_point("drainer.poll")
    def poll(self) -> Sequence[DrainFailure]:
        failures, self._failures = tuple(self._failures), []
        return failures

    def begin(self, node: SimNode, deadline_s: float) -> None:
        """Let the node take no new work; running work may continue until the deadline."""
        deadline_at = self._world.time + deadline_s
        earlier = node.drain_deadline_at
        node.drain_deadline_at = deadline_at if earlier is None else min(earlier, deadline_at)
        node.status = NodeStatus.DRAINING
        if node.running and self.ends_at_deadline:
            self._world.after(deadline_s, lambda: self._runtime.kill_node(node))
        for listener in tuple(listeners_on(node)):
            listener.draining(node.drain_deadline_at)
        if not node.running:
            self._runtime.kill_node(node)

    def _refuse(self, action: Drain, message: str) -> None:
        self._failures.append(DrainFailure(instance_id=action.instance_id, message=message))


class SimInstaller(Installer):
    """Implements the Installer port, idempotent per request id."""

    def __init__(
        self,
        world: World,
        crash_points: CrashPoints,
        faults: Faults,
        find: Callable[[CloudId], CloudMachine | None],
    ) -> None:
        self.crash_points = crash_points
        self.takes_s = 10.0
        self.broken = ""  # the type, or the offer by `health_key`, whose set-ups fail
        self.on_installed: Callable[[CloudMachine], None] = lambda machine: None
        self._world, self._faults, self._find = world, faults, find
        self.started: list[Install] = []
        self._seen: set[RequestId] = set()
        self._failures: list[InstallFailure] = []

    @crash_point("installer.start")
    def start(self, action: Install) -> None:
        if action.request_id in self._seen:
            return
        self._seen.add(action.request_id)
        self.started.append(action)
        machine = self._find(action.cloud_id)
        if machine is None or self._faults.hit("install_hangs"):
            return
        offer = machine.offer.name if machine.offer is not None else ""
        is_broken = self.broken in (machine.node_type, health_key(machine.node_type, offer))
        fails = self._faults.hit("install_fails") or (is_broken and self._faults.hit("setup_broken"))
        self._world.after(self.takes_s, lambda: self._finish(action, machine, fails))

    def _finish(self, action: Install, machine: CloudMachine, fails: bool) -> None:
        if fails or not machine.answers(self._world.time):
            failure = InstallFailure(instance_id=action.instance_id, message="simulated: ssh never answered")
            self._failures.append(failure)
        else:
            self.on_installed(machine)

    @crash_point("installer.poll")
    def poll(self) -> Sequence[InstallFailure]:
        failures, self._failures = tuple(self._failures), []
        return failures


class SimResizer:
    """Implements the NodeResizer port: a node counts another size a moment later."""

    def __init__(self, world: World, crash_points: CrashPoints, faults: Faults, runtime: SimRuntime) -> None:
        self.crash_points = crash_points
        self._world, self._faults, self._runtime = world, faults, runtime
        self._failures: list[ResizeFailure] = []

    @crash_point("resizer.resize")
    def resize(self, action: ResizeNode) -> None:
        if self._faults.hit("node_resize_lost"):
            return
        if self._faults.hit("node_resize_refused"):
            failure = ResizeFailure(cloud_id=action.cloud_id, message="simulated: no raylet", is_of_node=True)
            self._failures.append(failure)
            return
        node = self._runtime.nodes.get(action.node_id)
        if node is not None and node.alive:
            self._world.after(1.0, lambda: self._count(node, action.desired))

    @crash_point("resizer.poll")
    def poll(self) -> Sequence[ResizeFailure]:
        failures, self._failures = tuple(self._failures), []
        return failures

    def _count(self, node: SimNode, desired: Resources) -> None:
        total = dict(node.total)
        for name, units in desired.items():
            used = total.get(name, 0) - node.free.get(name, 0)
            total[name] = max(units, used)
            node.free[name] = total[name] - used
        node.total = Resources(total)
        self._runtime.schedule()

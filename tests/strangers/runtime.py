"""A runtime that reports late, in part or nonsense, over the nodes that really run; drains and installs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from tests.strangers.truth import Machine, Node, World

from muster.base.ids import CloudId, NodeId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import (
    Constraint,
    Demand,
    DrainFailure,
    Gang,
    InstallFailure,
    NodeReport,
    NodeStatus,
    RuntimeReport,
    StopCause,
)
from muster.cluster.plan import Drain, Install, ScalingReport
from muster.cluster.ports import Drainer, Installer

KEPT_DEAD_S = 200.0  # how long the runtime lists nodes that died


class Runtime:
    """The runtime of the cluster: it outlives every process of the autoscaler, but not its head."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.version = 0
        self.forgotten: set[str] = set()  # nodes of an earlier head that nobody lists any more
        self._older: list[RuntimeReport] = []

    def restart(self, forgotten: set[str]) -> None:
        """Begin to count reports from zero, as a new head does."""
        self.version, self._older = 0, []
        self.forgotten |= forgotten

    def report(self) -> RuntimeReport:
        self.version += 1
        nodes = [row for node in self.world.nodes if (row := self._row(node)) is not None]
        waiting = [w for w in self.world.works if w.waits]
        shapes = Counter(w.bundles[0] for w in waiting if w.strategy is None)
        gangs = [
            Gang(gang_id=w.name, strategy=w.strategy, options=(tuple(Demand(shape=b) for b in w.bundles),))
            for w in waiting
            if w.strategy is not None
        ]
        wanted = self.world.constraint
        report = RuntimeReport(
            version=self.version,
            nodes=tuple(nodes),
            demands=tuple(Demand(shape=shape, count=count) for shape, count in shapes.items()),
            gangs=tuple(gangs),
            constraints=(Constraint(demands=wanted),) if wanted else (),
        )
        self._older = [*self._older[-3:], report]
        return self._spoiled(report)

    def _row(self, node: Node) -> NodeReport | None:
        world, machine = self.world, node.machine
        is_over = not node.lives and world.t > (node.died_at or 0.0) + KEPT_DEAD_S
        if node.node_id in self.forgotten or is_over:
            return None
        status = NodeStatus.RUNNING if node.work else NodeStatus.IDLE
        if not node.lives and world.t >= node.shown_alive_until:
            status = NodeStatus.DEAD
        elif node.is_draining:
            status = NodeStatus.DRAINING
        is_bare_head = node.is_head and "head-without-id" in world.faults  # it was started by hand
        return NodeReport(
            node_id=NodeId(node.node_id),
            cloud_id=None if is_bare_head else _shown_id(machine),
            node_type="" if is_bare_head else machine.node_type,
            status=status,
            is_head=node.is_head,
            total=machine.total,
            available=node.free,
            idle_s=0.0 if node.work else world.t - node.idle_since,
            ip="" if machine.quirks & {"node-without-ip", "node-without-both"} else machine.ip,
        )

    def _spoiled(self, report: RuntimeReport) -> RuntimeReport:
        world = self.world
        if world.hit("report-fails"):
            raise ConnectionError("the runtime does not answer")
        if world.hit("report-stale"):
            return self._older[0]
        if world.hit("report-half"):
            draw = world.stream("halves")
            report = replace(report, nodes=tuple(n for n in report.nodes if n.is_head or draw.random() < 0.5))
        if world.hit("report-garbage"):
            report = replace(report, **_garbage(report))
        return report


def _shown_id(machine: Machine) -> CloudId | None:
    """Return the cloud id as the node reports it."""
    if machine.quirks & {"node-without-id", "node-without-both"}:
        return None
    if machine.borrowed_id:
        return CloudId(machine.borrowed_id)
    return CloudId(machine.cloud_id.upper() if "node-id-case" in machine.quirks else machine.cloud_id)


def _garbage(report: RuntimeReport) -> dict[str, Any]:
    """Rows that cannot be used, beside the good ones; one good row becomes unusable."""
    rows: list[Any] = [*report.nodes, 7, None, NodeReport(node_id=NodeId(""))]
    if len(report.nodes) > 1:
        rows[1] = replace(report.nodes[1], status=NodeStatus.UNSPECIFIED)
    odd: list[Any] = [*report.demands, "x", Demand(shape=Resources(), count=-1)]
    return {"nodes": tuple(rows), "demands": tuple(odd), "gangs": (*report.gangs, 3.5)}


class RuntimeClient(Drainer):
    """The runtime's side of one process: reads, drains. Refusals that were not polled are lost with it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.world = runtime, runtime.world
        self._refused: list[DrainFailure] = []

    def read(self) -> RuntimeReport:
        return self._runtime.report()

    def publish(self, version: int, report: ScalingReport) -> None:
        """Nobody reads it here."""

    def drain(self, action: Drain) -> None:
        if self.world.hit("drain-call-lost"):
            raise TimeoutError("no connection")
        node = next((n for n in self.world.nodes if n.node_id == action.node_id and n.lives), None)
        if node is None:
            return
        is_idle_drain = action.cause is StopCause.IDLE
        if (is_idle_drain and node.work) or self.world.hit("drain-refused"):
            self._refused.append(DrainFailure(instance_id=action.instance_id, message="busy"))
        elif not self.world.hit("drain-ignored"):
            node.cause = action.cause
            node.drained_until = self.world.t + (3.0 if is_idle_drain else action.deadline_s)

    def poll(self) -> Sequence[DrainFailure]:
        found, self._refused = self._refused, []
        return found


class Setup(Installer):
    """The installer of one process. Its runs end with it; what a run has started on a machine stays."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._runs: dict[str, tuple[float, Install, bool]] = {}
        self._failed: list[InstallFailure] = []

    def start(self, action: Install) -> None:
        machine = self.world.machine(action.cloud_id)
        if machine is None or action.request_id in self._runs:
            return
        draw = self.world.stream("setups")
        if self.world.hit("install-hangs") or "node-never" in machine.quirks:
            self._runs[action.request_id] = (float("inf"), action, False)
            return
        fails = self.world.hit("install-fails")
        due = self.world.t + draw.uniform(15, 60)
        if (not fails or self.world.hit("install-lies")) and self.world.node_on(machine) is None:
            machine.boots_at = due
        self._runs[action.request_id] = (due, action, fails)

    def poll(self) -> Sequence[InstallFailure]:
        for request_id, (due, action, fails) in tuple(self._runs.items()):
            if self.world.t >= due:
                del self._runs[request_id]
                if fails:
                    failure = InstallFailure(instance_id=action.instance_id, message="exit code 1")
                    self._failed.append(failure)
        found, self._failed = self._failed, []
        return found

    def under_way(self, request_id: RequestId) -> bool:
        return request_id in self._runs

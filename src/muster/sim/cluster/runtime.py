"""Simulate the runtime: nodes, their work, idle times and pending demand.

Schedules by itself (first fit on what is really free); the controller only sees its reports. Implements
NodeSource; drains are in `build.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from muster.base.ids import NodeId
from muster.base.resources import EMPTY, Resources
from muster.cluster.model import (
    Constraint,
    Demand,
    DriverReport,
    Gang,
    NodeKind,
    NodeReport,
    NodeStatus,
    NodeType,
    RuntimeReport,
    Selector,
    Strategy,
)
from muster.cluster.plan import ScalingReport
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.tasks import FOREVER, GangListener, GangWork, SimNode, Task, TaskClass, spots_for
from muster.sim.cluster.world import World


class SimRuntime:
    """Has nodes and work as they truly are, and reports them."""

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, dead_kept_s: float = 60.0
    ) -> None:
        self.crash_points = crash_points
        self.nodes: dict[NodeId, SimNode] = {}
        self.pending: dict[TaskClass, deque[Task]] = {}
        self.gangs: dict[str, GangWork] = {}  # pending and placed
        self.constraints: tuple[Constraint, ...] = ()
        self.drivers: DriverReport | None = None  # who uses the cluster, where the run knows it
        self.finished = 0
        self.waits: list[float] = []  # of every task, from submission to its first start
        self.published: list[int] = []
        self.shown_alive: set[NodeId] = set()  # nodes reported to the controller at least once
        self.report_read: RuntimeReport | None = None  # the last answer; None: it failed
        self.last_report: RuntimeReport | None = None  # the last answer that was given
        self._world, self._faults, self._dead_kept_s = world, faults, dead_kept_s
        self._tasks = self._joined = self._version = 0
        self._frozen_until = self._silent_until = 0.0

    # -- the port ---------------------------------------------------------------------------------

    @crash_point("runtime.read")
    def read(self) -> RuntimeReport:
        now, faults = self._world.time, self._faults
        self.report_read = None
        if faults.hit("report_fails"):
            self._silent_until = now + faults.between("report_fails", 1, 60)
        if now < self._silent_until:
            raise ConnectionError("simulated: the runtime does not answer")
        if faults.hit("report_stale"):
            self._frozen_until = now + faults.between("report_stale", 1, 40)
        self._version += 1
        if now >= self._frozen_until or self.last_report is None:
            self.last_report = self._report()
        report = replace(self.last_report, version=self._version)
        report = self._altered(report)
        self.shown_alive.update(n.node_id for n in report.nodes if n.status is not NodeStatus.DEAD)
        self.report_read = report
        return report

    def _altered(self, report: RuntimeReport) -> RuntimeReport:
        """Return the report as it arrives; the runtimes of fault sweeps damage it here."""
        return report

    @crash_point("runtime.publish")
    def publish(self, version: int, report: ScalingReport) -> None:
        if self._faults.hit("publish_fails"):
            raise ConnectionError("simulated: the runtime does not take the report")
        self.published.append(version)

    # -- work -------------------------------------------------------------------------------------

    def submit(self, like: TaskClass, count: int, duration_s: float) -> None:
        self.submit_all([(like, duration_s)] * count)

    def submit_all(self, works: Iterable[tuple[TaskClass, float]]) -> None:
        """Submit tasks, each with its duration, at one moment."""
        for like, duration_s in works:
            self._enqueue(self._new_task(like, duration_s))
        self.schedule()

    def submit_gang(self, gang: GangWork) -> None:
        for task in gang.tasks:
            task.gang = gang
        self.gangs[gang.gang_id] = gang
        self.schedule()

    def withdraw_gang(self, gang: GangWork) -> None:
        """Remove a gang, pending or placed; its bundles are free for others."""
        if self.gangs.pop(gang.gang_id, None) is None:
            return
        held_by = [task.node for task in gang.tasks if task.node is not None]
        for task in gang.tasks:
            task.attempt += 1
            if task.node is not None:
                task.node.release(task, self._world.time)
        for node in held_by:
            self._end_if_drained(node)
        if held_by:
            self.schedule()

    def bundle(self, shape: Resources, selectors: tuple[Selector, ...] = ()) -> Task:
        """Return one bundle for a gang about to be submitted."""
        return self._new_task(TaskClass(shape, selectors), FOREVER)

    def withdraw(self, name: str) -> int:
        """Remove the pending tasks of this name; return how many there were."""
        gone = [like for like in self.pending if like.name == name]
        return sum(len(self.pending.pop(like)) for like in gone)

    def schedule(self) -> None:
        """Start whatever has room now: gangs first, then tasks, one class after the other."""
        serving = [node for node in self.nodes.values() if node.serves]
        without_room: set[tuple[TaskClass, int, Strategy]] = set()  # a gang like one of these has none either
        for gang in self.gangs.values():
            kind = (gang.tasks[0].like, len(gang.tasks), gang.strategy)
            if gang.placed or kind in without_room:
                continue
            spots = spots_for(gang, serving)
            if spots is None:
                without_room.add(kind)
                continue
            for task, node in zip(gang.tasks, spots, strict=True):
                node.take(task)
            self._finish_later(gang.tasks[0], gang.duration_s)
            if gang.listener is not None:
                gang.listener.placed()
        for like, queue in self.pending.items():
            for node in serving:
                while queue and node.has_room(like):
                    task = queue.popleft()
                    node.take(task)
                    self._finish_later(task, task.duration_s)
                if not queue:
                    break

    def pending_tasks(self) -> int:
        return sum(len(queue) for queue in self.pending.values())

    def pending_gangs(self) -> list[GangWork]:
        return [gang for gang in self.gangs.values() if not gang.placed]

    def _new_task(self, like: TaskClass, duration_s: float) -> Task:
        self._tasks += 1
        return Task(self._tasks, like, duration_s, submitted_at=self._world.time)

    def _enqueue(self, task: Task) -> None:
        self.pending.setdefault(task.like, deque()).append(task)

    def _finish_later(self, task: Task, duration_s: float) -> None:
        task.attempt += 1
        attempt = task.attempt
        if attempt == 1:
            self.waits.append(self._world.time - task.submitted_at)
        if duration_s != FOREVER:
            self._world.after(duration_s, lambda: self._finish(task, attempt))

    def _finish(self, task: Task, attempt: int) -> None:
        if task.node is None or task.attempt != attempt or not task.node.machine.exists:
            return  # its node or its machine went away meanwhile
        if task.gang:
            del self.gangs[task.gang.gang_id]  # before drained nodes end: this gang is done in any case
        members = tuple(task.gang.tasks if task.gang else (task,))
        held_by = [member.node for member in members if member.node is not None]
        for member in members:
            if member.node is not None:
                member.node.release(member, self._world.time)
            self.finished += 1
        for node in held_by:
            self._end_if_drained(node)
        self.schedule()

    def _end_if_drained(self, node: SimNode) -> None:
        """A draining node ends when its work does."""
        if node.status is NodeStatus.DRAINING and not node.running:
            self.kill_node(node)

    # -- nodes ------------------------------------------------------------------------------------

    def join(
        self, machine: CloudMachine, node_type: NodeType | None, size: Resources = EMPTY
    ) -> SimNode | None:
        """Register the machine's node, under a new id each time; None when the machine is gone.

        `size` is that of a machine that was resized.
        """
        if not machine.exists:
            return None
        self._joined += 1
        total = Resources({**(node_type.resources if node_type else EMPTY), **size})
        labels = dict(node_type.labels) if node_type else {}
        node_id = NodeId(f"n-{self._joined:04d}")
        node = SimNode(node_id, machine, total, labels, is_head=machine.kind is NodeKind.HEAD)
        node.joined_at = node.idle_since = self._world.time
        if not node.is_head:
            without_ip = self._faults.hit("node_without_ip")
            node.hides_id = self._faults.hit("node_without_id") or without_ip
            node.ip = "" if without_ip else machine.ip
        self.nodes[node_id] = node
        self.schedule()
        return node

    def node_on(self, machine: CloudMachine) -> SimNode | None:
        """Return the live node on a machine."""
        return next((n for n in self.nodes.values() if n.machine is machine and n.alive), None)

    def live_nodes(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.alive]

    def kill_node(self, node: SimNode) -> None:
        """Kill the node; its work is pending again."""
        if not node.alive:
            return
        node.status, node.died_at = NodeStatus.DEAD, self._world.time
        emptied: list[SimNode] = []
        bereft: dict[str, GangListener] = {}
        for task in tuple(node.running.values()):
            if task.gang is not None and task.gang.listener is not None:
                self.gangs.pop(task.gang.gang_id, None)
                bereft[task.gang.gang_id] = task.gang.listener
            for member in task.gang.tasks if task.gang else (task,):
                if member.node is not None:
                    emptied.append(member.node)
                    member.node.release(member, self._world.time)
                member.attempt += 1
            if task.gang is None:
                self._enqueue(task)
        for other in emptied:
            self._end_if_drained(other)
        for listener in bereft.values():
            listener.lost(node)
        self.schedule()

    # -- the report -------------------------------------------------------------------------------

    def _report(self) -> RuntimeReport:
        now = self._world.time
        forget = [
            n for n in self.nodes.values() if n.died_at is not None and now - n.died_at > self._dead_kept_s
        ]
        for node in forget:
            del self.nodes[node.node_id]
        return RuntimeReport(
            nodes=tuple(self._shown(node) for node in self.nodes.values()),
            demands=tuple(
                Demand(shape=like.shape, count=len(queue), selectors=like.selectors, name=like.name)
                for like, queue in self.pending.items()
                if queue
            ),
            gangs=tuple(_asked(gang) for gang in self.pending_gangs()),
            constraints=self.constraints,
            drivers=self.drivers,
        )

    def _shown(self, node: SimNode) -> NodeReport:
        idle = node.serves and not node.running
        dead = not node.alive
        return NodeReport(
            node_id=node.node_id,
            # When the faults stop, somebody has set the ids that were missing.
            cloud_id=None if node.hides_id and not self._faults.stopped else node.machine.cloud_id,
            node_type=node.machine.node_type,
            ip=node.ip,
            status=NodeStatus.IDLE if idle else node.status,
            is_head=node.is_head,
            total=EMPTY if dead else node.total,
            available=EMPTY if dead else Resources(node.free),
            labels=node.labels.copy(),
            idle_s=self._world.time - node.idle_since if idle else 0.0,
        )


def _asked(gang: GangWork) -> Gang:
    bundles = tuple(Demand(shape=task.like.shape, selectors=task.like.selectors) for task in gang.tasks)
    return Gang(gang_id=gang.gang_id, strategy=gang.strategy, options=(bundles,))

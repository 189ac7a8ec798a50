"""Build one simulated cluster with all its parts, and the controller that runs it.

The composition root of the simulator: stories, quotes, backtests and seeds all start here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.base.clock import Boot
from muster.base.ids import CountingIds, InstanceId, RequestId
from muster.base.resources import EMPTY
from muster.base.rng import Ambient, Seed
from muster.cluster.controller import ClusterController, Ports
from muster.cluster.cost import spend_so_far
from muster.cluster.model import Instance, NodeKind
from muster.cluster.plan import Plan
from muster.cluster.ports import InstanceStore, Ledger, TickResult
from muster.cluster.states import TERMINAL
from muster.errors import StoreError
from muster.sim.cluster.cloud import SimCloud, noticed_after_s
from muster.sim.cluster.crash_points import CrashPoints, Killed, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import HEAD_TYPE, RunOptions
from muster.sim.cluster.ports import SimDrains, SimInstaller, SimResizer, SimSpec
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import listeners_on
from muster.sim.cluster.world import World
from muster.stores.ledger.memory import MemoryInstanceStore


@dataclass
class CommittedPlan:
    """One decision as it was written, and the records before it."""

    before: dict[InstanceId, Instance | None]
    plan: Plan
    old_version: int
    new_version: int


class SimStore:
    """Implements the InstanceStore port over an inner store."""

    def __init__(self, crash_points: CrashPoints, faults: Faults, inner: InstanceStore) -> None:
        self.crash_points = crash_points
        self.records: dict[InstanceId, Instance] = {}  # the newest of every record ever
        self.live: dict[InstanceId, Instance] = {}  # those not in a terminal state
        self.commits: list[CommittedPlan] = []  # since the checkers last ran
        self.committed: Plan | None = None  # what this tick wrote down, if it did
        self.newest: Plan | None = None  # the last one written down, by any controller
        self.version = 0
        self.inner = inner
        self._faults = faults

    @crash_point("store.load")
    def load(self) -> Ledger:
        if self._faults.hit("store_read_fails"):
            raise StoreError("simulated: the ledger cannot be read")
        return self.inner.load()

    @crash_point("store.commit")
    def commit(self, version: int, plan: Plan) -> int:
        if self._faults.hit("store_write_fails"):
            raise StoreError("simulated: no space left on device")
        written = self.inner.commit(version, plan)
        before = {record.instance_id: self.records.get(record.instance_id) for record in plan.writes}
        self._note(plan)
        self.commits.append(CommittedPlan(before, plan, version, written))
        self.committed = self.newest = plan
        self.version = written
        if self._faults.hit("store_write_unclear"):
            raise StoreError("simulated: written, but the disk did not confirm it")
        return written

    @crash_point("store.handed_over")
    def handed_over(self, request_ids: Sequence[RequestId]) -> None:
        if self._faults.hit("store_write_fails"):
            raise StoreError("simulated: no space left on device")
        self.inner.handed_over(request_ids)

    @crash_point("store.raise_version")
    def raise_version(self, at_least: int) -> int:
        return self.inner.raise_version(at_least)

    def _note(self, plan: Plan) -> None:
        for record in plan.writes:
            self.records[record.instance_id] = record
            if record.state in TERMINAL:
                self.live.pop(record.instance_id, None)
            else:
                self.live[record.instance_id] = record


# Called for every new controller: a file is opened again, memory is kept.
OpenStore = Callable[[], InstanceStore]


class SimulatedCluster:
    """The world of one run; `tick()` runs the controller once, time passes outside."""

    cloud_class: ClassVar[type[SimCloud]] = SimCloud
    runtime_class: ClassVar[type[SimRuntime]] = SimRuntime
    spec_class: ClassVar[type[SimSpec]] = SimSpec

    def __init__(
        self,
        seed: Seed,
        options: RunOptions,
        faults: Faults,
        open_store: OpenStore | None = None,
        crash_points: CrashPoints | None = None,
        world: World | None = None,
    ) -> None:
        self.seed, self.options, self.faults = seed, options, faults
        self.world, self.crash_points = world or World(), crash_points or CrashPoints()
        draw = seed.derive("sim.cloud")
        self.cloud = self.cloud_class(self.world, self.crash_points, faults, draw, options.catalogue)
        self.runtime = self.runtime_class(self.world, self.crash_points, faults, options.dead_kept_s)
        self.drains = SimDrains(self.world, self.crash_points, faults, self.runtime)
        self.resizer = SimResizer(self.world, self.crash_points, faults, self.runtime)
        self.installer = SimInstaller(self.world, self.crash_points, faults, self.cloud.find)
        memory = MemoryInstanceStore()
        self._open_store: OpenStore = open_store or (lambda: memory)
        self.store = SimStore(self.crash_points, faults, self._open_store())
        self.spec = self.spec_class(self.crash_points, faults, options.spec, options.catalogue)
        self.controller: ClusterController | None = None
        self.lives = 0  # how many controllers there have been
        self.boots = 1  # and how many times their machine, or another one, was started
        self.plan: Plan | None = None  # of this tick; None when the controller died in it or is down
        self.result: TickResult | None = None  # all of this tick, likewise
        self.problem = ""  # an exception that reached the simulator
        self._connect()

    def _connect(self) -> None:
        self.drains.ends_at_deadline = self.options.runtime_ends_drains
        self.installer.takes_s, self.installer.broken = self.options.install_s, self.options.broken_setup
        self.installer.on_installed = self.join
        self.cloud.installs_runtime = not self.options.spec.install_runtime
        self.cloud.on_up = self._came_up
        self.cloud.on_gone = self._went
        self.cloud.is_passing = self._is_passing
        self._start_head()
        self.world.advance(0.0)

    def _start_head(self) -> None:
        head = self.cloud.create(self.options.spec.head_node_type or HEAD_TYPE, NodeKind.HEAD)
        head.up = True
        self.world.after(self.options.head_late_s, lambda: self.join(head))

    def rest(self) -> None:
        """Skip a tick, as when no controller is running."""
        self.plan, self.result, self.problem = None, None, ""
        self.store.committed = None
        self.cloud.listed, self.runtime.report_read = None, None

    def spent(self) -> float:
        """Return the $ spent so far, by the ledger."""
        plan = self.store.newest
        return 0.0 if plan is None else spend_so_far(self.store.live.values(), plan.memory, plan.at)

    def tick(self) -> None:
        """Run one tick of the controller, which is started when there is none."""
        self.rest()
        try:
            if self.controller is None:
                self.controller = self._start_controller()
            self.result = self.controller.tick()
            self.plan = self.result.plan
        except Killed:
            self.controller = None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.problem = f"the loop stopped: {type(error).__name__}: {error}"
            self.controller = None
        finally:
            self.crash_points.kill_after = None

    def _start_controller(self) -> ClusterController:
        self.lives += 1
        self.cloud.reconnect()
        if self.lives > 1:
            self.store.inner = self._open_store()
        boot = Boot(f"boot-{self.boots}", self.world.monotonic)
        return ClusterController(
            self.ports(), Ambient(self.world, CountingIds(epoch=self.lives), self.seed, boot)
        )

    def ports(self) -> Ports:
        """Return what a controller is connected to."""
        return Ports(
            provider=self.cloud,
            nodes=self.runtime,
            drainer=self.drains,
            installer=self.installer if self.options.spec.install_runtime else None,
            store=self.store,
            spec=self.spec,
            resizer=self.resizer if any(known.resize for known in self.options.spec.node_types) else None,
        )

    # -- how machines, nodes and work hang together ------------------------------------------------

    def join(self, machine: CloudMachine) -> None:
        """Register the machine's node, if the machine exists and answers; one that ran there is replaced."""
        if not machine.answers(self.world.time):
            return
        before = self.runtime.node_on(machine)
        if before is not None:
            self.runtime.kill_node(before)
        status = self.cloud.sizes.now.get(machine.cloud_id)
        size = status.current if status is not None else EMPTY
        self.runtime.join(machine, self.cloud.sells.types.get(machine.node_type), size)

    def _came_up(self, machine: CloudMachine) -> None:
        if not self.cloud.installs_runtime or self.faults.hit("join_never"):
            return  # the installer brings the node, or nothing does
        late = self.faults.between("join_late", 20, 150) if self.faults.hit("join_late") else 0.0
        self.world.after(late, lambda: self.join(machine))

    def _is_passing(self, machine: CloudMachine) -> bool:
        """Return whether a machine boots, drains or has no node any more."""
        node = self.runtime.node_on(machine)
        return machine.kind is NodeKind.WORKER and (node is None or not node.serves)

    def _went(self, machine: CloudMachine) -> None:
        node = self.runtime.node_on(machine)
        if node is not None:
            for listener in tuple(listeners_on(node)):
                listener.frozen()
            self.world.after(noticed_after_s(machine.ended_how), lambda: self.runtime.kill_node(node))

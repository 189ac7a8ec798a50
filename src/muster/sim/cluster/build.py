"""Builds one simulated cluster with all its parts, and the controller that runs it.

The composition root of the simulator: the runs, the crash matrix and the story all start here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.base.ambient import Ambient
from muster.base.ids import CloudId, CountingIds, InstanceId, RequestId
from muster.base.resources import EMPTY
from muster.base.rng import Seed, Stream
from muster.cluster.controller import ClusterController, Ports
from muster.cluster.model import (
    Instance,
    NodeKind,
)
from muster.cluster.plan import Plan
from muster.cluster.ports import InstanceStore, Ledger, TickResult
from muster.cluster.spend import spend_so_far
from muster.cluster.states import TERMINAL
from muster.errors import StoreError
from muster.sim.cluster.cloud import CloudMachine, SimCloud, noticed_after_s
from muster.sim.cluster.crash_points import CrashPoints, Killed, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE, RunOptions
from muster.sim.cluster.ports import SimDrains, SimInstaller, SimResizer, SimSpec
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import SimNode, listeners_on
from muster.sim.cluster.world import World
from muster.stores.ledger.backup import settle_restored
from muster.stores.ledger.memory import MemoryInstanceStore


@dataclass
class CommittedPlan:
    """A CommittedPlan is one decision as it was written, and the records before it."""

    before: dict[InstanceId, Instance | None]
    plan: Plan
    old_version: int
    new_version: int


class SimStore:
    """A SimStore implements the InstanceStore port over an inner store."""

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

    def restart_from(self, inner: MemoryInstanceStore, records: Mapping[InstanceId, Instance]) -> None:
        """Continues from an older ledger and the records of then, as if nothing had been written since."""
        self.inner, self.committed, self.newest = inner, None, None
        self.commits.clear()
        self.records = {**records, **{record.instance_id: record for record in inner.find()}}
        self.live = dict(inner.load().instances)
        self.version = inner.load().version

    def _note(self, plan: Plan) -> None:
        for record in plan.writes:
            self.records[record.instance_id] = record
            if record.state in TERMINAL:
                self.live.pop(record.instance_id, None)
            else:
                self.live[record.instance_id] = record


@dataclass(frozen=True)
class ClockChange:
    """A ClockChange is a controller whose time differs from that of the one before by more than what passed.

    Time inside a controller is steady; only a start reads the wall clock again, or stands still behind the
    ledger. What began before such a start may seem longer or shorter than it was; what began later is exact.
    """

    at: float  # true time of its first decision
    plan_at: float  # the same in its own time
    ahead_s: float  # by how much more than true time its own has moved; negative: it stood still


CLOCK_PRECISION_S = 1e-3  # times are sums of floats near 1.8e9
KEPT_COPIES = 12  # ticks that the ledger of a new head is behind at most
LedgerAtTick = tuple[MemoryInstanceStore, dict[InstanceId, Instance]]  # with its pruned records
# Called for every new controller: a file is opened again, memory is kept.
OpenStore = Callable[[], InstanceStore]


class SimulatedCluster:
    """A SimulatedCluster is the world of one run; `tick()` runs the controller once, time passes outside."""

    cloud_class: ClassVar[type[SimCloud]] = SimCloud
    runtime_class: ClassVar[type[SimRuntime]] = SimRuntime

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
        self.installer = SimInstaller(self.world, self.crash_points, faults, self.cloud.machines.get)
        self.copies: deque[LedgerAtTick] = deque(maxlen=KEPT_COPIES)  # newest last
        self.restored_at: list[float] = []  # when a new head started from one
        memory = MemoryInstanceStore()
        self._open_store: OpenStore = open_store or (lambda: memory)
        self.store = SimStore(self.crash_points, faults, self._open_store())
        self.spec = SimSpec(self.crash_points, faults, options.spec, options.catalogue)
        self.controller: ClusterController | None = None
        self.lives = 0  # how many controllers there have been
        self.plan: Plan | None = None  # of this tick; None when the controller died in it or is down
        self.result: TickResult | None = None  # all of this tick, likewise
        self.problem = ""  # an exception that reached the simulator
        self.joined_by_hand: list[CloudMachine] = []  # never in the cloud's list, and not ours
        self.clock_changes: list[ClockChange] = []
        self._lead_s: float | None = None  # of the newest controller's time over true time
        self._connect()

    def _connect(self) -> None:
        self.drains.ends_at_deadline = self.options.runtime_ends_drains
        self.installer.takes_s = self.options.install_s
        self.installer.on_installed = self.join
        self.cloud.installs_runtime = not self.options.spec.install_runtime
        self.cloud.on_up = self._came_up
        self.cloud.on_gone = self._went
        self.cloud.on_off = self._lost_power
        self.cloud.is_passing = self._is_passing
        self._start_head()
        self.world.advance(0.0)

    def _start_head(self) -> None:
        head = self.cloud.create(HEAD_TYPE, NodeKind.HEAD)
        head.up = True
        self.world.after(self.options.head_late_s, lambda: self.join(head))

    def keep_copy(self) -> None:
        """Copies the ledger, as a monitor does after every tick."""
        if isinstance(self.store.inner, MemoryInstanceStore):
            self.copies.append((self.store.inner.copy(), dict(self.store.records)))

    def lose_head(self, ticks_ago: int) -> None:
        """Ends the head's machine and every node; a new head starts from the ledger as it was so long ago."""
        if not self.copies:
            return
        self.runtime.forget_nodes()
        for machine in self.cloud.alive():
            if machine.kind is NodeKind.HEAD:
                self.cloud.end(machine, "lost")
        older, records = self.copies[max(-ticks_ago, -len(self.copies))]
        self.copies.clear()
        tick_id = f"restored-{len(self.restored_at) + 1}"
        settle_restored(older, tick_id, self.world.now(), is_set_up_again=self.options.spec.install_runtime)
        self.store.restart_from(older, records)
        self._open_store = lambda: older
        self.restored_at.append(self.world.time)
        self.controller = None
        self._start_head()

    def rest(self) -> None:
        """Skips a tick, as when no controller is running."""
        self.plan, self.result, self.problem = None, None, ""
        self.store.committed = None
        self.cloud.listed, self.runtime.report_read = None, None

    def spent(self) -> float:
        """Returns the $ spent so far, by the ledger."""
        plan = self.store.newest
        return 0.0 if plan is None else spend_so_far(self.store.live.values(), plan.memory, plan.at)

    def tick(self) -> None:
        """Runs one tick of the controller, which is started when there is none."""
        self.rest()
        if self.cloud.rack:
            self.spec.list_hosts(self.cloud.rack.listed(self.world.time))
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
            self._note_clock()

    def _note_clock(self) -> None:
        plan = self.store.committed
        if plan is None:
            return
        before, self._lead_s = self._lead_s, plan.at - self.world.time
        ahead_s = 0.0 if before is None else self._lead_s - before
        if abs(ahead_s) > CLOCK_PRECISION_S:
            self.clock_changes.append(ClockChange(self.world.time, plan.at, ahead_s))

    def ran_ahead_s(self, since_plan: float) -> float:
        """Returns by how much too long the time since then, by the controllers' clock, may seem to them."""
        return sum(max(0.0, c.ahead_s) for c in self.clock_changes if c.plan_at > since_plan)

    def stood_still_s(self, since: float) -> float:
        """Returns for how much of the true time since then the controllers' clock stood still."""
        return sum(max(0.0, -c.ahead_s) for c in self.clock_changes if c.at > since)

    def _start_controller(self) -> ClusterController:
        self.lives += 1
        self.cloud.reconnect()
        if self.lives > 1:
            self.store.inner = self._open_store()
        return ClusterController(self.ports(), Ambient(self.world, CountingIds(epoch=self.lives), self.seed))

    def ports(self) -> Ports:
        """Returns what a controller is connected to."""
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
        """Registers the machine's node, if the machine exists and answers; one that ran there is replaced."""
        if not machine.answers(self.world.time):
            return
        before = self.runtime.node_on(machine)
        if before is not None:
            self.runtime.kill_node(before)
        status = self.cloud.sizes.now.get(machine.cloud_id)
        size = status.current if status is not None else EMPTY
        self.runtime.join(machine, self.cloud.sells.types.get(machine.node_type), size)

    def restart_node(self, machine: CloudMachine, after_s: float) -> None:
        """Ends the runtime's process on this machine and starts it again under a new id."""
        node = self.runtime.node_on(machine)
        if node is not None:
            self.runtime.kill_node(node)
            self.world.after(after_s, lambda: self.join(machine))

    def _came_up(self, machine: CloudMachine) -> None:
        if not self.cloud.installs_runtime or self.faults.hit("join_never"):
            return  # the installer brings the node, or nothing does
        late = self.faults.between("join_late", 20, 150) if self.faults.hit("join_late") else 0.0
        self.world.after(late, lambda: self.join(machine))

    def join_by_hand(self, draw: Stream, for_s: float) -> None:
        """Lets somebody join a node of their own for a while, with or without a type and a cloud id."""
        number = len(self.joined_by_hand) + 1
        name = draw.choice(("", *sorted(self.cloud.sells.types)))
        machine = CloudMachine(CloudId(f"hand-{number}"), name, 0.0, self.world.time, up=True)
        self.joined_by_hand.append(machine)
        node = self.runtime.join(machine, self.cloud.sells.types.get(name))
        if node is not None:
            node.hides_id, node.ip = draw.random() < 0.5, draw.choice(("", f"192.168.0.{number}"))
            self.world.after(for_s, lambda: self._leave(node))

    def _leave(self, node: SimNode) -> None:
        self.runtime.kill_node(node)
        node.machine.ended_at = self.world.time

    def _is_passing(self, machine: CloudMachine) -> bool:
        """Returns whether a machine boots, drains or has no node any more."""
        node = self.runtime.node_on(machine)
        return machine.kind is NodeKind.WORKER and (node is None or not node.serves)

    def _went(self, machine: CloudMachine) -> None:
        node = self.runtime.node_on(machine)
        if node is not None:
            for listener in tuple(listeners_on(node)):
                listener.frozen()
            self.world.after(noticed_after_s(machine.ended_how), lambda: self.runtime.kill_node(node))

    def _lost_power(self, machine: CloudMachine) -> None:
        node = self.runtime.node_on(machine)
        if node is not None:
            self.runtime.kill_node(node)

"""Scene: one simulated cluster with all its parts wired together, and the controller that runs it.

The composition root of the simulator: the runs, the crash matrix and the story all start here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from muster.base.ambient import Ambient
from muster.base.ids import CountingIds
from muster.base.rng import Seed
from muster.cluster.controller import ClusterController, Ports
from muster.cluster.model import NodeKind
from muster.cluster.plan import Plan
from muster.cluster.ports import InstanceStore
from muster.cluster.spend import spend_so_far
from muster.sim.cluster.cloud import Machine, SimCloud
from muster.sim.cluster.crash_points import Killed, Wire
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE, Setting
from muster.sim.cluster.ports import SimDrains, SimInstaller, SimSpec
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.store import SimStore
from muster.sim.cluster.world import World
from muster.stores.ledger.memory import MemoryInstanceStore

LONGEST_TIMEOUT_S = 200.0
OpenStore = Callable[[], InstanceStore]  # called by every new life: a file is opened again, memory is kept


class Scene:
    """The whole world of one run. `tick()` lets the controller look and act once; time passes outside."""

    cloud_class: ClassVar[type[SimCloud]] = SimCloud

    def __init__(
        self,
        seed: Seed,
        setting: Setting,
        faults: Faults,
        open_store: OpenStore | None = None,
        wire: Wire | None = None,
        world: World | None = None,
    ) -> None:
        self.seed, self.setting, self.faults = seed, setting, faults
        self.world, self.wire = world or World(), wire or Wire()
        draw = seed.derive("sim.cloud")
        self.cloud = self.cloud_class(self.world, self.wire, faults, draw, setting.catalogue)
        self.runtime = SimRuntime(self.world, self.wire, faults, setting.dead_kept_s)
        self.drains = SimDrains(self.world, self.wire, faults, self.runtime)
        self.installer = SimInstaller(self.world, self.wire, faults, self.cloud.machines.get)
        memory = MemoryInstanceStore()
        self._open_store: OpenStore = open_store or (lambda: memory)
        self.store = SimStore(self.wire, faults, self._open_store())
        self.spec = SimSpec(self.wire, faults, setting.spec, setting.catalogue)
        self.controller: ClusterController | None = None
        self.lives = 0  # how many controllers there have been
        self.plan: Plan | None = None  # of this tick; None when the controller died in it or is down
        self.problem = ""  # an exception that reached the simulator
        self._anchor = self.world.wall_shift  # the wall clock as the running controller took it
        self._time_set_until = 0.0
        self._connect()

    def _connect(self) -> None:
        self.drains.ends_at_deadline = self.setting.runtime_ends_drains
        self.installer.takes_s = self.setting.install_s
        self.installer.on_installed = self.join
        self.cloud.installs_runtime = not self.setting.spec.install_runtime
        self.cloud.on_up = self._came_up
        self.cloud.on_gone = self._went
        head = self.cloud.create(HEAD_TYPE, NodeKind.HEAD)
        head.up = True
        self.world.after(self.setting.head_late_s, lambda: self.join(head))
        self.world.advance(0.0)

    def rest(self) -> None:
        """A tick without a controller: nothing looks, nothing acts."""
        self.plan, self.problem = None, ""
        self.store.committed = None
        self.cloud.listed, self.runtime.report_read = None, None

    def spent(self) -> float:
        """$ so far, as the ledger says."""
        plan = self.store.newest
        return 0.0 if plan is None else spend_so_far(self.store.live.values(), plan.memory, plan.at)

    def tick(self) -> None:
        """One look and one set of actions, by a controller that is started when there is none."""
        self.rest()
        try:
            if self.controller is None:
                self.controller = self._start_controller()
            self.plan = self.controller.tick()
        except Killed:
            self.controller = None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.problem = f"the loop stopped: {type(error).__name__}: {error}"
            self.controller = None
        finally:
            self.wire.fuse = None

    @property
    def clock_was_set(self) -> bool:
        """A controller was started lately under a wall clock that had been set: its timeouts may be off."""
        return self.world.time < self._time_set_until

    def _start_controller(self) -> ClusterController:
        self.lives += 1
        self.cloud.reconnect()
        if self.lives > 1:
            self.store.inner = self._open_store()
        if self.world.wall_shift != self._anchor:
            self._anchor, self._time_set_until = self.world.wall_shift, self.world.time + LONGEST_TIMEOUT_S
        ports = Ports(
            provider=self.cloud,
            nodes=self.runtime,
            drainer=self.drains,
            installer=self.installer if self.setting.spec.install_runtime else None,
            store=self.store,
            spec=self.spec,
        )
        return ClusterController(ports, Ambient(self.world, CountingIds(epoch=self.lives), self.seed))

    # -- how machines, nodes and work hang together ------------------------------------------------

    def join(self, machine: Machine) -> None:
        """The machine's node registers, if the machine still exists; one that ran there is replaced."""
        before = self.runtime.node_on(machine)
        if before is not None:
            self.runtime.kill_node(before)
        self.runtime.join(machine, self.cloud.sells.types.get(machine.node_type))

    def restart_node(self, machine: Machine, after_s: float) -> None:
        """The runtime's process on this machine ends and comes back under a new id."""
        node = self.runtime.node_on(machine)
        if node is not None:
            self.runtime.kill_node(node)
            self.world.after(after_s, lambda: self.join(machine))

    def _came_up(self, machine: Machine) -> None:
        if not self.cloud.installs_runtime:
            return  # the installer brings the node
        if self.faults.hit("join_never"):
            return
        late = self.faults.between("join_late", 20, 150) if self.faults.hit("join_late") else 0.0
        self.world.after(late, lambda: self.join(machine))

    def _went(self, machine: Machine) -> None:
        """A machine that is shut down says so at once; one that vanishes is missed after a while."""
        node = self.runtime.node_on(machine)
        if node is not None:
            missed_s = 1.0 if machine.ended_how == "terminated" else 10.0
            self.world.after(missed_s, lambda: self.runtime.kill_node(node))

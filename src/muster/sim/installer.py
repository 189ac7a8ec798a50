"""SimInstaller: sets simulated machines up when the cloud does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import InstallFailure
from muster.cluster.plan import Install
from muster.sim.cluster.crash_points import Wire, step
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World
from muster.sim.machines import Machine


class SimInstaller:
    """The Installer port; idempotent per request id."""

    def __init__(
        self, world: World, wire: Wire, faults: Faults, find: Callable[[CloudId], Machine | None]
    ) -> None:
        self.wire = wire
        self.takes_s = 10.0
        self.on_installed: Callable[[Machine], None] = lambda machine: None
        self._world, self._faults, self._find = world, faults, find
        self.started: list[Install] = []
        self._seen: set[RequestId] = set()
        self._failures: list[InstallFailure] = []

    @step("installer.start")
    def start(self, action: Install) -> None:
        if action.request_id in self._seen:
            return
        self._seen.add(action.request_id)
        self.started.append(action)
        machine = self._find(action.cloud_id)
        if machine is None or self._faults.hit("install_hangs"):
            return
        if self._faults.hit("install_fails"):
            failure = InstallFailure(instance_id=action.instance_id, message="simulated: ssh never answered")
            self._world.after(self.takes_s, lambda: self._failures.append(failure))
            return
        self._world.after(self.takes_s, lambda: self.on_installed(machine))

    @step("installer.poll")
    def poll(self) -> Sequence[InstallFailure]:
        told, self._failures = tuple(self._failures), []
        return told

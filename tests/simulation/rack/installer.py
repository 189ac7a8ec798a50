"""Set simulated hosts up with the real NodeInstaller and MachineSetup, in virtual time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.rack.cloud import FILE, INITIALIZE, PREPARE, START, RackCloud

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import InstallFailure
from muster.cluster.plan import Install
from muster.config.node_launch import RuntimeHashes
from muster.remote.installer import NodeInstaller
from muster.remote.node_setup import Surroundings, Timing
from muster.remote.steps import NodeSetup
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.ports import SimInstaller
from muster.sim.cluster.world import World

NO_LOGS = Path("/dev/null/logs")  # cannot be made: a set-up does without
NO_FILE = "/dev/null/synced"  # is not on the head: a set-up leaves it out
TIMING = Timing(
    ready_s=40.0, interval_s=2.0, probe_s=5.0, refused_s=20.0, command_s=20.0, sync_s=20.0
)  # seconds instead of minutes, as all time limits of a run


class RackAccess:
    """What the installer needs of the provider; calls that would block are coroutines here."""

    def __init__(self, cloud: RackCloud) -> None:
        self._cloud = cloud

    async def tags(self, node: str) -> Mapping[str, str]:  # type: ignore[override]
        return (await self._cloud.provider.control.find(node))[1].tags

    async def set_tags(self, node: str, tags: Mapping[str, str]) -> None:
        await self._cloud.provider.control.write_tags(node, tags)

    async def is_gone(self, node: str) -> bool:  # type: ignore[override]
        try:
            await self._cloud.provider.control.find(node)
        except KeyError:
            return True
        return False

    def setup_of(self, action: Install) -> NodeSetup:
        return NodeSetup(
            file_mounts={FILE: __file__},
            synced_files=(NO_FILE,),
            initialization_commands=(INITIALIZE,),
            setup_commands=(PREPARE,),
            start_commands=("ray stop", START),
            hashes=RuntimeHashes(f"of {action.node_type}", None),
        )

    async def runner_of(self, cloud_id: CloudId) -> Any:
        cloud = self._cloud
        assert cloud.loop is not None
        state, _ = await cloud.provider.control.find(cloud_id)
        return cloud.runner(state.host.ip, cloud.loop, cloud_id)


async def _call(work: Callable[[], Any]) -> Any:
    result = work()
    return await result if inspect.isawaitable(result) else result


class RackInstaller(SimInstaller):
    """The Installer port: a NodeInstaller, made again for each controller."""

    def __init__(self, world: World, crash_points: CrashPoints, cloud: RackCloud) -> None:
        self.crash_points = crash_points
        self.started: list[Install] = []
        self._world, self._cloud = world, cloud
        self.reconnect()

    def reconnect(self) -> None:
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep
        io = Surroundings(clock=self._world, pause=pause, call=_call)
        access: Any = RackAccess(self._cloud)
        loop = self._cloud.loop
        self._inner = NodeInstaller(access, NO_LOGS, timing=TIMING, surroundings=io, loop=loop)

    @crash_point("installer.start")
    def start(self, action: Install) -> None:
        if action.request_id not in self._inner._seen:
            self.started.append(action)
        self._inner.start(action)

    @crash_point("installer.poll")
    def poll(self) -> Sequence[InstallFailure]:
        return self._inner.poll()

    def under_way(self, request_id: RequestId) -> bool:
        return self._inner.under_way(request_id)

"""Reach the hosts of a rack, many at once, and remembers those that were taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from muster.base.clock import Clock
from muster.host.atomic_write import atomic_write
from muster.host.call_threads import in_thread
from muster.host.node_lease import answers
from muster.providers.rack.host_list import RackHost
from muster.providers.rack.hosts import TakenHost
from muster.remote.runner import CommandRunner, Host
from muster.remote.ssh import SshRunner
from muster.remote.ssh_command import fill_proxy_command

AT_ONCE = 64  # connections
GRACE_S = 5.0  # a runner that does not keep its own time limit is given up after this long


class HostMemory:
    """A file with the hosts that were taken: one that left the list, or is off, must be released, too."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[TakenHost]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[TakenHost])
        except (OSError, msgspec.DecodeError):
            return []  # at worst a host that left the list must be freed by hand

    def write(self, taken: Iterable[TakenHost]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(self._path, msgspec.json.encode(list(taken)), mode=0o600)


async def head_answers(address: str) -> bool:
    return await in_thread(lambda: answers(address))


@dataclass
class Rack:
    """The hosts of a list that may change, how they are reached, and what is kept about them here."""

    hosts: Callable[[], Mapping[str, RackHost]]  # today's list
    make_runner: Callable[[RackHost], CommandRunner]
    lock_dir: str
    clock: Clock
    memory: HostMemory
    head: str = ""  # of a monitor: where its head is; hosts that a later head has set up are left to that one
    launcher: str = ""  # user@computer, for whoever finds the lock
    container: str = ""  # removed with its node; "": nodes run on the host itself
    container_program: str = ""

    def __post_init__(self) -> None:
        self._runners: dict[RackHost, CommandRunner] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def run(self, host: RackHost, line: str, timeout_s: float) -> str:
        """Run a line on a host. Raises RemoteError or TimeoutError."""
        if host not in self._runners:
            self._runners[host] = self.make_runner(host)
        async with self._gate:
            call = self._runners[host].run(line, timeout_s=timeout_s)
            return await asyncio.wait_for(call, timeout_s + GRACE_S)

    async def disconnect(self) -> None:
        """End the connections, so that none outlives this process."""
        await asyncio.gather(*(one.close() for one in self._runners.values()), return_exceptions=True)


class SharedSshRunner(SshRunner):
    """Leaves its connection open for the others that use the host; the provider ends it."""

    async def close(self) -> None:
        """Do nothing."""


def ssh_host(host: RackHost, pins: Path, *, is_strict: bool = True) -> Host:
    """Return how a computer of the list is reached."""
    return Host(
        ip=host.ip,
        user=host.user,
        port=host.port,
        private_key=host.private_key,
        proxy_command=fill_proxy_command(host.proxy_command, ip=host.ip) if host.proxy_command else "",
        strict_host_keys=is_strict,
        known_hosts=str(pins),
        instance_id=host.ip,
    )

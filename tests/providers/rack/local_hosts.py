"""Hosts of a rack for tests without SSH: bash on this computer, with a HOME per host that holds its lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from muster.base.clock import Clock, SystemClock
from muster.base.ids import RandomIds
from muster.config.to_spec import NodeLaunch
from muster.errors import CommandFailed, Unreachable
from muster.providers.rack.connections import HostMemory, Rack
from muster.providers.rack.host_list import RackHost
from muster.providers.rack.host_lock import LOCK
from muster.providers.rack.provider import RackProvider
from muster.remote.process import CommandOutput, execute

LOCKS = "~/locks"


class BashRunner:
    """Runs commands on this computer as if it were one host; Ray of other tests is not seen."""

    raylet = "no-raylet"

    def __init__(self, home: Path, is_off: Callable[[], bool] = lambda: False) -> None:
        self.home, self.is_off = home, is_off

    async def run(self, command: str, *, timeout_s: float = 60.0, **_: object) -> str:
        if self.is_off():
            raise Unreachable(f"{self.home.name} does not answer")
        self.home.mkdir(parents=True, exist_ok=True)
        words = ["env", "-i", f"HOME={self.home}", f"PATH={os.environ['PATH']}", "bash", "-c"]
        output = CommandOutput()
        line = command.replace("-lx raylet", f"-lx {self.raylet}")
        code = await execute([*words, line], output, timeout_s=timeout_s)
        if code:
            raise CommandFailed("\n".join(output.last_lines()), exit_code=code)
        return output.text()

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class Racks:
    """Racks make providers of several clusters over the same hosts."""

    def __init__(self, root: Path, hosts: dict[str, RackHost], clock: Clock | None = None) -> None:
        self.root, self.hosts, self.clock = root, hosts, clock or SystemClock()
        self.off: set[str] = set()
        self.made: list[RackProvider] = []

    def provider(self, cluster_name: str = "c", head: str = "") -> RackProvider:
        rack = Rack(
            hosts=lambda: dict(self.hosts),
            make_runner=lambda host: BashRunner(self.root / host.ip, lambda: host.ip in self.off),
            lock_dir=LOCKS,
            clock=self.clock,
            memory=HostMemory(self.root / f"{cluster_name}.json"),
            head=head,
            launcher="me@here",
        )
        made = RackProvider(cluster_name, rack, self.launches, RandomIds())
        self.made.append(made)
        return made

    def launches(self) -> dict[str, NodeLaunch]:
        types = {host.node_type for host in self.hosts.values()}
        return {name: NodeLaunch(node_type=name, launch_hash="hash") for name in types}

    def lock(self, ip: str) -> Path:
        return self.root / ip / "locks" / LOCK

    def write_lock(self, ip: str, text: str) -> None:
        write_lock(self.lock(ip), text)

    def close(self) -> None:
        for provider in self.made:
            provider.close()


def write_lock(file: Path, text: str) -> None:
    """Write a lock as a cluster of this user does, whatever its contents are."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.parent.chmod(0o700)
    file.write_text(text, encoding="utf-8")


def workers(count: int, node_type: str = "contract") -> dict[str, RackHost]:
    return {f"h{n}": RackHost(ip=f"h{n}", node_type=node_type) for n in range(count)}

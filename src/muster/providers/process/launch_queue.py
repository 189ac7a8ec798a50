"""LaunchQueue: starts the pending nodes of a directory on a thread of its own, a few at a time.

Starting takes seconds of processor time; too many at once and Ray gives up on each of them. A start is over
when the node has said that it joined, when it died, or when it has taken too long.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from muster.base.clock import Clock
from muster.host.ports import free_ports, session_name, tell_port
from muster.host.processes import cpu_count, is_busy, lives, mark_of
from muster.providers.process.node_fork_server import Order, StarterLink
from muster.providers.process.program import NodeProgram
from muster.providers.process.ray_command import NodePorts
from muster.providers.process.records import NodeDirectory, NodeRecord

LOOK_S = 0.05
START_S = 60.0  # after this the next may start, whatever has become of this one


@dataclass(frozen=True)
class Launching:
    """What all starts have in common."""

    program: NodeProgram
    environment: Mapping[str, str]
    auth: Mapping[str, str]
    at_a_time: int = 0  # 0: what the computer bears

    @property
    def limit(self) -> int:
        """As many as there are processors and at least two; one on a computer that is busy already."""
        return self.at_a_time or (1 if is_busy() else max(2, cpu_count()))


class LaunchQueue:
    """Give it records that are written down already."""

    def __init__(
        self, directory: NodeDirectory, starter: StarterLink, launching: Launching, clock: Clock
    ) -> None:
        self._directory, self._starter, self._launching, self._clock = directory, starter, launching, clock
        self._waiting: list[str] = []
        self._starting: dict[str, float] = {}  # when it began, monotonic
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, cloud_ids: list[str]) -> None:
        with self._changed:
            self._waiting += cloud_ids
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="muster-node-starter", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> list[str]:
        """Stop starting; those that have not been started."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        return self._waiting

    def _run(self) -> None:
        while (cloud_id := self._next()) is not None:
            try:
                self._start(cloud_id)
            except Exception as error:  # noqa: BLE001 - one node that cannot start must not stop the others
                self._fail(cloud_id, f"it could not be started: {error}")

    def _next(self) -> str | None:
        """The next one to start, when it is its turn; None when closed."""
        with self._changed:
            while not self._closed:
                self._starting = {one: at for one, at in self._starting.items() if not self._over(one, at)}
                if self._waiting and len(self._starting) < self._launching.limit:
                    return self._waiting.pop(0)
                self._changed.wait(LOOK_S if self._waiting else None)
            return None

    def _start(self, cloud_id: str) -> None:
        record = self._directory.change(cloud_id, self._with_ports)
        if record is None or record.state != "pending" or record.ports is None:
            return  # terminated while it waited
        Path(record.temp_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tell_port(record, record.ports)
        if self._starter.start(self._order(record, record.ports), lambda pid: self._admit(cloud_id, pid)):
            self._starting[cloud_id] = self._clock.monotonic()

    def _tell_port(self, record: NodeRecord, ports: NodePorts) -> None:
        """The session has the name of the head's; without a head of ours the node joins a little later."""
        heads = [one for one in self._directory.records() if one.is_head and one.state == "running"]
        session = session_name(Path(heads[-1].temp_dir)) if heads else None
        if session is not None:
            tell_port(Path(record.temp_dir) / session, record.ray_node_id, ports.agent_http)

    def _order(self, record: NodeRecord, ports: NodePorts) -> Order:
        shared = self._launching
        return Order(
            argv=shared.program.command(record, ports),
            env=shared.program.environment_of(record, shared.environment, shared.auth),
            log=str(self._directory.log_of(record.cloud_id).resolve()),
            cwd=record.temp_dir,
        )

    def _admit(self, cloud_id: str, pid: int) -> bool:
        """Write down who it is; from here on it runs, unless somebody terminated it meanwhile."""
        mark = mark_of(pid)
        admitted = False

        def running(record: NodeRecord) -> NodeRecord | None:
            nonlocal admitted
            admitted = record.state == "pending" and mark is not None
            if not admitted:
                return None
            return msgspec.structs.replace(
                record, state="running", process=mark, started_at=self._clock.now()
            )

        self._directory.change(cloud_id, running)
        return admitted

    def _with_ports(self, record: NodeRecord) -> NodeRecord | None:
        if record.state != "pending" or record.ports is not None:
            return None
        http, grpc, metrics, runtime_env = free_ports(4)
        ports = NodePorts(agent_http=http, agent_grpc=grpc, metrics=metrics, runtime_env=runtime_env)
        return msgspec.structs.replace(record, ports=ports)

    def _over(self, cloud_id: str, began: float) -> bool:
        ready = self._launching.program.ready
        if not ready or self._clock.monotonic() - began > START_S:
            return True
        record = self._directory.find(cloud_id)
        if record is None or record.state != "running" or not lives(record.process):
            return True
        return ready in self._directory.said(cloud_id)

    def _fail(self, cloud_id: str, reason: str) -> None:
        logger.warning("node %s: %s", cloud_id, reason)
        self._directory.change(
            cloud_id, lambda now: msgspec.structs.replace(now, state="terminated", owner=None, reason=reason)
        )

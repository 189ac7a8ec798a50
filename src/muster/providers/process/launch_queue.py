"""Start nodes whose records are on disk already: what a node runs, and a LaunchQueue for a few at a time."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.host.machine import cpu_count
from muster.host.processes import identify, is_alive, is_busy
from muster.providers.process.node_fork_server import ForkOrder, NodeForkServer
from muster.providers.process.ray_command import (
    RAY_MODULE,
    NodeIdentity,
    NodePorts,
    free_ports,
    head_command,
    node_environment,
    session_name,
    worker_command,
    write_agent_port,
)
from muster.providers.process.records import NodeDirectory, NodeRecord

Command = Callable[[NodeRecord, NodePorts], list[str]]


@dataclass(frozen=True)
class NodeProgram:
    """Makes the command of each node. Tests put something cheap in its place."""

    command: Command
    preload: str = ""  # the module of a `python -m` command, imported once for all nodes
    main_process: str = ""  # the process whose end is the node's end, by name
    ready: bytes = b""  # what its log contains when it has joined; empty: nothing to wait for
    watcher: Callable[[], str] = lambda: ""  # the line of bash that watches for a cloud's notices; "": none

    def environment_of(
        self, record: NodeRecord, inherited: Mapping[str, str], auth: Mapping[str, str]
    ) -> dict[str, str]:
        identity = NodeIdentity(
            cloud_id=record.cloud_id, node_type=record.node_type, ray_node_id=record.ray_node_id
        )
        return node_environment(inherited, identity, auth)


def ray_worker(address: str, watcher: Callable[[], str] = lambda: "") -> NodeProgram:
    """Return Ray's node; each has its own temporary directory, so several may start at a time.

    After a drain, and when a raylet is killed, `ray start --block` may stay: the raylet is the main process.
    """
    return NodeProgram(
        command=lambda record, ports: worker_command(record.size, ports, address, Path(record.temp_dir)),
        preload=RAY_MODULE,
        main_process="raylet",
        ready=b"Ray runtime started",
        watcher=watcher,
    )


def ray_head() -> NodeProgram:
    """Return the head without Ray's autoscaler; `ray start --block` itself watches over its parts."""
    return NodeProgram(
        command=lambda record, ports: head_command(record.size, ports, Path(record.temp_dir)),
        preload=RAY_MODULE,
        ready=b"Ray runtime started",
    )


logger = logging.getLogger(__name__)

POLL_S = 0.05
START_S = 60.0  # after this the next may start, whatever has become of this one


@dataclass(frozen=True)
class LaunchSettings:
    """What all starts have in common."""

    program: NodeProgram
    environment: Mapping[str, str]
    auth: Mapping[str, str]
    at_a_time: int = 0  # 0: as many as the computer's load allows

    @property
    def limit(self) -> int:
        """Return the number of processors and at least two; one on a computer that is busy already."""
        return self.at_a_time or (1 if is_busy() else max(2, cpu_count()))

    def fork(
        self, record: NodeRecord, directory: NodeDirectory, fork_server: NodeForkServer, clock: Clock
    ) -> bool:
        """Start a node's process; from its record on it runs, unless it was terminated meanwhile."""
        assert record.ports is not None, "given before the start"
        Path(record.temp_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        order = ForkOrder(
            argv=self.program.command(record, record.ports),
            env=self.program.environment_of(record, self.environment, self.auth),
            log=str(directory.log_of(record.cloud_id).resolve()),
            cwd=record.temp_dir,
        )

        def admit(pid: int) -> bool:
            mark = identify(pid)

            def running(now: NodeRecord) -> NodeRecord | None:
                if now.state != "pending" or mark is None:
                    return None
                return replace(now, state="running", process=mark, started_at=clock.now())

            return directory.change(record.cloud_id, running) is not None

        return fork_server.start(order, admit)


class LaunchQueue:
    """Starts nodes whose records are on disk already, a few at a time."""

    def __init__(
        self, directory: NodeDirectory, fork_server: NodeForkServer, launching: LaunchSettings, clock: Clock
    ) -> None:
        self._directory, self._fork_server = directory, fork_server
        self._launching, self._clock = launching, clock
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
        """Stop starting; return those that have not been started."""
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
                reason = f"the process could not be started: {error}"
                logger.warning("node %s: %s", cloud_id, reason)
                failed = partial(replace, state="terminated", owner=None, reason=reason)
                self._directory.change(cloud_id, failed)

    def _next(self) -> str | None:
        """Return the next node to start, when others have come up; None when closed."""
        with self._changed:
            while not self._closed:
                self._starting = {one: at for one, at in self._starting.items() if not self._is_over(one, at)}
                if self._waiting and len(self._starting) < self._launching.limit:
                    return self._waiting.pop(0)
                self._changed.wait(POLL_S if self._waiting else None)
            return None

    def _start(self, cloud_id: str) -> None:
        record = self._directory.change(cloud_id, self._with_ports) or self._directory.find(cloud_id)
        if record is None or record.state != "pending" or record.ports is None:
            return  # terminated while it waited
        self._write_agent_port(record, record.ports)
        if self._launching.fork(record, self._directory, self._fork_server, self._clock):
            self._starting[cloud_id] = self._clock.monotonic()
            self._watch(record)

    def _watch(self, record: NodeRecord) -> None:
        """Start the watcher of a node's notices; it ends with the node, whose name is in its environment."""
        shared = self._launching
        line = shared.program.watcher()
        if not line:
            return
        subprocess.run(
            ["bash", "-c", line],
            env=shared.program.environment_of(record, shared.environment, shared.auth),
            stdin=subprocess.DEVNULL,
            timeout=START_S,
            check=False,
        )

    def _write_agent_port(self, record: NodeRecord, ports: NodePorts) -> None:
        """Write the agent's port into the head's session; without a head here the node joins later."""
        heads = [one for one in self._directory.records() if one.is_head and one.state == "running"]
        session = session_name(Path(heads[-1].temp_dir)) if heads else None
        if session is not None:
            write_agent_port(Path(record.temp_dir) / session, record.ray_node_id, ports.agent_http)

    def _with_ports(self, record: NodeRecord) -> NodeRecord | None:
        if record.state != "pending" or record.ports is not None:
            return None
        http, grpc, metrics, runtime_env = free_ports(4)
        ports = NodePorts(agent_http=http, agent_grpc=grpc, metrics=metrics, runtime_env=runtime_env)
        return replace(record, ports=ports)

    def _is_over(self, cloud_id: str, began: float) -> bool:
        ready = self._launching.program.ready
        if not ready or self._clock.monotonic() - began > START_S:
            return True
        record = self._directory.find(cloud_id)
        if record is None or record.state != "running" or not is_alive(record.process):
            return True
        return ready in self._directory.output(cloud_id)

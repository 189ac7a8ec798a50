"""Run a real Ray cluster for tests: a head without Ray's autoscaler, and workers; ended by process id.

Nothing of another Ray on the machine is touched: free ports, a token and its own temporary directory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from muster.base.clock import SystemClock
from muster.host.machine import environment
from muster.providers.process.ray_command import (
    NodeIdentity,
    NodePorts,
    NodeSize,
    free_ports,
    head_command,
    new_ray_node_id,
    node_environment,
    session_name,
    worker_command,
    write_agent_port,
)

__all__ = ["AUTH", "QUICK", "RayCluster", "RayDidNotStart", "RayNode", "can_hide", "free_ports"]

# One token per process: Ray's native code reads it once and keeps it.
AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
# A killed node is missed after two seconds, not fifteen. A busy computer is not mistaken for a dead node: a
# check that gets no answer still waits ten seconds, and only the fifth in a row counts.
QUICK = {"RAY_health_check_period_ms": "400", "RAY_health_check_initial_delay_ms": "1000"}
START_S = 90.0  # of the first try; each further try has more patience
HEAD_TRIES = 4


class RayDidNotStart(RuntimeError):
    """RayDidNotStart means that Ray gave up every time, because the computer is too busy."""

    def __init__(self, what: str, log: str) -> None:
        super().__init__(f"{what} did not start; the end of its log:\n{log}")
        self.what, self.is_told = what, False


class RayNode:
    """One `ray start --block` with everything it started, in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], cloud_id: str) -> None:
        self.process, self.cloud_id = process, cloud_id

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()


class RayCluster:
    """A context manager; drivers and tools connect with `environment()`."""

    def __init__(
        self, resources: Mapping[str, float] | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        self._clock = SystemClock()
        self.temp_dir = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # sockets in it: 107 bytes at most
        self.nodes: dict[str, RayNode] = {}
        size = NodeSize(resources={"CPU": 2, **(resources or {})}, labels=labels or {})
        try:
            self._get_head(size)
        except BaseException:  # a test's timeout as well: nothing is left behind
            self.close()
            raise

    def _get_head(self, size: NodeSize) -> None:
        for attempt in range(HEAD_TRIES):
            self._start_head(size)
            if self._head_has_started(START_S * (attempt + 1)):
                return
            self.nodes.pop("head-0").kill()
            self._clock.sleep(attempt)  # what keeps the computer busy may end
        log = (self.temp_dir / "head-0.log").read_text(errors="replace")[-2000:]
        raise RayDidNotStart("the head", log)

    def _start_head(self, size: NodeSize) -> None:
        gcs, client, *agent = free_ports(5)
        self.address = f"127.0.0.1:{gcs}"
        ports = NodePorts(gcs=gcs, client=client, agent_http=agent[0], agent_grpc=agent[1], metrics=agent[2])
        self._start(
            head_command(size, ports, self.temp_dir), NodeIdentity(cloud_id="head-0", node_type="head")
        )

    def _head_has_started(self, patience_s: float = START_S) -> bool:
        """On a busy machine Ray gives up after 30 s: the head ends, and is tried again."""
        give_up = self._clock.monotonic() + patience_s
        head, log = self.nodes["head-0"], self.temp_dir / "head-0.log"
        while self._clock.monotonic() < give_up and head.process.poll() is None:
            if "Ray runtime started" in log.read_text(errors="replace"):
                return True
            self._clock.sleep(0.1)
        return False

    def environment(self) -> dict[str, str]:
        """Return the environment for tools and drivers of this cluster."""
        return {**AUTH, "RAY_ADDRESS": self.address}

    def add_worker(
        self,
        cloud_id: str,
        resources: Mapping[str, float],
        *,
        node_type: str = "worker",
        labels: Mapping[str, str] | None = None,
        hides: Path | None = None,
    ) -> RayNode:
        """Return when the worker's process runs; it joins some seconds later.

        `hides`: a directory that is empty on this node, as on another computer (Linux, root).
        """
        http, grpc, metrics, runtime_env = free_ports(4)
        ports = NodePorts(agent_http=http, agent_grpc=grpc, metrics=metrics, runtime_env=runtime_env)
        size = NodeSize(resources=resources, labels=labels or {})
        identity = NodeIdentity(cloud_id=cloud_id, node_type=node_type, ray_node_id=new_ray_node_id())
        own = self.temp_dir / cloud_id  # shared, two starts at a time may choose the same socket
        # Without the file a raylet gives up after 15 s when the computer is busy.
        session = session_name(self.temp_dir)
        if session is not None:
            write_agent_port(own / session, identity.ray_node_id, ports.agent_http)
        command = worker_command(size, ports, self.address, own)
        return self._start(command if hides is None else [*_hiding(hides), *command], identity)

    def close(self) -> None:
        for node in reversed(self.nodes.values()):
            node.kill()
        shutil.rmtree(self.temp_dir, ignore_errors=True)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, command: list[str], identity: NodeIdentity) -> RayNode:
        log = open(self.temp_dir / f"{identity.cloud_id}.log", "wb")  # noqa: SIM115 - the child keeps it
        with log:
            process = subprocess.Popen(
                command,
                env={**QUICK, **node_environment(environment(), identity, AUTH)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = self.nodes[identity.cloud_id] = RayNode(process, identity.cloud_id)
        return node


def _hiding(directory: Path) -> list[str]:
    """Return the prefix of a command that shall see an empty directory there."""
    mount = 'mount -t tmpfs none "$0" && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, str(directory)]


def can_hide() -> bool:
    """Return whether nodes can be made to see fewer files than this process."""
    try:
        return (
            subprocess.run([*_hiding(Path("/mnt")), "true"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False

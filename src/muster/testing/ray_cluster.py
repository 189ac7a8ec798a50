"""A real Ray cluster for tests: a head without Ray's autoscaler, workers as asked, ended by process id.

Nothing of another Ray on the machine is touched: free ports, a token and a temporary directory of its own.
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
from muster.engines.local.surroundings import environment
from muster.providers.process.free_ports import answers, free_ports
from muster.providers.process.ray_command import (
    NodeIdentity,
    NodePorts,
    NodeSize,
    head_command,
    node_environment,
    worker_command,
)

__all__ = ["AUTH", "RayCluster", "RayNode", "free_ports"]

# One token per process: Ray's native code reads it once and keeps it.
AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
START_S = 90.0


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
    """Use it in a `with` block. `environment()` is what drivers and tools need to connect."""

    def __init__(
        self, resources: Mapping[str, float] | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        self._clock = SystemClock()
        self.temp_dir = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # sockets in it: 107 bytes at most
        self.nodes: dict[str, RayNode] = {}
        self._ports = free_ports(5)
        self.address = f"127.0.0.1:{self._ports[0]}"
        size = NodeSize(resources={"CPU": 2, **(resources or {})}, labels=labels or {})
        gcs, client, *agent = self._ports
        ports = NodePorts(gcs=gcs, client=client, agent_http=agent[0], agent_grpc=agent[1], metrics=agent[2])
        self._start(
            head_command(size, ports, self.temp_dir), NodeIdentity(cloud_id="head-0", node_type="head")
        )
        self._wait_for_port(gcs)

    def environment(self) -> dict[str, str]:
        """For tools and drivers of this cluster."""
        return {**AUTH, "RAY_ADDRESS": self.address}

    def add_worker(
        self,
        cloud_id: str,
        resources: Mapping[str, float],
        *,
        node_type: str = "worker",
        labels: Mapping[str, str] | None = None,
    ) -> RayNode:
        """Returns when its process runs; it joins some seconds later."""
        http, grpc, metrics = free_ports(3)
        ports = NodePorts(agent_http=http, agent_grpc=grpc, metrics=metrics)
        size = NodeSize(resources=resources, labels=labels or {})
        identity = NodeIdentity(cloud_id=cloud_id, node_type=node_type)
        own = self.temp_dir / cloud_id  # shared, two starts at a time may choose the same socket
        return self._start(worker_command(size, ports, self.address, own), identity)

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
                env=node_environment(environment(), identity, AUTH),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = self.nodes[identity.cloud_id] = RayNode(process, identity.cloud_id)
        return node

    def _wait_for_port(self, port: int) -> None:
        """The GCS listens before the head's own node is there; a client waits for the rest itself."""
        give_up = self._clock.monotonic() + START_S
        head = self.nodes["head-0"]
        while self._clock.monotonic() < give_up and head.process.poll() is None:
            if answers(port):
                return
            self._clock.sleep(0.1)
        said = (self.temp_dir / "head-0.log").read_text(errors="replace")[-2000:]
        self.close()
        raise RuntimeError(f"the head did not start; it said:\n{said}")

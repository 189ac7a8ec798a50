"""Runs in another process: starts the Ray node of one Slurm job, and ends with it.

The batch script replaces itself by this program. It exits with 1 only when its node never came up, so that
the state of the job tells a node that could not start from one that was lost.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from muster.base.clock import Clock, SystemClock
from muster.host import machine
from muster.host.processes import identify, is_alive, table
from muster.providers.process.ray_command import (
    NodeIdentity,
    NodePorts,
    NodeSize,
    free_ports,
    node_environment,
    worker_command,
)
from muster.providers.process.records import NodeDirectory, NodeRecord
from muster.providers.process.stop import NodeStopper
from muster.providers.slurm.batch import NodeOrder
from muster.slurm.jobs import job_of, memory_of

STORE_SHARE = 0.3  # of the job's memory, as Ray's own default
LEAST_STORE = 100_000_000
LOOK_S = 2.0
GRACE_S = 3.0  # Slurm's own, KillWait, is often 30 s and may be 5 s
MAIN_PROCESS = "raylet"


class Stopped(Exception):
    """Slurm ends the job: a time limit, a preemption, or `scancel`."""


def memory_of_job(environment: Mapping[str, str]) -> int:
    """Return the bytes that the job may use; those of the machine where Slurm sets no limit."""
    given, there = memory_of(environment), machine.memory_bytes()
    return min(given, there) if given and there else given or there


def sized(order: NodeOrder, environment: Mapping[str, str], shared_bytes: int) -> NodeSize:
    """Return what the node offers; its object store fits into the job and into shared memory."""
    store = int(min(STORE_SHARE * memory_of_job(environment), 0.9 * shared_bytes))
    resources = {"object_store_memory": float(max(LEAST_STORE, store)), **order.resources}
    return NodeSize(resources=resources, labels=order.labels)


def refusal(order: NodeOrder, environment: Mapping[str, str]) -> str:
    """Return why this job starts no node; "" when it does."""
    token = order.auth.get("RAY_AUTH_TOKEN_PATH")
    if token and not os.access(token, os.R_OK):
        where = environment.get("SLURMD_NODENAME", "this node")
        return f"{where}: cannot read {token}; put the home of muster on a file system that all nodes share"
    return ""


class RayNode:
    """The processes of one node."""

    def __init__(self, order: NodeOrder, environment: Mapping[str, str], clock: Clock) -> None:
        self.cloud_id, self._clock = job_of(environment), clock
        self._temp_dir = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # Ray's socket paths must be short
        http, grpc, metrics, runtime_env = free_ports(4)
        ports = NodePorts(agent_http=http, agent_grpc=grpc, metrics=metrics, runtime_env=runtime_env)
        identity = NodeIdentity(cloud_id=self.cloud_id, node_type=order.node_type)
        size = self._size = sized(order, environment, shutil.disk_usage("/dev/shm").free)
        self._process = subprocess.Popen(
            worker_command(size, ports, order.address, self._temp_dir),
            env=node_environment(environment, identity, order.auth),
            cwd=self._temp_dir,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def serve(self) -> bool:
        """Return, when the node has ended, whether it had come up. `ray start --block` may outlive it."""
        raylet = None
        while self._process.poll() is None:
            if raylet is None:
                mine = (one for one in table() if one.parent == self._process.pid and one.is_alive)
                found = next((one.pid for one in mine if one.name == MAIN_PROCESS), None)
                raylet = None if found is None else identify(found)
            elif not is_alive(raylet):
                return True
            self._clock.sleep(LOOK_S)
        return raylet is not None

    def end(self) -> None:
        """End everything of the node, also what left its session, and remove its files."""
        record = NodeRecord(
            cloud_id=self.cloud_id,
            cluster_name="",
            node_type="",
            tags={},
            size=self._size,
            temp_dir=str(self._temp_dir),
            created_at=self._clock.now(),
            process=identify(self._process.pid),
        )
        NodeStopper(NodeDirectory(self._temp_dir), self._clock, GRACE_S).end([record])
        shutil.rmtree(self._temp_dir, ignore_errors=True)


def main(order: NodeOrder, environment: Mapping[str, str], clock: Clock) -> int:
    """Run the node until it or the job ends; return the exit code."""
    if int(environment.get("SLURM_RESTART_COUNT") or 0):
        sys.stderr.write("muster: this job was requeued, so its node is gone; muster submits another job\n")
        return 0
    problem = refusal(order, environment)
    if problem:
        sys.stderr.write(f"muster: {problem}\n")
        return 1

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    node = RayNode(order, environment, clock)
    try:
        return 0 if node.serve() else 1
    except Stopped:
        return 0
    finally:
        node.end()


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=NodeOrder), machine.environment(), SystemClock()))

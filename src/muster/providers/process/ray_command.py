"""Build the `ray start` of one node on this computer: argv, environment and free ports.

Ray's own defaults make two clusters on one machine fight for ports, and turn token authentication on or off
by what lies in the home directory; so every port, the token mode and the temporary directory are given.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

_OWN_FLAGS = {"CPU": "--num-cpus", "GPU": "--num-gpus", "memory": "--memory"}
_NODE_ID = "RAY_OVERRIDE_NODE_ID_FOR_TESTING"  # Ray's own simulated nodes are named with it
_LOAD_PERIOD = "RAY_gcs_pull_resource_loads_period_milliseconds"  # how often a GCS collects the demand
RAY_MODULE = "ray.scripts.scripts"  # what the command `ray` runs
LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 100_000_000  # the least Ray takes is 75 MB; laptop nodes hold little


class NodeIdentity(Struct, frozen=True, kw_only=True):
    """What the runtime will report of the node, so that its record is found again."""

    cloud_id: str
    node_type: str
    machine_type: str = ""
    ray_node_id: str = ""  # 56 hex digits; empty: Ray chooses it


class NodeSize(Struct, frozen=True, kw_only=True):
    """What the node offers."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = {}


class NodePorts(Struct, frozen=True, kw_only=True):
    """Holds ports of the node's own; its workers get theirs from the system."""

    agent_http: int
    agent_grpc: int
    metrics: int
    gcs: int | None = None  # of a head
    client: int | None = None  # of a head: Ray Client's server
    runtime_env: int | None = None  # of the agent that prepares environments
    ip: str = LOOPBACK  # of a head


def head_command(size: NodeSize, ports: NodePorts, temp_dir: Path) -> list[str]:
    """Return the command of a head without Ray's own autoscaler (`--no-monitor`) and without a dashboard."""
    # The flag for Ray Client, where its grpcio is installed: otherwise it would end `ray start`.
    has_grpc = importlib.util.find_spec("grpc") is not None
    return [
        *_ray_start(size, ports),
        "--head",
        "--no-monitor",
        "--include-dashboard=false",
        f"--node-ip-address={ports.ip}",
        f"--port={ports.gcs}",
        *([f"--ray-client-server-port={ports.client}"] if has_grpc and ports.client else []),
        f"--temp-dir={temp_dir}",
    ]


def worker_command(size: NodeSize, ports: NodePorts, address: str, temp_dir: Path | None = None) -> list[str]:
    """Return the command of a node that joins the head at `address`.

    Without its own temporary directory the node shares the head's, and must not start while another
    does: Ray names sockets by a number that two starts may both find free.
    """
    own = [] if temp_dir is None else [f"--temp-dir={temp_dir}"]
    return [*_ray_start(size, ports), f"--address={address}", *own]


def node_environment(
    inherited: Mapping[str, str], identity: NodeIdentity, auth: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of `ray start`; `auth` holds RAY_AUTH_MODE and where the token is."""
    kept = {key: value for key, value in inherited.items() if not key.startswith("RAY_AUTH")}
    kept.pop("RAY_ADDRESS", None)  # a worker would join another cluster
    kept.pop(_NODE_ID, None)
    return {
        **kept,
        **auth,
        **({_NODE_ID: identity.ray_node_id} if identity.ray_node_id else {}),
        _LOAD_PERIOD: inherited.get(_LOAD_PERIOD, "200"),  # Ray's own is a second: so late is a demand seen
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": identity.cloud_id,
        "RAY_NODE_TYPE_NAME": identity.node_type,
        "RAY_CLOUD_INSTANCE_TYPE_NAME": identity.machine_type,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "100000",  # a node may join before its agents are up
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # drained before, or not at all: the end is the end
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # nodes on one computer are fine there as well
    }


def _ray_start(size: NodeSize, ports: NodePorts) -> list[str]:
    resources = dict(size.resources)
    store = int(resources.pop("object_store_memory", OBJECT_STORE_BYTES))
    command = [sys.executable, "-m", RAY_MODULE, "start", "--block", "--disable-usage-stats"]
    for name, flag in _OWN_FLAGS.items():
        quantity = resources.pop(name, 0 if name != "memory" else None)
        if quantity is not None:
            command.append(f"{flag}={int(quantity)}")
    command += [
        f"--object-store-memory={store}",
        f"--dashboard-agent-listen-port={ports.agent_http}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--metrics-export-port={ports.metrics}",
    ]
    if ports.runtime_env is not None:
        command.append(f"--runtime-env-agent-port={ports.runtime_env}")
    if resources:
        command.append(f"--resources={json.dumps(resources)}")
    if size.labels:
        command.append("--labels=" + ",".join(f"{key}={value}" for key, value in size.labels.items()))
    return command


def new_ray_node_id() -> str:
    """Return an id as Ray makes them; it is part of the name of the file below."""
    return secrets.token_hex(28)


def session_name(head_temp_dir: Path) -> str | None:
    """Return the session of a head that has begun; None before."""
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(head_temp_dir / "session_latest"))
    return None


def write_agent_port(session_dir: Path, ray_node_id: str, port: int) -> None:
    """Write the port of a node's dashboard agent before that agent runs; an existing file is left alone.

    A raylet joins only when it knows the ports of its agents. It takes those given on the command line; the
    port of the dashboard agent's server `ray start` (2.60) does not pass on, so the raylet waits for a file
    that the agent writes, 1-2 s of processor time later, and aborts after 15 s. The port is known, so the
    file can be there from the start. If Ray names it otherwise one day, nodes join as late as without it.
    """
    session_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = session_dir / f"dashboard_agent_listen_port_{ray_node_id}"
    with contextlib.suppress(FileExistsError), open(file, "x", encoding="ascii") as stream:
        stream.write(str(port))


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0

"""Start the head of a cluster on this computer, as one more record of the node directory.

Used by `muster up` and `muster down`; the monitor's provider sees the head in its listing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.errors import ProviderError, ProviderMisconfigured
from muster.host.processes import identify, is_alive
from muster.providers.process.launch_queue import LaunchSettings, NodeProgram, ray_head
from muster.providers.process.node_fork_server import NodeForkServer
from muster.providers.process.provider import fits_this_computer
from muster.providers.process.ray_command import (
    LOOPBACK,
    NodePorts,
    NodeSize,
    free_ports,
    is_listening,
    new_ray_node_id,
    session_name,
    write_agent_port,
)
from muster.providers.process.records import NodeDirectory, NodeRecord
from muster.providers.process.stop import NodeStopper, StopSummary, stop_everything
from muster.providers.v1.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

__all__ = [
    "Head",
    "HeadRequest",
    "StopSummary",
    "running_head",
    "start_head",
    "stop_everything",
    "token_file",
]

HEAD_S = 120.0
POLL_S = 0.05
OUTPUT_LINES = 12  # lines of the head's output in error messages

Progress = Callable[[str], None]


@dataclass(frozen=True)
class HeadRequest:
    """What to start, and where its files are."""

    cluster_name: str
    nodes: Path  # ClusterHome.nodes
    node_type: str
    size: NodeSize
    auth: Mapping[str, str]  # of `token_file`
    environment: Mapping[str, str] = field(default_factory=dict)  # what its processes inherit
    tags: Mapping[str, str] = field(default_factory=dict)  # beside the usual ones: launch hash and the like
    port: int | None = None  # of the GCS; None: any free one
    timeout_s: float = HEAD_S  # of one start; no other is begun after it
    ip: str = LOOPBACK  # at which the workers reach it


@dataclass(frozen=True)
class Head:
    """A head that answers."""

    cloud_id: str
    address: str
    pid: int
    temp_dir: str
    already: bool  # whether it was running before


def token_file(path: Path) -> dict[str, str]:
    """Return Ray's settings for a token of the cluster's own, in a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
    else:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path.resolve())}


def start_head(
    request: HeadRequest,
    clock: Clock,
    ids: IdSource,
    progress: Progress = lambda text: None,
    program: NodeProgram | None = None,
) -> Head:
    """Start the head, or finds the one that runs; returns when it has joined and its GCS answers."""
    running = running_head(request.nodes)
    if running is not None:
        return running
    fits_this_computer(request.node_type, request.size)
    start = _HeadStart(request, clock, ids, progress, program or ray_head())
    give_up = clock.monotonic() + request.timeout_s
    while True:
        try:
            return start.run()
        except _TooSlow:
            if clock.monotonic() > give_up:
                raise
            progress("Ray timed out on a slow start; trying again")


def running_head(nodes: Path) -> Head | None:
    """Return the head whose process lives, though it may not answer yet."""
    for record in NodeDirectory(nodes).records():
        if record.is_head and record.state == "running" and is_alive(record.process):
            return _head(record, already=True)
    return None


class _TooSlow(ProviderError):
    """Ray waited 30 s for its own parts in vain, on a busy computer."""

    retryable = True


@dataclass(frozen=True)
class _HeadStart:
    """One start: write the record, then act, then wait. The head outlives this process."""

    request: HeadRequest
    clock: Clock
    ids: IdSource
    progress: Progress
    program: NodeProgram

    @property
    def directory(self) -> NodeDirectory:
        return NodeDirectory(self.request.nodes)

    def run(self) -> Head:
        ports = _ports(self.request.port, self.request.ip)
        record = self._record(ports)
        # Ends what earlier heads left behind; none of them runs, or this one would not start.
        earlier = [one for one in self.directory.records() if one.is_head]
        NodeStopper(self.directory, self.clock).end(earlier)
        for one in earlier:
            self.directory.forget(one.cloud_id)
        self.directory.add([record])
        self.progress(f"starting the head on port {ports.gcs}")
        self._begin(record)
        return self._wait(record.cloud_id)

    def _record(self, ports: NodePorts) -> NodeRecord:
        request, cloud_id = self.request, self.ids.fresh("head")
        usual = {
            TAG_RAY_NODE_NAME: f"ray-{request.cluster_name}-head",
            TAG_RAY_NODE_KIND: NODE_KIND_HEAD,
            TAG_RAY_USER_NODE_TYPE: request.node_type,
            TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
        }
        return NodeRecord(
            cloud_id=cloud_id,
            cluster_name=request.cluster_name,
            node_type=request.node_type,
            tags={**request.tags, **usual},
            size=request.size,
            ports=ports,
            temp_dir=f"{self.directory.temp_root()}/{cloud_id}",
            ray_node_id=new_ray_node_id(),
            created_at=self.clock.now(),
            owner=identify(os.getpid()),
        )

    def _begin(self, record: NodeRecord) -> None:
        launching = LaunchSettings(self.program, self.request.environment, self.request.auth)
        env = self.program.environment_of(record, launching.environment, launching.auth)
        log = self.directory.path / "fork_server.log"
        fork_server = NodeForkServer(self.program.preload, env, log)
        try:
            launching.fork(record, self.directory, fork_server, self.clock)
        finally:
            fork_server.close()

    def _wait(self, cloud_id: str) -> Head:
        began = reported_at = self.clock.monotonic()
        while (now := self.clock.monotonic()) - began < self.request.timeout_s:
            record = self.directory.find(cloud_id)
            if record is None or not is_alive(record.process):
                output = self.directory.last_output(cloud_id, OUTPUT_LINES)
                kind = _TooSlow if "timed out during startup" in output else ProviderError
                raise kind(f"the head did not start; the end of its output:\n{output}")
            # Writes the agent's port as soon as the session has its name, which is before the raylet asks.
            session = session_name(Path(record.temp_dir))
            if session is not None and record.ports is not None:
                session_dir = Path(record.temp_dir) / session
                write_agent_port(session_dir, record.ray_node_id, record.ports.agent_http)
            # The GCS answers first, the head's own node joins seconds later.
            gcs = None if record.ports is None else record.ports.gcs
            is_up = gcs is not None and is_listening(gcs, self.request.ip)
            if is_up and self.program.ready in self.directory.output(record.cloud_id):
                return _head(record, already=False)
            if now - reported_at >= 1.0:
                reported_at = now
                self.progress(f"waiting for the head, {now - began:.0f} s")
            self.clock.sleep(POLL_S)
        output = self.directory.last_output(cloud_id, OUTPUT_LINES)
        stop_everything(self.request.nodes, self.clock)
        raise ProviderError(
            f"the head did not answer within {self.request.timeout_s:.0f} s and was ended",
            fix=(f"the end of its output:\n{output}"),
        )


def _ports(wanted: int | None, ip: str) -> NodePorts:
    gcs, client, http, grpc, metrics, runtime_env = free_ports(6)
    if wanted is not None and is_listening(wanted, ip):
        raise ProviderMisconfigured(
            f"port {wanted} is in use on this computer, by another cluster perhaps: end that, or give the"
            " head another port (or none: then a free one is taken)"
        )
    return NodePorts(
        ip=ip,
        gcs=wanted or gcs,
        client=client,
        agent_http=http,
        agent_grpc=grpc,
        metrics=metrics,
        runtime_env=runtime_env,
    )


def _head(record: NodeRecord, *, already: bool) -> Head:
    assert record.process is not None and record.ports is not None
    return Head(
        cloud_id=record.cloud_id,
        address=f"{record.ports.ip}:{record.ports.gcs}",
        pid=record.process.pid,
        temp_dir=record.temp_dir,
        already=already,
    )

"""ProcessNodeProvider runs Ray nodes as processes on this computer, by Ray's v1 method names.

Everything known about the nodes is in the files of a NodeDirectory; any number of these objects may work on
the same one. Creating and terminating write the files and return; the rest happens on threads.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.errors import ProviderMisconfigured
from muster.host.machine import cpu_count, memory_bytes
from muster.host.ports import free_ports, new_ray_node_id, session_name, write_agent_port
from muster.host.processes import (
    ProcessInfo,
    ProcessMark,
    boot_id,
    is_busy,
    lives,
    mark_of,
    table,
)
from muster.providers.node_provider import NodeProvider
from muster.providers.process.node_fork_server import ForkOrder, NodeForkServer
from muster.providers.process.program import NodeProgram, ray_worker
from muster.providers.process.ray_command import NodeIdentity, NodePorts, NodeSize, node_environment
from muster.providers.process.records import NodeDirectory, NodeRecord
from muster.providers.process.stop import GRACE_S, NodeStopper
from muster.providers.registry import ProviderContext
from muster.providers.v1.tags import TAG_RAY_USER_NODE_TYPE

POLL_S = 0.05
START_S = 60.0  # after this the next may start, whatever has become of this one


@dataclass(frozen=True)
class LaunchSettings:
    """A LaunchSettings is what all starts have in common."""

    program: NodeProgram
    environment: Mapping[str, str]
    auth: Mapping[str, str]
    at_a_time: int = 0  # 0: as many as the computer's load allows

    @property
    def limit(self) -> int:
        """Returns the number of processors and at least two; one on a computer that is busy already."""
        return self.at_a_time or (1 if is_busy() else max(2, cpu_count()))


class LaunchQueue:
    """A LaunchQueue starts nodes whose records are on disk already, a few at a time."""

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
        """Stops starting; returns those that have not been started."""
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
                self._fail(cloud_id, f"the process could not be started: {error}")

    def _next(self) -> str | None:
        """Returns the next node to start, when others have come up; None when closed."""
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
        Path(record.temp_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write_agent_port(record, record.ports)
        if self._fork_server.start(self._order(record, record.ports), lambda pid: self._admit(cloud_id, pid)):
            self._starting[cloud_id] = self._clock.monotonic()
            self._watch(record)

    def _watch(self, record: NodeRecord) -> None:
        """Starts the watcher of a node's notices; it ends with the node, whose name is in its environment."""
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
        """Writes the agent's port into the head's session; without a head here the node joins later."""
        heads = [one for one in self._directory.records() if one.is_head and one.state == "running"]
        session = session_name(Path(heads[-1].temp_dir)) if heads else None
        if session is not None:
            write_agent_port(Path(record.temp_dir) / session, record.ray_node_id, ports.agent_http)

    def _order(self, record: NodeRecord, ports: NodePorts) -> ForkOrder:
        shared = self._launching
        return ForkOrder(
            argv=shared.program.command(record, ports),
            env=shared.program.environment_of(record, shared.environment, shared.auth),
            log=str(self._directory.log_of(record.cloud_id).resolve()),
            cwd=record.temp_dir,
        )

    def _admit(self, cloud_id: str, pid: int) -> bool:
        """Records the node's process; from here on it runs, unless it was terminated meanwhile."""
        mark = mark_of(pid)

        def running(record: NodeRecord) -> NodeRecord | None:
            if record.state != "pending" or mark is None:
                return None
            return replace(record, state="running", process=mark, started_at=self._clock.now())

        return self._directory.change(cloud_id, running) is not None

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
        if record is None or record.state != "running" or not lives(record.process):
            return True
        return ready in self._directory.output(cloud_id)

    def _fail(self, cloud_id: str, reason: str) -> None:
        logger.warning("node %s: %s", cloud_id, reason)
        self._directory.change(
            cloud_id, lambda now: replace(now, state="terminated", owner=None, reason=reason)
        )


MAIN_PROCESS_TIMEOUT_S = 120.0  # a node that has no main process after this will not get one


class NodeHealth:
    """A NodeHealth checks all nodes once; it reads the process table at most once, and only if necessary."""

    def __init__(self, directory: NodeDirectory, main_process: str, clock: Clock) -> None:
        self._directory, self._main_process, self._clock = directory, main_process, clock

    def problem(self, record: NodeRecord) -> str:
        """Returns why the node is of no use any more; empty while it is alive."""
        if not lives(record.process):
            output = self._directory.last_output(record.cloud_id)
            return f"its process has ended; its last output: {output}" if output else "its process has ended"
        if not self._main_process or record.is_head:
            return ""
        if record.main_process is None:
            return self._find_main_process(record)
        return "" if lives(record.main_process) else f"its {self._main_process} has ended"

    def _find_main_process(self, record: NodeRecord) -> str:
        found = self._main_process_of(record)
        if found is not None:
            main_process = ProcessMark(pid=found.pid, started=found.started, boot=boot_id())
            self._directory.change(record.cloud_id, lambda now: replace(now, main_process=main_process))
            return ""
        age_s = self._clock.now() - (record.started_at or self._clock.now())
        return f"no {self._main_process} after {age_s:.0f} s" if age_s > MAIN_PROCESS_TIMEOUT_S else ""

    def _main_process_of(self, record: NodeRecord) -> ProcessInfo | None:
        """Returns a child of the leader: what a raylet starts has the raylet's name too, for a moment."""
        leader = None if record.process is None else record.process.pid
        candidates = (one for one in self._processes if one.name == self._main_process and one.lives)
        return next((one for one in candidates if one.parent == leader), None)

    @cached_property
    def _processes(self) -> list[ProcessInfo]:
        return table()


logger = logging.getLogger(__name__)

KEEP_S = 3600.0  # how long the record of an ended node is kept, for users who ask why


class ProcessNodeProvider(NodeProvider):
    """A ProcessNodeProvider runs the nodes of one cluster on this computer."""

    installs_runtime = True  # a node comes up with Ray running

    def __init__(
        self,
        provider_config: dict[str, Any],
        cluster_name: str,
        surroundings: ProviderContext,
        *,
        program: NodeProgram | None = None,
        grace_s: float = GRACE_S,
        at_a_time: int = 0,
    ) -> None:
        """Takes how many nodes start together, `at_a_time`; 0 lets the computer's load decide."""
        super().__init__(provider_config, cluster_name)
        self._clock, self._ids = surroundings.clock, surroundings.ids
        self._program = program or ray_worker(surroundings.address)
        self._directory = NodeDirectory(surroundings.home / "nodes")
        self._me = mark_of(os.getpid())
        self._stopper = NodeStopper(self._directory, self._clock, grace_s)
        self._enders: list[threading.Thread] = []
        nobody = NodeIdentity(cloud_id="", node_type="")
        inherited = node_environment(surroundings.environment, nobody, surroundings.auth)
        self._fork_server = NodeForkServer(
            self._program.preload, inherited, self._directory.path / "fork_server.log"
        )
        launching = LaunchSettings(
            self._program, surroundings.environment, surroundings.auth, at_a_time=at_a_time
        )
        self._queue = LaunchQueue(self._directory, self._fork_server, launching, self._clock)
        if self._program.preload and surroundings.address:
            self._fork_server.warm()

    # -- looking ----------------------------------------------------------------------------------

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Takes over what a dead process left behind, and terminates what died by itself."""
        self._take_over(self._records())
        living = self._without_dead(self._records())
        return [one.cloud_id for one in living if tag_filters.items() <= one.tags.items()]

    def nodes_for_teardown(self, tag_filters: dict[str, str]) -> list[str]:
        """Returns terminated nodes too, as long as one of their processes may run."""
        return [
            one.cloud_id
            for one in self._records()
            if one.ended_at is None and tag_filters.items() <= one.tags.items()
        ]

    def is_running(self, node_id: str) -> bool:
        record = self._directory.find(node_id)
        return record is not None and record.state == "running" and lives(record.process)

    def is_terminated(self, node_id: str) -> bool:
        record = self._directory.find(node_id)
        return record is None or (record.state != "pending" and not self.is_running(node_id))

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._known(node_id).tags)

    def external_ip(self, node_id: str) -> str | None:
        return self.internal_ip(node_id)

    def internal_ip(self, node_id: str) -> str | None:
        """Returns the computer's address with a port of the node's own, which identifies the node."""
        ports = self._known(node_id).ports
        return None if ports is None else f"127.0.0.1:{ports.gcs or ports.agent_http}"

    # -- doing ------------------------------------------------------------------------------------

    def create_node(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any] | None:
        return self.create_node_with_resources_and_labels(node_config, tags, count, {}, {})

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> dict[str, Any] | None:
        """Records the nodes before it returns; a thread starts them, a few at a time."""
        node_type = tags.get(TAG_RAY_USER_NODE_TYPE, "")
        size = NodeSize(resources=dict(resources), labels=dict(labels))
        fits_this_computer(node_type, size)
        root = self._directory.temp_root()
        records = [self._record(node_type, dict(tags), size, str(root)) for _ in range(count)]
        self._directory.add(records)
        self._forget_old()
        made = [record.cloud_id for record in records]
        self._queue.put(made)
        return {cloud_id: {} for cloud_id in made}

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._known(node_id)
        self._directory.change(node_id, lambda now: replace(now, tags={**now.tags, **tags}))

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        return self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: Sequence[str]) -> dict[str, Any] | None:
        """Records the nodes as terminated before it returns; a thread ends the processes."""
        ended = [self._terminated(node_id, "") for node_id in node_ids]
        self._end([record for record in ended if record is not None])
        return {}

    def close(self) -> None:
        """Leaves the nodes running; those not started yet are left to the next provider of the cluster."""
        for cloud_id in self._queue.close():
            self._directory.change(cloud_id, lambda now: replace(now, owner=None))
        self._fork_server.close()
        for thread in self._enders:
            thread.join()

    # -- inside -----------------------------------------------------------------------------------

    def _records(self) -> list[NodeRecord]:
        return [one for one in self._directory.records() if one.cluster_name == self.cluster_name]

    def _known(self, node_id: str) -> NodeRecord:
        record = self._directory.find(node_id)
        if record is None:
            raise ValueError(f"no node {node_id!r} in {self._directory.path}")
        return record

    def _record(self, node_type: str, tags: dict[str, str], size: NodeSize, root: str) -> NodeRecord:
        cloud_id = self._ids.fresh("node")
        return NodeRecord(
            cloud_id=cloud_id,
            cluster_name=self.cluster_name,
            node_type=node_type,
            tags=tags,
            size=size,
            temp_dir=f"{root}/{cloud_id}",
            ray_node_id=new_ray_node_id(),
            created_at=self._clock.now(),
            owner=self._me,
        )

    def _take_over(self, records: list[NodeRecord]) -> None:
        """Claims nodes of a process that died: starts the pending ones, ends the terminated ones."""
        abandoned = [one for one in records if _unfinished(one) and not lives(one.owner)]
        mine = [record for one in abandoned if (record := self._claimed(one.cloud_id)) is not None]
        if not mine:
            return
        logger.info("taking over %s from a process that has ended", [one.cloud_id for one in mine])
        self._queue.put([one.cloud_id for one in mine if one.state == "pending"])
        self._end([one for one in mine if one.state == "terminated"])

    def _claimed(self, cloud_id: str) -> NodeRecord | None:
        """Returns the record, if this provider owns it now; another one may have been faster."""

        def claim(now: NodeRecord) -> NodeRecord | None:
            if not _unfinished(now) or lives(now.owner):
                return None
            never = now.state == "pending" and now.is_head  # only `muster up` starts heads
            return replace(now, owner=self._me, state="terminated" if never else now.state)

        return self._directory.change(cloud_id, claim)

    def _without_dead(self, records: list[NodeRecord]) -> list[NodeRecord]:
        health = NodeHealth(self._directory, self._program.main_process, self._clock)
        causes = {
            one.cloud_id: cause
            for one in records
            if one.state == "running" and (cause := health.problem(one))
        }
        for one in records:
            # A drained node ends like a lost one. The ledger knows which it is, and warns of a loss.
            if one.cloud_id in causes and one.main_process is not None:
                logger.info("node %s has ended: %s", one.cloud_id, causes[one.cloud_id])
            elif one.cloud_id in causes:
                logger.warning("node %s did not come up: %s", one.cloud_id, causes[one.cloud_id])
        terminated = [self._terminated(cloud_id, cause) for cloud_id, cause in causes.items()]
        self._end([record for record in terminated if record is not None])
        return [one for one in records if one.state != "terminated" and one.cloud_id not in causes]

    def _terminated(self, node_id: str, reason: str) -> NodeRecord | None:
        """Returns the record, if it is terminated by this call."""

        def terminate(now: NodeRecord) -> NodeRecord | None:
            if now.state == "terminated":
                return None
            return replace(now, state="terminated", owner=self._me, reason=reason)

        return self._directory.change(node_id, terminate)

    def _end(self, records: list[NodeRecord]) -> None:
        """Ends nodes on a thread that the program waits for: nothing is left half ended."""
        if not records:
            return
        self._enders = [thread for thread in self._enders if thread.is_alive()]
        thread = threading.Thread(
            target=self._stopper.end, args=(records,), name="muster-node-ender", daemon=False
        )
        self._enders.append(thread)
        thread.start()

    def _forget_old(self) -> None:
        oldest = self._clock.now() - KEEP_S
        for record in self._records():
            if record.ended_at is not None and record.ended_at < oldest:
                self._directory.forget(record.cloud_id)


def fits_this_computer(node_type: str, size: NodeSize) -> None:
    """Raises ProviderMisconfigured for memory that this computer does not have.

    CPUs and GPUs are only numbers to Ray; memory that does not exist makes the kernel kill processes.
    """
    wanted, there = size.resources.get("memory", 0.0), memory_bytes()
    if there and wanted > there:
        raise ProviderMisconfigured(
            f"node type {node_type!r} asks for {wanted / 1e9:.1f} GB of memory, this computer has"
            f" {there / 1e9:.1f} GB: lower `resources: {{memory: ...}}` of the type"
        )


def _unfinished(record: NodeRecord) -> bool:
    """Returns whether the owner of the record has something left to do."""
    if record.state == "pending":
        return record.process is None
    return record.state == "terminated" and record.ended_at is None

"""ProcessProvider runs Ray nodes as processes on this computer.

Everything known about the nodes is in the files of a NodeDirectory; any number of these objects may work on
the same one. Creating and terminating write the files and return; the rest happens on threads.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, LaunchFailure, NodeKind, Offer
from muster.cluster.ports import CloudProvider
from muster.cluster.snapshot import ProviderTraits
from muster.errors import ProviderError, ProviderMisconfigured
from muster.host.machine import memory_bytes
from muster.host.processes import ProcessIdentity, ProcessInfo, boot_id, identify, is_alive, table
from muster.providers.kind import Launches, ProviderContext
from muster.providers.machines import ClusterMachines, Machine
from muster.providers.process.launch_queue import LaunchQueue, LaunchSettings, NodeProgram, ray_worker
from muster.providers.process.node_fork_server import NodeForkServer
from muster.providers.process.ray_command import NodeIdentity, NodeSize, new_ray_node_id, node_environment
from muster.providers.process.records import NodeDirectory, NodeRecord
from muster.providers.process.stop import GRACE_S, NodeStopper
from muster.providers.v1.failures import kind_of, message_of
from muster.providers.v1.tags import (
    TAG_RAY_LAUNCH_CONFIG,
    TAG_RAY_LAUNCH_REQUEST,
    request_of,
    request_tag,
    worker_tags,
)

MAIN_PROCESS_TIMEOUT_S = 120.0  # a node that has no main process after this will not get one


class NodeHealth:
    """Checks all nodes once; it reads the process table at most once, and only if necessary."""

    def __init__(self, directory: NodeDirectory, main_process: str, clock: Clock) -> None:
        self._directory, self._main_process, self._clock = directory, main_process, clock

    def problem(self, record: NodeRecord) -> str:
        """Return why the node is of no use any more; empty while it is alive."""
        if not is_alive(record.process):
            output = self._directory.last_output(record.cloud_id)
            return f"its process has ended; its last output: {output}" if output else "its process has ended"
        if not self._main_process or record.is_head:
            return ""
        if record.main_process is None:
            return self._find_main_process(record)
        return "" if is_alive(record.main_process) else f"its {self._main_process} has ended"

    def _find_main_process(self, record: NodeRecord) -> str:
        # A child of the leader: what a raylet starts has the raylet's name too, for a moment.
        leader = None if record.process is None else record.process.pid
        candidates = (one for one in self._processes if one.name == self._main_process and one.is_alive)
        found = next((one for one in candidates if one.parent == leader), None)
        if found is not None:
            main_process = ProcessIdentity(pid=found.pid, started=found.started, boot=boot_id())
            self._directory.change(record.cloud_id, lambda now: replace(now, main_process=main_process))
            return ""
        age_s = self._clock.now() - (record.started_at or self._clock.now())
        return f"no {self._main_process} after {age_s:.0f} s" if age_s > MAIN_PROCESS_TIMEOUT_S else ""

    @cached_property
    def _processes(self) -> list[ProcessInfo]:
        return table()


logger = logging.getLogger(__name__)

KEEP_S = 3600.0  # how long the record of an ended node is kept, for users who ask why


class ProcessProvider(ClusterMachines, CloudProvider):
    """Runs the nodes of one cluster on this computer.

    Idempotent by request id: within this process by memory, across restarts by the records of living nodes.
    """

    def __init__(
        self,
        surroundings: ProviderContext,
        launches: Launches,
        *,
        program: NodeProgram | None = None,
        grace_s: float = GRACE_S,
        at_a_time: int = 0,
    ) -> None:
        """Take how many nodes start together, `at_a_time`; 0 lets the computer's load decide."""
        self._cluster_name, self._launches = surroundings.cluster_name, launches
        self._clock, self._ids = surroundings.clock, surroundings.ids
        self._program = program or ray_worker(surroundings.address)
        self._directory = NodeDirectory(surroundings.home / "nodes")
        self._me = identify(os.getpid())
        self._stopper = NodeStopper(self._directory, self._clock, grace_s)
        self._enders: list[threading.Thread] = []
        self._failures: list[LaunchFailure] = []
        self._taken: set[RequestId] = set()
        self._unlisted: set[RequestId] = set()  # taken since the last list: its nodes are not known yet
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

    # -- the autoscaler's port --------------------------------------------------------------------

    def traits(self) -> ProviderTraits:
        return ProviderTraits()  # a node comes up with Ray running

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        """Take over what a dead process left behind, and terminate what died by itself."""
        living = self._living()
        self._unlisted.clear()
        return {
            CloudId(one.cloud_id): CloudInstance(
                cloud_id=CloudId(one.cloud_id),
                node_type=one.node_type,
                kind=NodeKind.HEAD if one.is_head else NodeKind.WORKER,
                is_running=_runs(one),
                request_id=request_of(one.tags.get(TAG_RAY_LAUNCH_REQUEST)),
                launch_hash=one.tags.get(TAG_RAY_LAUNCH_CONFIG, ""),
                internal_ip=_address(one),
                external_ip=_address(one),
            )
            for one in living
        }

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        """Record the nodes before it returns; a thread starts them, a few at a time."""
        if request_id in self._taken:
            return
        tag = request_tag(request_id)
        known = [one for one in self._living() if one.tags.get(TAG_RAY_LAUNCH_REQUEST) == tag]
        for node_type, count in shape.items():
            missing = count - sum(one.node_type == node_type for one in known)
            try:
                self._start(request_id, node_type, missing)
            except ProviderError as error:
                failure = LaunchFailure(
                    request_id=request_id, node_type=node_type, kind=kind_of(error), message=message_of(error)
                )
                self._failures += [failure] * missing
        self._taken.add(request_id)
        self._unlisted.add(request_id)

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether a launch has not been listed: if the head dies now, its nodes end unseen."""
        return request_id in self._unlisted

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        polled, self._failures = self._failures, []
        return tuple(polled)

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self.terminate_machines(cloud_ids)

    # -- for commands of users --------------------------------------------------------------------

    def machines(self, kind: NodeKind) -> list[Machine]:
        return [
            Machine(node_id=one.cloud_id, node_type=one.node_type, ip=_address(one), tags=one.tags)
            for one in self._living()
            if one.is_head == (kind is NodeKind.HEAD)
        ]

    def terminate_machines(self, node_ids: Sequence[str]) -> None:
        """Record the nodes as terminated before it returns; a thread ends the processes."""
        ended = [self._terminated(node_id, "") for node_id in node_ids]
        self._end([record for record in ended if record is not None])

    def set_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        self._known(node_id)
        self._directory.change(node_id, lambda now: replace(now, tags={**now.tags, **tags}))

    def tags(self, node_id: str) -> Mapping[str, str]:
        return dict(self._known(node_id).tags)

    def is_gone(self, node_id: str) -> bool:
        record = self._directory.find(node_id)
        return record is None or (record.state != "pending" and not _runs(record))

    def answers(self, node_id: str) -> bool:
        return (record := self._directory.find(node_id)) is not None and _runs(record)

    def internal_ip(self, node_id: str) -> str:
        return _address(self._known(node_id))

    def address(self, node_id: str, *, is_inside: bool) -> str:
        return self.internal_ip(node_id)

    def close(self) -> None:
        """Leave the nodes running; those not started yet are left to the next provider of the cluster."""
        for cloud_id in self._queue.close():
            self._directory.change(cloud_id, lambda now: replace(now, owner=None))
        self._fork_server.close()
        for thread in self._enders:
            thread.join()

    # -- inside -----------------------------------------------------------------------------------

    def _records(self) -> list[NodeRecord]:
        return [one for one in self._directory.records() if one.cluster_name == self._cluster_name]

    def _living(self) -> list[NodeRecord]:
        self._take_over(self._records())
        return self._without_dead(self._records())

    def _start(self, request_id: RequestId, node_type: str, count: int) -> None:
        if count <= 0:
            return
        launch = self._launches().get(node_type)
        if launch is None:
            raise ProviderMisconfigured(f"node type {node_type!r} is not in available_node_types")
        size = NodeSize(resources=dict(launch.resources), labels=dict(launch.labels))
        fits_this_computer(node_type, size)
        tags = worker_tags(self._cluster_name, node_type, launch.launch_hash, request_id)
        root = str(self._directory.temp_root())
        records = [self._record(node_type, tags, size, root) for _ in range(count)]
        self._directory.add(records)
        for record in self._records():
            if record.ended_at is not None and record.ended_at < self._clock.now() - KEEP_S:
                self._directory.forget(record.cloud_id)
        self._queue.put([record.cloud_id for record in records])

    def _known(self, node_id: str) -> NodeRecord:
        record = self._directory.find(node_id)
        if record is None:
            raise ValueError(f"no node {node_id!r} in {self._directory.path}")
        return record

    def _record(self, node_type: str, tags: dict[str, str], size: NodeSize, root: str) -> NodeRecord:
        cloud_id = self._ids.fresh("node")
        return NodeRecord(
            cloud_id=cloud_id,
            cluster_name=self._cluster_name,
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
        abandoned = [one for one in records if _unfinished(one) and not is_alive(one.owner)]
        mine = [record for one in abandoned if (record := self._claimed(one.cloud_id)) is not None]
        if not mine:
            return
        logger.info("taking over %s from a process that has ended", [one.cloud_id for one in mine])
        self._queue.put([one.cloud_id for one in mine if one.state == "pending"])
        self._end([one for one in mine if one.state == "terminated"])

    def _claimed(self, cloud_id: str) -> NodeRecord | None:
        """Return the record, if this provider owns it now; another one may have been faster."""

        def claim(now: NodeRecord) -> NodeRecord | None:
            if not _unfinished(now) or is_alive(now.owner):
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
        """Return the record, if it is terminated by this call."""

        def terminate(now: NodeRecord) -> NodeRecord | None:
            if now.state == "terminated":
                return None
            return replace(now, state="terminated", owner=self._me, reason=reason)

        return self._directory.change(node_id, terminate)

    def _end(self, records: list[NodeRecord]) -> None:
        """End nodes on a thread that the program waits for: nothing is left half ended."""
        if not records:
            return
        name = "muster-node-ender"
        thread = threading.Thread(target=self._stopper.end, args=(records,), name=name, daemon=False)
        self._enders = [*(one for one in self._enders if one.is_alive()), thread]
        thread.start()


def _runs(record: NodeRecord) -> bool:
    return record.state == "running" and is_alive(record.process)


def _address(record: NodeRecord) -> str:
    """Return the computer's address with the node's own port, which identifies the node."""
    ports = record.ports
    return "" if ports is None else f"127.0.0.1:{ports.gcs or ports.agent_http}"


def fits_this_computer(node_type: str, size: NodeSize) -> None:
    """Raise ProviderMisconfigured for memory that this computer does not have.

    CPUs and GPUs are only numbers to Ray; memory that does not exist makes the kernel kill processes.
    """
    wanted, there = size.resources.get("memory", 0.0), memory_bytes()
    if there and wanted > there:
        raise ProviderMisconfigured(
            f"node type {node_type!r} asks for {wanted / 1e9:.1f} GB of memory, this computer has"
            f" {there / 1e9:.1f} GB: lower `resources: {{memory: ...}}` of the type"
        )


def _unfinished(record: NodeRecord) -> bool:
    """Return whether the owner of the record has something left to do."""
    if record.state == "pending":
        return record.process is None
    return record.state == "terminated" and record.ended_at is None

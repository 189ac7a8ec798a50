"""RackProvider is the provider of type `local`: machines are hosts of a list that a cluster has taken.

The truth is on the hosts (`host_lock`), so that a new monitor, a new head and other clusters see the same.
`host_control` acts on an event loop in its own thread; no call of the autoscaler waits for a host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from muster.base.ids import CloudId, IdSource, RequestId
from muster.cluster.model import CloudInstance, LaunchFailure, NodeKind, Offer, TerminateFailure
from muster.cluster.ports import CloudProvider
from muster.cluster.snapshot import ProviderTraits
from muster.config.schema import ClusterConfig
from muster.config.to_spec import NodeLaunch
from muster.errors import CapacityExhausted, ProviderError, ProviderMisconfigured
from muster.providers.background_calls import LIST_WAIT_S, ListingLate, Requests
from muster.providers.kind import Launches
from muster.providers.machines import ClusterMachines, Machine, SshAccess
from muster.providers.rack.connections import Rack, SharedSshRunner, ssh_host
from muster.providers.rack.host_control import HostControl, UnknownHost, together
from muster.providers.rack.host_lock import NODE_MARK, LockHolder, guard_line
from muster.providers.rack.hosts import HostState, Wanted
from muster.providers.v1.failures import kind_of, message_of
from muster.remote.connect import runner_for
from muster.remote.event_loop import LoopThread
from muster.remote.runner import CommandRunner

DISCONNECT_S = 5.0
CALL_S = 600.0  # of one call of a command: longer than all that it does one after the other
T = TypeVar("T")


class RackProvider(ClusterMachines, CloudProvider):
    """Takes hosts and releases them clean, many at once.

    Idempotent by request id: within this process by memory, across restarts by the locks on the hosts.
    """

    def __init__(
        self,
        cluster_name: str,
        rack: Rack,
        launches: Launches,
        ids: IdSource,
        *,
        loop: LoopThread | None = None,
        installs_runtime: bool = False,
    ) -> None:
        self.cluster_name = cluster_name
        self.control = HostControl(cluster_name, rack, ids)
        self._rack, self._launches, self._installs_runtime = rack, launches, installs_runtime
        self._loop = loop or LoopThread("rack")
        self._launched: Requests[LaunchFailure] = Requests()
        self._terminated: Requests[TerminateFailure] = Requests()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the autoscaler's port --------------------------------------------------------------------

    def traits(self) -> ProviderTraits:
        return ProviderTraits(installs_runtime=self._installs_runtime)

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        """Return what is known; hosts are looked at in the background, except for the first time."""
        self._call(self.control.refresh(LIST_WAIT_S))
        if not self.control.is_surveyed:
            raise ListingLate("the hosts are being looked at for the first time")
        return {
            CloudId(holder.cloud_id): CloudInstance(
                cloud_id=CloudId(holder.cloud_id),
                node_type=holder.node_type,
                kind=NodeKind.HEAD if holder.is_head else NodeKind.WORKER,
                is_running=not state.problem,
                request_id=RequestId(holder.request_id) if holder.request_id else None,
                launch_hash=holder.launch_hash,
                internal_ip=state.host.ip,
                external_ip=state.host.ip,
            )
            for state, holder in self.control.nodes()
        }

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        jobs = [
            partial(self._begin, self._launch, request_id, node_type, count)
            for node_type, count in shape.items()
            if count > 0
        ]
        self._launched.start(request_id, jobs, self._loop)

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        ids = [one for one in dict.fromkeys(cloud_ids) if one]
        jobs = [partial(self._begin, self._terminate, request_id, one) for one in ids]
        self._terminated.start(request_id, jobs, self._loop)

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return self._launched.poll()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self._terminated.poll()

    def under_way(self, request_id: RequestId) -> bool:
        return self._launched.is_open(request_id) or self._terminated.is_open(request_id)

    def close(self) -> None:
        """Cancel what is under way; hosts stay as they are."""
        with contextlib.suppress(ProviderError):  # closed already
            self._loop.call(self._rack.disconnect(), DISCONNECT_S)
        self._loop.close()

    # -- for commands of users, and the installer -------------------------------------------------

    def machines(self, kind: NodeKind) -> list[Machine]:
        """Return head or workers. For the head alone only its host is looked at."""
        control, is_head = self.control, kind is NodeKind.HEAD
        self._call(control.look_at_head() if is_head and not control.is_surveyed else control.refresh())
        return [
            Machine(node_id=one.cloud_id, node_type=one.node_type, ip=state.host.ip, tags=one.tags)
            for state, one in control.nodes()
            if one.is_head == is_head
        ]

    def create_head(self, request_id: str, launch: NodeLaunch, tags: Mapping[str, str]) -> None:
        """Take the head's host. Raises CapacityExhausted, with the reason, when it is not available."""
        wanted = Wanted(
            request_id=request_id,
            node_type=launch.node_type,
            launch_hash=launch.launch_hash,
            is_head=True,
            tags=tags,
        )
        if self._call(self.control.take_hosts(wanted, 1)):
            raise CapacityExhausted(self.control.shortage(wanted, 1, 1))

    def terminate_machines(self, node_ids: Sequence[str]) -> None:
        self._call(together(self.control.release(node_id) for node_id in node_ids))

    def settle(self, *, is_last: bool) -> Mapping[str, str]:
        return self._call(self.control.settle(is_last=is_last))

    def left_behind(self) -> Mapping[str, str]:
        reports = ((ip, one.report) for ip, one in self.control.states.items() if one.holder is None)
        names = {ip: report.services for ip, report in reports if report is not None}
        return {ip: "monitor" for ip in names if self.cluster_name in names[ip]}

    def set_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        self._call(self.control.write_tags(node_id, tags))

    def tags(self, node_id: str) -> Mapping[str, str]:
        return self._known(node_id)[1].tags

    def is_gone(self, node_id: str) -> bool:
        try:
            self._known(node_id)
        except UnknownHost:
            return True
        return False

    def answers(self, node_id: str) -> bool:
        return not self._known(node_id)[0].problem

    def internal_ip(self, node_id: str) -> str:
        return self._known(node_id)[0].host.ip

    def address(self, node_id: str, *, is_inside: bool) -> str:
        return self.internal_ip(node_id)

    def silent_hosts(self) -> Mapping[str, str]:
        """Return the hosts that could not be looked at, and why: whether we have them is not known."""
        states = self.control.states
        return {ip: one.problem for ip, one in states.items() if one.problem and one.holder is None}

    def runner(
        self, config: ClusterConfig, node_id: str, access: SshAccess, *, is_head: bool = False
    ) -> CommandRunner:
        self.control.refuse_if_followed()
        state, holder = self._known(node_id)
        host = ssh_host(state.host, access.pins, is_strict=config.auth.strict_host_keys)
        guard = "" if is_head else guard_line(self._rack.lock_dir, node_id)
        marks = {NODE_MARK: node_id} if access.is_setup else {}
        ssh = SharedSshRunner(host, login_shell=access.login_shell, guard=guard, marks=marks)
        is_known = holder.node_type in config.available_node_types and not is_head
        node_type = holder.node_type if is_known else config.head_type
        return runner_for(config, ssh, node_type=node_type, is_head=is_head)

    def reports(self) -> dict[str, HostState]:
        """Return what is known of every host, taken or not, after one look at all of them."""
        self._call(self.control.look_at_all())
        return dict(self.control.states)

    # -- on the loop ------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.call(work, CALL_S)

    def _known(self, node_id: str) -> tuple[HostState, LockHolder]:
        control = self.control
        return control.node(node_id) if control.is_surveyed else self._call(control.find(node_id))

    def _begin(self, work: Callable[..., Coroutine[Any, Any, None]], *given: object) -> None:
        """Start a task on the loop, and keep it from being collected."""
        task = asyncio.ensure_future(work(*given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _launch(self, request_id: RequestId, node_type: str, count: int) -> None:
        missing = count
        try:
            launch = self._launches().get(node_type)
            if launch is None:
                raise ProviderMisconfigured(f"node type {node_type!r} is not in available_node_types")
            wanted = Wanted(request_id=request_id, node_type=node_type, launch_hash=launch.launch_hash)
            missing = await self.control.take_hosts(wanted, count)
            error: Exception = CapacityExhausted(self.control.shortage(wanted, missing, count))
        except Exception as problem:  # noqa: BLE001 - comes back as failures
            error = problem
        failure = LaunchFailure(
            request_id=request_id, node_type=node_type, kind=kind_of(error), message=message_of(error)
        )
        self._launched.job_done(request_id, [failure] * missing)

    async def _terminate(self, request_id: RequestId, cloud_id: CloudId) -> None:
        failures = []
        try:
            await self.control.release(cloud_id)
        except Exception as error:  # noqa: BLE001 - comes back as a failure
            failures = [TerminateFailure(cloud_id=cloud_id, kind=kind_of(error), message=message_of(error))]
        self._terminated.job_done(request_id, failures)

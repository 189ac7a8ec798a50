"""OnPremProvider is the v1 provider of type `local`: nodes are hosts of a list that a cluster has taken.

The truth is on the hosts (`host_lock`), so that a new monitor, a new head and other clusters see the same.
Calls come from several threads; all work is done on one event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec.structs import replace as changed

from muster.base.ids import IdSource
from muster.base.log import OnChange
from muster.config.rack import RackHost
from muster.errors import CapacityExhausted, MusterError, ProviderError, ProviderMisconfigured
from muster.host.node_lease import answers
from muster.providers.node_provider import NodeProvider
from muster.providers.onprem.host_lock import (
    STOP_S,
    HostReport,
    LockHolder,
    answer_of,
    release_line,
    take_line,
    write_line,
)
from muster.providers.onprem.rack import HostState, Rack, TakenHost, problem_of, together
from muster.providers.v1.tags import (
    NODE_KIND_HEAD,
    TAG_MUSTER_HEAD,
    TAG_RAY_NODE_KIND,
    TAG_RAY_USER_NODE_TYPE,
)
from muster.remote.threads import in_thread

logger = logging.getLogger(__name__)

TAKE_S = 30.0
RELEASE_S = 2 * STOP_S + 40.0
CALL_S = 600.0  # of one call of the provider: longer than all that it does one after the other
MAX_NAMED = 8  # hosts in one error
T = TypeVar("T")


@dataclass(frozen=True)
class _Node:
    """A _Node is a host that this cluster has."""

    state: HostState
    holder: LockHolder

    @property
    def tags(self) -> dict[str, str]:
        return dict(self.holder.tags)

    @property
    def is_earlier_head(self) -> bool:
        """Returns whether it was the head of this cluster, on a host that is a worker of the list now."""
        return self.holder.tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD and not self.state.host.is_head


class OnPremProvider(NodeProvider):
    """An OnPremProvider takes hosts, and gives them back clean; starts of many hosts are parallel."""

    def __init__(
        self,
        provider_config: dict[str, Any],
        cluster_name: str,
        rack: Rack,
        ids: IdSource,
        *,
        launcher: str = "",
        container: tuple[str, str] = ("", ""),
    ) -> None:
        """Takes the container's name and program, where nodes run in one: it is removed with its node."""
        super().__init__(provider_config, cluster_name)
        self._rack, self._ids, self._launcher, self._container = rack, ids, launcher, container
        self._follower = ""  # the address of a head that has taken this one's place
        self._nodes = {  # a host that is off stays ours until it says otherwise
            one.holder.cloud_id: _Node(rack.states[ip], one.holder) for ip, one in rack.remembered.items()
        }
        self._seen: set[str] = set()  # nodes that a host has told this object about; others may have changed
        self._taking: set[str] = set()  # addresses that a create call is working on
        self._survey: asyncio.Task[None] | None = None
        self._is_surveyed = False
        self._tag_locks: dict[str, asyncio.Lock] = {}
        self._changes = OnChange(logger)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="onprem", daemon=True)
        self._thread.start()

    # -- looking ----------------------------------------------------------------------------------

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Returns what is known; hosts are looked at in the background, except for the first time.

        For the head alone only its host is looked at: a command on the head need not wait for others.
        """
        is_head = tag_filters.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD
        self._call(self._look_at_head() if is_head and not self._is_surveyed else self._refresh())
        wanted = tag_filters.items()
        return [node_id for node_id, node in self._nodes.items() if wanted <= node.tags.items()]

    def is_running(self, node_id: str) -> bool:
        return not self.is_terminated(node_id) and not self._nodes[node_id].state.problem

    def is_terminated(self, node_id: str) -> bool:
        if not self._is_current(node_id):
            self._call(self._refresh())
        return node_id not in self._nodes

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._node(node_id).tags

    def internal_ip(self, node_id: str) -> str | None:
        return self._node(node_id).state.host.ip

    def external_ip(self, node_id: str) -> str | None:
        return self._node(node_id).state.host.ip

    def host_of(self, node_id: str) -> RackHost:
        self._refuse_if_followed()
        return self._node(node_id).state.host

    def reports(self) -> dict[str, HostState]:
        """Returns what is known of every host, taken or not, after one look at all of them."""
        self._call(self._look_at_all())
        return {ip: replace(state) for ip, state in self._rack.states.items()}

    def silent_hosts(self) -> dict[str, str]:
        """Returns the hosts that could not be looked at, and why: whether we have them is not known."""
        known = {id(node.state) for node in self._nodes.values()}
        silent = ((ip, state) for ip, state in self._rack.states.items() if state.problem)
        return {ip: state.problem for ip, state in silent if id(state) not in known}

    # -- doing ------------------------------------------------------------------------------------

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        """Takes `count` hosts. Raises CapacityExhausted, with a reason per host, when there are fewer."""
        return self._call(self._create(dict(tags), count))

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._call(self._set_tags(node_id, dict(tags)))

    def terminate_node(self, node_id: str, clean: str = "") -> dict[str, Any] | None:
        """Gives a host back; `clean` is a line that removes more from it before anybody else can have it."""
        self._call(self._release(node_id, clean))
        return None

    def terminate_nodes(self, node_ids: Sequence[str]) -> dict[str, Any] | None:
        self._call(together(self._release(node_id) for node_id in node_ids))
        return None

    def close(self) -> None:
        """Cancels what is under way; hosts stay as they are."""
        if self._thread.is_alive():
            self._call(self._cancel_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)
            self._loop.close()

    # -- on the loop ------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise ProviderError("this provider is closed; make a new one")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result(CALL_S)
        except concurrent.futures.TimeoutError:
            if waiting.done():  # a call's own time limit was reached; it says what it waited for
                raise
            waiting.cancel()
            raise ProviderError(
                f"the hosts of {self.cluster_name!r} did not answer within {CALL_S:g} s; the call is given up"
            ) from None

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._rack.disconnect()
        for _ in range(10):  # transports of ended processes are closed by callbacks
            await asyncio.sleep(0)

    def _is_current(self, node_id: str) -> bool:
        return self._is_surveyed or node_id in self._seen

    def _node(self, node_id: str) -> _Node:
        if not self._is_current(node_id) and threading.current_thread() is not self._thread:
            self._call(self._refresh())
        try:
            return self._nodes[node_id]
        except KeyError:
            raise ProviderError(
                f"cluster {self.cluster_name!r} has no node {node_id!r}; it has "
                f"{', '.join(self._nodes) or 'none'}"
            ) from None

    async def _refresh(self) -> None:
        if self._survey is None or self._survey.done():
            due = self._rack.due()
            self._survey = asyncio.ensure_future(self._look(due)) if due else None
        if not self._is_surveyed and self._survey is not None:
            await self._survey
            self._is_surveyed = True

    async def _look_at_head(self) -> None:
        self._rack.sync_list()
        ours = [
            node.state for node in self._nodes.values() if node.tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD
        ]
        heads = [state for state in self._rack.states.values() if state.host.is_head or state in ours]
        await self._look(heads)

    async def _look_at_all(self) -> None:
        self._rack.sync_list()
        await self._look(list(self._rack.states.values()))

    async def _look(self, states: list[HostState]) -> None:
        await together(self._look_at(state) for state in states)

    async def _look_at(self, state: HostState) -> None:
        report = await self._rack.look(state)
        if report is not None:
            await self._look_for_follower(report)
        if report is not None and state.host.ip not in self._taking:
            self._note_report(state, report)
        elif state.problem:
            self._changes.log(logging.WARNING, state.host.ip, f"host {state.host.ip}: {state.problem}")

    async def _look_for_follower(self, report: HostReport) -> None:
        """Notes another head that answers and has set a host of this cluster up: this one was replaced."""
        holder = report.holder
        if not self._rack.head or holder is None or holder.cluster != self.cluster_name:
            return
        other = holder.tags.get(TAG_MUSTER_HEAD, "")
        if other in ("", self._rack.head):
            return
        self._follower = other if await in_thread(lambda: answers(other)) else ""

    def _refuse_if_followed(self) -> None:
        if self._follower:
            raise ProviderMisconfigured(
                f"the head at {self._follower} runs cluster {self.cluster_name!r} now, so this one touches "
                "no host; `muster up` where the cluster was started ends it"
            )

    def _note_report(self, state: HostState, report: HostReport) -> None:
        """Takes over what a host says; the lock may be from another process of this cluster."""
        holder = report.holder
        ours = holder is not None and holder.cluster == self.cluster_name
        for node_id, node in list(self._nodes.items()):
            if node.state is state and (holder is None or holder.cloud_id != node_id):
                del self._nodes[node_id]
        if holder is not None and ours:
            self._seen.add(holder.cloud_id)
            self._nodes[holder.cloud_id] = _Node(state, holder)
        reason = "" if ours else report.unusable(self.cluster_name)
        self._changes.log(logging.INFO, state.host.ip, f"host {state.host.ip}: {reason or 'usable'}")

    async def _create(self, tags: dict[str, str], count: int) -> dict[str, Any]:
        await self._refresh()
        self._refuse_if_followed()
        made: dict[str, Any] = {}
        tried: set[str] = set()
        is_looked = False
        while len(made) < count:
            batch = self._candidates(tags, tried)[: count - len(made)]
            if not batch:
                if is_looked:
                    break
                is_looked = True  # what is known may be old: look once more before giving up
                await self._look([state for state in self._of_type(tags) if state.host.ip not in tried])
                continue
            tried.update(state.host.ip for state in batch)
            made.update({one: {} for one in await together(self._take(s, tags) for s in batch) if one})
        self._remember()
        if len(made) < count:
            raise CapacityExhausted(self._shortage(tags, len(made), count))
        return made

    def _of_type(self, tags: Mapping[str, str]) -> list[HostState]:
        """Returns the hosts of today's list that such a node may have."""
        listed, is_head = self._rack.hosts(), tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD
        node_type = tags.get(TAG_RAY_USER_NODE_TYPE, "")
        return [
            self._rack.states[ip]
            for ip, host in listed.items()
            if ip in self._rack.states
            and host.is_head == is_head
            and (is_head or host.node_type == node_type)
        ]

    def _candidates(self, tags: Mapping[str, str], tried: set[str]) -> list[HostState]:
        found = [state for state in self._of_type(tags) if state.host.ip not in tried | self._taking]
        return [state for state in found if not self._why_not(state)]

    def _why_not(self, state: HostState) -> str:
        if state.problem:
            return state.problem
        if any(node.state is state and not node.is_earlier_head for node in self._nodes.values()):
            return "in use by this cluster"
        if self._earlier_head(state) is not None:
            return ""  # it is given back before it is taken
        return "not looked at yet" if state.report is None else state.report.unusable(self.cluster_name)

    def _earlier_head(self, state: HostState) -> str | None:
        """Returns the node of a head that ran on a host which is a worker in today's list."""
        mine = [node_id for node_id, node in self._nodes.items() if node.state is state]
        return next((node_id for node_id in mine if self._nodes[node_id].is_earlier_head), None)

    async def _take(self, state: HostState, tags: dict[str, str]) -> str | None:
        """Returns the new node's id; None when the host could not be had, which is noted."""
        earlier = self._earlier_head(state)
        if earlier is not None:
            try:
                await self._release(earlier)
            except ProviderError as error:
                state.note_failure(problem_of(error), self._rack.clock.monotonic())
                return None
        ip, lock_dir = state.host.ip, self._rack.lock_dir
        name, program = self._container
        holder = LockHolder(
            cluster=self.cluster_name,
            cloud_id=self._ids.fresh(ip),
            launcher=self._launcher,
            taken_at=self._rack.clock.now(),
            tags=tags,
            container=name,
            container_program=program,
        )
        self._taking.add(ip)
        try:
            printed = await self._rack.run(state, take_line(lock_dir, holder), TAKE_S)
            word, rest = answer_of(printed, "taken", "held")
            if word != "taken":
                held = changed(state.report or HostReport(), lock=rest, now=holder.taken_at)
                state.report = changed(held, boot=held.holder.boot if held.holder else "")
                return None
        except (MusterError, TimeoutError, asyncio.TimeoutError) as error:
            state.note_failure(problem_of(error), self._rack.clock.monotonic())
            return None
        finally:
            self._taking.discard(ip)
            state.changed_at = self._rack.clock.monotonic()
        boot = "" if state.report is None else state.report.boot
        self._seen.add(holder.cloud_id)
        self._nodes[holder.cloud_id] = _Node(state, changed(holder, boot=boot))
        return holder.cloud_id

    def _shortage(self, tags: Mapping[str, str], made: int, count: int) -> str:
        hosts = self._of_type(tags)
        reasons = [f"{state.host.ip}: {self._why_not(state) or 'was taken meanwhile'}" for state in hosts]
        more = [f"and {len(reasons) - MAX_NAMED} more"] if len(reasons) > MAX_NAMED else []
        node_type = tags.get(TAG_RAY_USER_NODE_TYPE, "")
        said = "; ".join(reasons[:MAX_NAMED] + more) or "none is listed"
        if tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD:
            return f"the head's host could not be had ({said})"
        return f"{made} of {count} hosts for {node_type} could be had ({said})"

    async def _set_tags(self, node_id: str, tags: dict[str, str]) -> None:
        lock = self._tag_locks.setdefault(node_id, asyncio.Lock())
        async with lock:
            self._refuse_if_followed()
            node = self._node(node_id)
            holder = changed(node.holder, tags={**node.holder.tags, **tags})
            if holder == node.holder:
                return
            line = write_line(self._rack.lock_dir, holder)
            printed = await self._rack.run(node.state, line, TAKE_S)
            if answer_of(printed, "written", "gone")[0] != "written":
                self._nodes.pop(node_id, None)
                raise ProviderMisconfigured(f"host {node.state.host.ip} is not this cluster's any more")
            self._nodes[node_id] = _Node(node.state, holder)
            self._remember()
            node.state.changed_at = self._rack.clock.monotonic()

    async def _release(self, node_id: str, clean: str = "") -> None:
        """Ends what runs on the host before it is anybody else's; an unknown node is gone already."""
        if not self._is_current(node_id):
            await self._refresh()
        self._refuse_if_followed()
        node = self._nodes.get(node_id)
        if node is None:
            return
        ip = node.state.host.ip
        try:
            line = release_line(self._rack.lock_dir, node.holder, clean)
            printed = await self._rack.run(node.state, line, RELEASE_S)
        except (MusterError, TimeoutError, asyncio.TimeoutError) as error:
            raise ProviderError(
                f"host {ip} could not be given back: {problem_of(error)}; it is tried again"
            ) from error
        word, rest = answer_of(printed, "released", "gone", "left")
        if word not in ("released", "gone"):
            raise ProviderError(f"host {ip} could not be given back: processes {rest} do not end")
        self._nodes.pop(node_id, None)
        self._tag_locks.pop(node_id, None)
        if node.state.report is not None:
            node.state.note_report(changed(node.state.report, lock=""))  # it answers: no quarantine any more
        node.state.changed_at = self._rack.clock.monotonic()
        self._remember()

    def _remember(self) -> None:
        self._rack.remember([TakenHost(node.state.host, node.holder) for node in self._nodes.values()])

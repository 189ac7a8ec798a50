"""HostControl looks at the hosts of a rack, takes them, tags them and releases them, many at once.

`hosts` decides, this file acts, all of it on one event loop: no method here may wait for anything but hosts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from msgspec.structs import replace as changed

from muster.base.ids import IdSource
from muster.base.log import OnChange
from muster.errors import CommandFailed, MusterError, ProviderError, ProviderMisconfigured, RemoteError
from muster.providers.rack.connections import Rack, head_answers
from muster.providers.rack.host_lock import (
    STOP_S,
    HostReport,
    LockHolder,
    answer_of,
    look_line,
    read_report,
    release_line,
    take_line,
    write_line,
)
from muster.providers.rack.hosts import (
    HostState,
    TakenHost,
    Wanted,
    candidates,
    due,
    held_for,
    hosts_for,
    problem_of,
    shortage,
    with_list,
)
from muster.providers.v1.tags import TAG_MUSTER_HEAD
from muster.remote.service import disable_line, removal_line, stop_line

logger = logging.getLogger(__name__)

LOOK_S = 15.0  # for one look at one host
TAKE_S = 30.0
RELEASE_S = 2 * STOP_S + 60.0
T = TypeVar("T")
_FAILURES = (MusterError, TimeoutError, asyncio.TimeoutError)


class UnknownHost(ProviderError, KeyError):
    """The cluster has no such node, or not any more."""


class HostControl:
    """The hosts of one cluster's list: the newest value of each, and what is being done there."""

    def __init__(self, cluster_name: str, rack: Rack, ids: IdSource) -> None:
        self.states = with_list({}, rack.hosts(), rack.memory.read())
        self.is_surveyed = False  # every host was looked at once
        self._cluster_name, self._rack, self._ids = cluster_name, rack, ids
        self._follower = ""  # the address of a head that has replaced this one
        self._taking: dict[str, LockHolder] = {}  # by address: locks that are being written
        self._releases: dict[str, tuple[str, asyncio.Task[None]]] = {}  # by cloud id: address and task
        self._tag_locks: dict[str, asyncio.Lock] = {}
        self._survey: asyncio.Task[None] | None = None
        self._changes = OnChange(logger)

    # -- looking ----------------------------------------------------------------------------------

    def nodes(self) -> list[tuple[HostState, LockHolder]]:
        """Return the hosts that this cluster has, as far as known."""
        return [(state, state.holder) for state in self.states.values() if state.holder is not None]

    def node(self, node_id: str) -> tuple[HostState, LockHolder]:
        for state, holder in self.nodes():
            if holder.cloud_id == node_id:
                return state, holder
        raise UnknownHost(f"cluster {self._cluster_name!r} has no node {node_id!r}")

    async def find(self, node_id: str) -> tuple[HostState, LockHolder]:
        """Return the host of a node; a lock that no host has confirmed yet is looked at first."""
        known = (state for state, holder in self.nodes() if holder.cloud_id == node_id)
        if not self.is_surveyed and not any(state.is_confirmed for state in known):
            await self.refresh()
        return self.node(node_id)

    def _listed_states(self) -> list[HostState]:
        self.states = with_list(self.states, self._rack.hosts())
        return list(self.states.values())

    async def refresh(self, wait_s: float | None = None) -> None:
        """Look at the hosts that are due, in the background; the first time, wait for all of them."""
        if self._survey is None or self._survey.done():
            states = due(self._listed_states(), self._rack.clock.monotonic())
            self._survey = asyncio.ensure_future(self._look(states, is_survey=True))
        if not self.is_surveyed:
            await asyncio.wait((self._survey,), timeout=wait_s)

    async def look_at_all(self) -> None:
        await self._look(self._listed_states())

    async def look_at_head(self) -> None:
        states = self._listed_states()
        ours = [one for one in states if one.holder is not None and one.holder.is_head]
        await self._look([one for one in states if one.host.is_head or one in ours])

    async def _look(self, states: Iterable[HostState], *, is_survey: bool = False) -> None:
        await together(self._look_at(state.host.ip) for state in states)
        self.is_surveyed |= is_survey

    async def _look_at(self, ip: str) -> None:
        began = self._rack.clock.monotonic()
        state = self.states[ip] = replace(self.states[ip], looked_at=began)
        try:
            report = read_report(await self._run(state, look_line(self._rack.lock_dir), LOOK_S))
            if not report.is_complete:
                raise RemoteError(f"the answer of host {ip} is incomplete", fix="look at its login shell")
        except _FAILURES as error:
            self._failed(ip, error)
            return
        await self._look_for_follower(report)
        state = self.states[ip]
        if state.changed_at >= began or ip in self._taking:
            return  # the lock was changed meanwhile
        self.states[ip] = state = state.reported(report, self._cluster_name)
        holder = report.holder
        if holder is not None and holder.cloud_id in state.abandoned:
            self._releasing(state, holder)  # where it fails, the next look tries again
        reason = "" if state.holder is not None else report.unusable(self._cluster_name)
        self._changes.log(logging.INFO, ip, f"host {ip}: {reason or 'usable'}")

    async def _look_for_follower(self, report: HostReport) -> None:
        """Note another head that answers and has set a host of this cluster up: it has replaced this one."""
        holder = report.holder
        if not self._rack.head or holder is None or holder.cluster != self._cluster_name:
            return
        other = holder.tags.get(TAG_MUSTER_HEAD, "")
        if other not in ("", self._rack.head):
            self._follower = other if await head_answers(other) else ""

    def refuse_if_followed(self) -> None:
        if self._follower:
            raise ProviderMisconfigured(
                f"the head at {self._follower} runs cluster {self._cluster_name!r} now, so this one "
                "touches no host",
                fix="`muster up` where the cluster was started ends it",
            )

    # -- changing ---------------------------------------------------------------------------------

    async def _run(self, state: HostState, line: str, timeout_s: float) -> str:
        return await self._rack.run(state.host, line, timeout_s)

    def _failed(self, ip: str, error: BaseException) -> None:
        self.states[ip] = self.states[ip].failed(problem_of(error), self._rack.clock.monotonic())
        self._changes.log(logging.WARNING, ip, f"host {ip}: {self.states[ip].problem}")

    async def take_hosts(self, wanted: Wanted, count: int) -> int:
        """Take hosts for a request; return how many are missing. Hosts that it has already are part of it."""
        await self.refresh()
        self.refuse_if_followed()
        tried: set[str] = set()
        missing, is_looked = count - len(held_for(self.states.values(), wanted)), False
        while missing > 0:
            busy = {*tried, *self._taking, *(ip for ip, _ in self._releases.values())}
            batch = candidates(self.states.values(), wanted, self._cluster_name, busy)[:missing]
            if not batch and is_looked:
                break
            if batch:
                tried.update(state.host.ip for state in batch)
                missing -= sum(await self._take_all(batch, wanted))
            else:  # what is known may be old: look once more before giving up
                is_looked = True
                await self._look(
                    s for s in hosts_for(self._listed_states(), wanted) if s.host.ip not in tried
                )
        return max(missing, 0)

    def shortage(self, wanted: Wanted, missing: int, count: int) -> str:
        return shortage(self.states.values(), wanted, self._cluster_name, count - missing, count)

    async def _take_all(self, batch: Sequence[HostState], wanted: Wanted) -> list[bool]:
        """Return for each host whether it was taken. They are remembered first, in case this process dies."""
        rack = self._rack
        for state in batch:
            self._taking[state.host.ip] = LockHolder(
                cluster=self._cluster_name,
                cloud_id=self._ids.fresh(state.host.ip),
                launcher=rack.launcher,
                taken_at=rack.clock.now(),
                is_head=wanted.is_head,
                node_type=wanted.node_type,
                request_id=wanted.request_id,
                launch_hash=wanted.launch_hash,
                tags=wanted.tags,
            )
        try:
            self._remember()
            return await together(self._take(state) for state in batch)
        finally:
            for state in batch:
                del self._taking[state.host.ip]
            self._remember()

    async def _take(self, state: HostState) -> bool:
        ip, clock = state.host.ip, self._rack.clock
        holder = self._taking[ip]
        try:
            if state.is_earlier_head and state.holder is not None:
                await self.release(state.holder.cloud_id)
            printed = await self._run(state, take_line(self._rack.lock_dir, holder), TAKE_S)
            word, rest = answer_of(printed, "taken", "held", "foreign")
            if not word:
                raise RemoteError(f"the answer of host {ip} is incomplete", fix="look at its login shell")
        except _FAILURES as error:
            self._failed(ip, error)
            if not isinstance(error, CommandFailed | ProviderError):
                # The host may have the lock all the same. Another host serves the request.
                self.states[ip] = self.states[ip].abandon(holder.cloud_id)
            return False
        if word != "taken":
            lost = {"owner": rest} if word == "foreign" else {"lock": rest}
            self.states[ip] = self.states[ip].lost_to(holder, clock.monotonic(), **lost)
            return self.states[ip].holder is not None  # what a killed process sent has arrived late
        self.states[ip] = self.states[ip].taken(changed(holder, boot=rest), clock.monotonic())
        return True

    async def write_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        """Merge tags into those of the lock. Raises ProviderError where the host is not ours any more."""
        async with self._tag_locks.setdefault(node_id, asyncio.Lock()):
            state, holder = await self.find(node_id)
            self.refuse_if_followed()
            written = changed(holder, tags={**holder.tags, **tags})
            if written == holder:
                return
            printed = await self._run(state, write_line(self._rack.lock_dir, written), TAKE_S)
            ip, now = state.host.ip, self._rack.clock.monotonic()
            word, boot = answer_of(printed, "written", "gone")
            if word != "written":
                self.states[ip] = replace(self.states[ip], holder=None)
                raise ProviderMisconfigured(f"host {ip} is not this cluster's any more")
            self.states[ip] = self.states[ip].taken(changed(written, boot=boot), now)
            self._remember()

    async def release(self, node_id: str) -> None:
        """End what runs on the host before it is anybody else's; an unknown node is gone already."""
        try:
            state, holder = await self.find(node_id)
        except UnknownHost:
            return
        self.refuse_if_followed()
        await asyncio.shield(self._releasing(state, holder))

    def _releasing(self, state: HostState, holder: LockHolder) -> asyncio.Task[None]:
        """Return the release of a host that is under way, or start it."""
        if holder.cloud_id not in self._releases:
            task = asyncio.ensure_future(self._free(state, holder))
            self._releases[holder.cloud_id] = state.host.ip, task
            task.add_done_callback(partial(self._released, holder.cloud_id))
        return self._releases[holder.cloud_id][1]

    def _released(self, cloud_id: str, task: asyncio.Task[None]) -> None:
        del self._releases[cloud_id]
        if not task.cancelled() and task.exception() is not None:
            logger.info("%s", task.exception())

    async def settle(self, *, is_last: bool) -> dict[str, str]:
        """Wait for releases under way, and clean hosts of heads that have no lock; return what is left.

        A head that was cut off may be kept running on a host that another cluster has by now.
        """
        left = {}
        for cloud_id, (_, task) in list(self._releases.items()):
            (problem,) = await asyncio.gather(task, return_exceptions=True)
            if problem is not None:
                left[cloud_id] = problem_of(problem)
        never = float("-inf")  # a host that this process has released is clean
        heads = [one for one in self.states.values() if one.host.is_head and one.changed_at == never]
        name = self._cluster_name
        clean = f"{disable_line(name)}\n( {stop_line(name)} ) || exit 1\n{removal_line(name)}"
        for state in [one for one in heads if is_last and one.holder is None and not one.problem]:
            try:
                await self._run(state, clean, RELEASE_S)
            except _FAILURES as error:
                left[state.host.ip] = problem_of(error)
        return left

    async def _free(self, state: HostState, holder: LockHolder) -> None:
        ip, rack = state.host.ip, self._rack
        container = {"container": rack.container, "container_program": rack.container_program}
        line = release_line(rack.lock_dir, holder, **container)
        try:
            printed = await self._run(state, line, RELEASE_S)
            word, rest = answer_of(printed, "released", "gone", "left")
        except _FAILURES as error:
            raise ProviderError(
                f"host {ip} could not be released: {problem_of(error)}", fix="muster tries again"
            ) from error
        if word not in ("released", "gone"):
            raise ProviderError(f"host {ip} could not be released: processes {rest} do not end")
        self._tag_locks.pop(holder.cloud_id, None)
        self.states[ip] = self.states[ip].released(self._rack.clock.monotonic())
        self._remember()

    def _remember(self) -> None:
        """Write which hosts this cluster has, or is about to take."""
        held = [TakenHost(one.host, one.holder) for one in self.states.values() if one.holder is not None]
        taking = [TakenHost(self.states[ip].host, holder) for ip, holder in self._taking.items()]
        self._rack.memory.write([*held, *taking])


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all; what one raises is raised once all are done."""
    done = await asyncio.gather(*calls, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]

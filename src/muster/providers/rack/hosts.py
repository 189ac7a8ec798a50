"""Decide what to do with the hosts of a rack: which to look at, to take, to release. Pure.

Values in, values out; `provider.py` runs the commands and keeps the newest value of each host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace as changed

from muster.base.untrusted import message_text
from muster.errors import RemoteError
from muster.providers.rack.host_list import RackHost
from muster.providers.rack.host_lock import HostReport, LockHolder
from muster.remote.steps import TAG_STATUS, UPDATE_FAILED

FRESH_S = 15.0  # a report that is older is requested again
QUARANTINE_S = (15.0, 600.0)  # of a host that failed: doubled each time, up to the second
MAX_NAMED = 8  # hosts in one error
_REQUEST = attrgetter("cluster", "request_id", "node_type")


class TakenHost(Struct, frozen=True):
    """A host that this cluster has, as it is remembered on this computer."""

    host: RackHost
    holder: LockHolder


class Wanted(Struct, frozen=True, kw_only=True):
    """What hosts are taken for: the head, or workers of one type."""

    request_id: str
    node_type: str
    launch_hash: str = ""
    is_head: bool = False
    tags: Mapping[str, str] = {}


@dataclass(frozen=True)
class HostState:
    """What is known of one host."""

    host: RackHost
    is_listed: bool = True  # in today's list; one that left it is still released
    report: HostReport | None = None  # the newest; None: it has never answered
    holder: LockHolder | None = None  # this cluster's lock there, as far as known
    is_confirmed: bool = False  # this process has read or written that lock
    abandoned: frozenset[str] = frozenset()  # cloud ids that are released wherever a lock names them
    looked_at: float = float("-inf")  # monotonic: when the newest look began
    changed_at: float = float("-inf")  # monotonic: when this process last changed the lock
    problem: str = ""  # why it did not answer, or what went wrong there
    failures: int = 0
    blocked_until: float = float("-inf")  # monotonic
    has_failed_setup: bool = False  # its last node could not be set up: other hosts are tried first

    @property
    def is_earlier_head(self) -> bool:
        """Whether this cluster's head was here, on a host that is a worker of the list now."""
        return self.holder is not None and self.holder.is_head and not self.host.is_head

    def failed(self, problem: str, now: float) -> HostState:
        """Return the state after a failure: the host is left alone for a while, longer each time."""
        first_s, longest_s = QUARANTINE_S
        pause_s = min(longest_s, first_s * 2**self.failures)
        failures = min(self.failures + 1, 10)
        return replace(self, problem=problem, failures=failures, blocked_until=now + pause_s)

    def reported(self, report: HostReport, cluster: str) -> HostState:
        """Return the state after an answer; the lock may be from another process of this cluster.

        A worker ends with its host: its lock from before a reboot protects nothing, and is released.
        """
        state = replace(self, report=report, problem="", failures=0, blocked_until=float("-inf"))
        holder = report.holder
        if holder is None or holder.cluster != cluster:
            return replace(state, holder=None)
        if report.is_stale and not holder.is_head:
            state = state.abandon(holder.cloud_id)
        if holder.cloud_id in state.abandoned:
            return replace(state, holder=None)
        return replace(state, holder=holder, is_confirmed=True)

    def taken(self, holder: LockHolder, now: float) -> HostState:
        return replace(self, holder=holder, is_confirmed=True, changed_at=now)

    def released(self, now: float) -> HostState:
        """Return the state after a release: the host answers, so that it is not in quarantine any more."""
        report = self.report and changed(self.report, lock="")
        has_failed = self.holder is not None and self.holder.tags.get(TAG_STATUS) == UPDATE_FAILED
        state = replace(self, report=report, holder=None, problem="", failures=0, changed_at=now)
        return replace(state, blocked_until=float("-inf"), has_failed_setup=has_failed)

    def lost_to(self, tried: LockHolder, now: float, *, lock: str = "", owner: str = "") -> HostState:
        """Return the state after a take that found another lock there; one for its own request is ours."""
        report = changed(self.report or HostReport(), lock=lock, owner=owner, now=tried.taken_at)
        report = changed(report, boot=report.holder.boot if report.holder else "")
        state, there = replace(self, report=report, changed_at=now), report.holder
        if there is None or there.cloud_id in self.abandoned or _REQUEST(there) != _REQUEST(tried):
            return state
        return state.taken(there, now)

    def abandon(self, cloud_id: str) -> HostState:
        return replace(self, abandoned=self.abandoned | {cloud_id})

    def why_not(self, cluster: str) -> str:
        """Return why the host cannot be taken now; "" when it can."""
        if self.problem:
            return self.problem
        if self.is_earlier_head:
            return ""  # it is released before it is taken
        if self.holder is not None:
            return "in use by this cluster"
        return "not looked at yet" if self.report is None else self.report.unusable(cluster)


def with_list(
    states: Mapping[str, HostState], listed: Mapping[str, RackHost], remembered: Iterable[TakenHost] = ()
) -> dict[str, HostState]:
    """Return the states after an edit of the list; a host that left it stays known, but is not taken."""
    known = {one.host.ip: HostState(one.host, holder=one.holder) for one in remembered}
    fresh = {ip: HostState(host) for ip, host in listed.items()}
    merged = {**fresh, **known, **states}
    return {
        ip: replace(state, host=listed.get(ip, state.host), is_listed=ip in listed)
        for ip, state in merged.items()
    }


def due(states: Iterable[HostState], now: float) -> list[HostState]:
    """Return the hosts to look at again; one in quarantine is left alone until its time is over."""
    return [s for s in states if now - s.looked_at >= FRESH_S and now >= s.blocked_until]


def hosts_for(states: Iterable[HostState], wanted: Wanted) -> list[HostState]:
    """Return the hosts of today's list that such a node may have."""
    return [
        state
        for state in states
        if state.is_listed
        and state.host.is_head == wanted.is_head
        and (wanted.is_head or state.host.node_type == wanted.node_type)
    ]


def candidates(
    states: Iterable[HostState], wanted: Wanted, cluster: str, busy: Collection[str]
) -> list[HostState]:
    """Return the hosts to take for a request, best first; `busy` has addresses that are not tried now."""
    free = (state for state in hosts_for(states, wanted) if state.host.ip not in busy)
    usable = (state for state in free if not state.why_not(cluster))
    return sorted(usable, key=lambda state: state.has_failed_setup)


def held_for(states: Iterable[HostState], wanted: Wanted) -> list[HostState]:
    """Return the hosts that were taken for the request already, by whichever process."""
    return [
        state
        for state in states
        if state.holder is not None
        and (state.holder.request_id, state.holder.node_type) == (wanted.request_id, wanted.node_type)
    ]


def shortage(states: Iterable[HostState], wanted: Wanted, cluster: str, made: int, count: int) -> str:
    """Return why there are too few hosts for a request, with a reason for each."""
    hosts = hosts_for(states, wanted)
    reasons = [f"{state.host.ip}: {state.why_not(cluster) or 'was taken meanwhile'}" for state in hosts]
    more = [f"and {len(reasons) - MAX_NAMED} more"] if len(reasons) > MAX_NAMED else []
    shown = "; ".join(reasons[:MAX_NAMED] + more) or "none is listed"
    if wanted.is_head:
        return f"could not acquire the head host ({shown})"
    return f"{made} of {count} hosts for {wanted.node_type} are available ({shown})"


def problem_of(error: BaseException) -> str:
    """Return why a host could not be used, in a few words."""
    if isinstance(error, RemoteError):
        return message_text(error)
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "it did not answer in time"
    return f"{type(error).__name__}: {message_text(error)}"

"""Keeps what is known of the hosts of a rack: who has them, which are off, and when to look at each again.

Used by the on-premise provider, on one event loop. Hosts are asked side by side; one that hangs holds up no
other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from muster.base.clock import Clock
from muster.base.foreign import message_text
from muster.config.rack import RackHost
from muster.errors import MusterError, RemoteError
from muster.host.atomic_write import atomic_write
from muster.providers.onprem.host_lock import HostReport, LockHolder, look_line, read_report
from muster.remote.runner import CommandRunner

LOOK_S = 15.0  # for one look at one host
FRESH_S = 15.0  # a report that is older is asked for again
QUARANTINE_S = (15.0, 600.0)  # of a host that failed: doubled each time, up to the second
AT_ONCE = 64  # connections

T = TypeVar("T")
Hosts = Callable[[], Mapping[str, RackHost]]  # today's list
MakeRunner = Callable[[RackHost], CommandRunner]


class TakenHost(msgspec.Struct, frozen=True):
    """A TakenHost is a host that this cluster has, as it is remembered on this computer."""

    host: RackHost
    holder: LockHolder


@dataclass
class HostState:
    """A HostState is what is known of one host."""

    host: RackHost
    report: HostReport | None = None  # the newest; None: it has never answered
    looked_at: float = float("-inf")  # monotonic: when the newest look began
    changed_at: float = float("-inf")  # monotonic: when this process last changed the lock
    problem: str = ""  # why it did not answer, or what went wrong there; "" when nothing did
    failures: int = 0
    blocked_until: float = float("-inf")  # monotonic

    def note_failure(self, problem: str, now: float) -> None:
        first_s, longest_s = QUARANTINE_S
        self.problem = problem
        self.blocked_until = now + min(longest_s, first_s * 2**self.failures)
        self.failures = min(self.failures + 1, 10)

    def note_report(self, report: HostReport) -> None:
        self.report, self.problem, self.failures = report, "", 0
        self.blocked_until = float("-inf")


@dataclass
class Rack:
    """A Rack holds the hosts of a list that may change, and those of earlier lists that are still in use."""

    hosts: Hosts
    make_runner: MakeRunner
    lock_dir: str
    clock: Clock
    memory: Path | None = None  # the file of the hosts that were taken; they may have left the list since
    head: str = ""  # of a monitor: where its head is; hosts that a later head has set up are left to that one
    states: dict[str, HostState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._runners: dict[RackHost, CommandRunner] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.remembered = self._read_memory()
        self.sync_list()

    def sync_list(self) -> None:
        """Takes over edits of the list; a host that left it stays known, but is not taken any more."""
        known = {ip: one.host for ip, one in self.remembered.items()}
        for ip, host in {**known, **self.hosts()}.items():
            state = self.states.get(ip)
            if state is None:
                self.states[ip] = HostState(host)
            else:
                state.host = host

    def runner(self, host: RackHost) -> CommandRunner:
        if host not in self._runners:
            self._runners[host] = self.make_runner(host)
        return self._runners[host]

    def due(self) -> list[HostState]:
        """Returns the hosts to look at again; one in quarantine is left alone until its time is over."""
        now = self.clock.monotonic()
        self.sync_list()
        return [
            state
            for state in self.states.values()
            if now - state.looked_at >= FRESH_S and now >= state.blocked_until
        ]

    async def look(self, state: HostState) -> HostReport | None:
        """Returns what the host says; None when it says nothing, or the lock was changed meanwhile."""
        state.looked_at = began = self.clock.monotonic()
        try:
            report = read_report(await self.run(state, look_line(self.lock_dir), LOOK_S))
            if state.changed_at >= began:
                return None
            state.note_report(report)
            return report
        except (MusterError, TimeoutError, asyncio.TimeoutError) as error:
            state.note_failure(problem_of(error), self.clock.monotonic())
            return None

    async def run(self, state: HostState, line: str, timeout_s: float) -> str:
        """Runs a line of `host_lock` on a host. Raises RemoteError or TimeoutError."""
        async with self._gate:
            call = self.runner(state.host).run(line, timeout_s=timeout_s)
            return await asyncio.wait_for(call, timeout_s + 5)

    async def disconnect(self) -> None:
        """Ends the connections, so that none outlives this process."""
        ends = [getattr(runner, "disconnect", None) for runner in self._runners.values()]
        await asyncio.gather(*(end() for end in ends if end is not None), return_exceptions=True)

    def remember(self, taken: Sequence[TakenHost]) -> None:
        """Writes which hosts this cluster has: one that left the list, or is off, must be given back, too."""
        self.remembered = {one.host.ip: one for one in taken}
        if self.memory is not None:
            self.memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_write(self.memory, msgspec.json.encode(list(taken)), mode=0o600)

    def _read_memory(self) -> dict[str, TakenHost]:
        try:
            data = b"[]" if self.memory is None else self.memory.read_bytes()
            return {one.host.ip: one for one in msgspec.json.decode(data, type=list[TakenHost])}
        except (OSError, msgspec.DecodeError):
            return {}  # at worst a host that left the list must be freed by hand


def problem_of(error: BaseException) -> str:
    """Returns why a host could not be used, in a few words."""
    if isinstance(error, RemoteError):
        return message_text(error)
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "it did not answer in time"
    return f"{type(error).__name__}: {message_text(error)}"


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Awaits all; what one raises is raised once all are done."""
    done = await asyncio.gather(*calls, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]

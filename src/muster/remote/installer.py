"""Set workers up for the monitor: implements the Installer port with one `MachineSetup` per machine.

`start` and `poll` return at once. One event loop in one thread serves all machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from muster.base.ids import CloudId, RequestId
from muster.base.untrusted import message_text
from muster.cluster.model import InstallFailure
from muster.cluster.plan import Install
from muster.cluster.ports import Installer
from muster.errors import CommandFailed, RemoteError, Unreachable
from muster.remote.event_loop import LoopThread
from muster.remote.node_setup import MachineSetup, NodeAccess, Surroundings, Timing
from muster.remote.runner import CommandRunner
from muster.remote.steps import NodeSetup

logger = logging.getLogger(__name__)

AT_ONCE = 200  # machines; each has a process and three files open while a command runs
REMEMBERED = 10_000  # requests that are over
CLOSE_S = 10.0


class InstallAccess(NodeAccess, Protocol):
    """What the installer needs of a provider; all methods may block, and may raise."""

    def setup_of(self, action: Install) -> NodeSetup: ...

    def runner_of(self, cloud_id: CloudId) -> CommandRunner | None:
        """Return the way to a machine; None while it has no address. Raises KeyError for an unknown one."""
        ...


class NodeInstaller(Installer):
    """Implements the port Installer.

    Idempotent per request id: a repeat of one that is under way, or over, does nothing. A new request for a
    machine that is being set up takes the place of the earlier one.
    """

    def __init__(
        self,
        access: InstallAccess,
        logs: Path,
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        surroundings: Surroundings = Surroundings(),  # noqa: B008 - frozen
        loop: LoopThread | None = None,
    ) -> None:
        self._access, self._logs, self._timing, self._io = access, logs, timing, surroundings
        self._lock = threading.Lock()
        self._loop = loop
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._is_closed = False
        self._seen: dict[RequestId, bool] = {}  # whether it is under way
        self._tasks: dict[CloudId, tuple[RequestId, asyncio.Task[None]]] = {}  # of the loop's thread only
        self._failures: deque[InstallFailure] = deque()

    def start(self, action: Install) -> None:
        with self._lock:
            if action.request_id in self._seen or self._is_closed:
                return
            self._seen[action.request_id] = True
            self._loop = self._loop or LoopThread("node-installer")
        self._loop.submit(partial(self._begin, action))

    def poll(self) -> Sequence[InstallFailure]:
        failures = []
        with contextlib.suppress(IndexError):
            while True:
                failures.append(self._failures.popleft())
        return failures

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether a machine is being set up; its request is repeated if this process dies."""
        with self._lock:
            return self._seen.get(request_id, False)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """End what is under way, here and on the machines, and take no more."""
        with self._lock:
            self._is_closed = True
        if self._loop is not None:
            self._loop.close(wait_s)

    # ---- in the loop's thread

    def _begin(self, action: Install) -> None:
        earlier = self._tasks.pop(action.cloud_id, None)
        if earlier is not None:
            earlier[1].cancel()
        task = asyncio.ensure_future(self._install(action))
        self._tasks[action.cloud_id] = action.request_id, task

    async def _install(self, action: Install) -> None:
        try:
            async with self._turn:
                await self._set_up(action)
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the record ends, not the loop
            message = message_text(error) if isinstance(error, RemoteError) else _unexpected(action, error)
            if isinstance(error, CommandFailed):
                lines = "".join(f"\n  {line}" for line in error.last_lines)
                logger.warning("%s could not be set up: %s%s", action.cloud_id, message, lines)
            self._failures.append(InstallFailure(instance_id=action.instance_id, message=message))
        finally:
            if self._tasks.get(action.cloud_id, ("", None))[0] == action.request_id:
                del self._tasks[action.cloud_id]
            self._over(action.request_id)

    async def _set_up(self, action: Install) -> None:
        setup = await self._io.call(lambda: self._access.setup_of(action))
        runner = await self._runner(action.cloud_id)
        machine = MachineSetup(
            action.cloud_id, runner, self._access, self._logs, timing=self._timing, surroundings=self._io
        )
        try:
            await machine.run(setup)
        finally:
            await runner.close()

    async def _runner(self, cloud_id: CloudId) -> CommandRunner:
        clock = self._io.clock
        give_up = clock.monotonic() + self._timing.ready_s
        while True:
            reason = "it got no address"
            try:
                runner: CommandRunner | None = await self._io.call(lambda: self._access.runner_of(cloud_id))
                if runner is not None:
                    return runner
            except Exception as error:
                if isinstance(error, KeyError) or (isinstance(error, RemoteError) and not error.retryable):
                    raise
                reason = message_text(error)  # a provider has bad moments
            if clock.monotonic() > give_up:
                raise Unreachable(
                    f"{cloud_id} cannot be reached after {self._timing.ready_s:g} s ({reason}): look at it"
                )
            await self._io.pause(self._timing.interval_s)

    def _over(self, request_id: RequestId) -> None:
        with self._lock:
            self._seen[request_id] = False
            for old in list(self._seen)[: max(0, len(self._seen) - REMEMBERED)]:
                if not self._seen[old]:
                    del self._seen[old]


def _unexpected(action: Install, error: Exception) -> str:
    logger.warning("setting %s up raised an unexpected error", action.cloud_id, exc_info=error)
    if isinstance(error, KeyError):
        return f"{action.cloud_id} cannot be set up: the provider does not know it (any more)"
    return f"{action.cloud_id} cannot be set up: {type(error).__name__}: {message_text(error)}"

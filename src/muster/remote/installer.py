"""Sets workers up for the monitor: implements the Installer port with an `Updater` in a thread of its own.

`start` and `poll` return at once. One event loop in one thread serves all machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from muster.base.foreign import message_text
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import InstallFailure
from muster.cluster.plan import Install
from muster.errors import RemoteError, Unreachable
from muster.remote.runner import CommandRunner
from muster.remote.steps import NodeSetup
from muster.remote.threads import in_thread
from muster.remote.updater import NodeAccess, OnProgress, Timing, Updater

logger = logging.getLogger(__name__)

AT_ONCE = 200  # machines; each has a process and three files open while a command runs
REMEMBERED = 10_000  # requests that are over
CLOSE_S = 10.0


class InstallAccess(NodeAccess, Protocol):
    """An InstallAccess is what the installer needs of a provider; all methods may block, and may raise."""

    def setup_of(self, action: Install) -> NodeSetup: ...

    def runner_of(self, cloud_id: CloudId) -> CommandRunner | None:
        """Returns the way to a machine; None while it has no address. Raises KeyError for an unknown one."""
        ...


class NodeInstaller:
    """A NodeInstaller implements the ports Installer and WorksInBackground.

    Idempotent per request id: a repeat of one that is under way, or over, does nothing. A new request for a
    machine that is being set up takes the place of the earlier one.
    """

    def __init__(
        self,
        access: InstallAccess,
        logs: Path,
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        on_progress: OnProgress = lambda progress: None,
    ) -> None:
        self._access, self._timing = access, timing
        self._updater = Updater(access, logs, timing=timing, on_progress=on_progress)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._turn: asyncio.Semaphore | None = None
        self._is_closed = False
        self._seen: dict[RequestId, bool] = {}  # whether it is under way
        self._tasks: dict[CloudId, tuple[RequestId, asyncio.Task[None]]] = {}  # of the loop's thread only
        self._failures: deque[InstallFailure] = deque()

    def start(self, action: Install) -> None:
        with self._lock:
            if action.request_id in self._seen or self._is_closed:
                return
            self._seen[action.request_id] = True
            loop = self._running_loop()
        loop.call_soon_threadsafe(self._begin, action)

    def poll(self) -> Sequence[InstallFailure]:
        failures = []
        with contextlib.suppress(IndexError):
            while True:
                failures.append(self._failures.popleft())
        return failures

    def under_way(self, request_id: RequestId) -> bool:
        """Returns whether a machine is being set up; its request is repeated if this process dies."""
        with self._lock:
            return self._seen.get(request_id, False)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Ends what is under way, here and on the machines, and takes no more."""
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        with contextlib.suppress(RuntimeError):  # closed already
            loop.call_soon_threadsafe(self._end_all)
        thread.join(wait_s)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, name="node-installer", daemon=True)
            self._thread.start()
        return self._loop

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    # ---- in the loop's thread

    def _begin(self, action: Install) -> None:
        earlier = self._tasks.pop(action.cloud_id, None)
        if earlier is not None:
            earlier[1].cancel()
        self._turn = self._turn or asyncio.Semaphore(AT_ONCE)
        task = asyncio.get_running_loop().create_task(self._install(action, self._turn))
        self._tasks[action.cloud_id] = action.request_id, task

    async def _install(self, action: Install, turn: asyncio.Semaphore) -> None:
        try:
            async with turn:
                await self._set_up(action)
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the record ends, not the loop
            message = message_text(error) if isinstance(error, RemoteError) else _unexpected(action, error)
            self._failures.append(InstallFailure(instance_id=action.instance_id, message=message))
        finally:
            if self._tasks.get(action.cloud_id, ("", None))[0] == action.request_id:
                del self._tasks[action.cloud_id]
            self._over(action.request_id)

    async def _set_up(self, action: Install) -> None:
        setup = await in_thread(lambda: self._access.setup_of(action))
        runner = await self._runner(action.cloud_id)
        try:
            await self._updater.update(action.cloud_id, setup, runner)
        finally:
            await runner.close()

    async def _runner(self, cloud_id: CloudId) -> CommandRunner:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._timing.ready_s
        while True:
            reason = "it got no address"
            try:
                runner = await in_thread(lambda: self._access.runner_of(cloud_id))
                if runner is not None:
                    return runner
            except Exception as error:
                if isinstance(error, KeyError) or (isinstance(error, RemoteError) and not error.retryable):
                    raise
                reason = message_text(error)  # a provider has bad moments
            if loop.time() > give_up:
                raise Unreachable(
                    f"{cloud_id} cannot be reached after {self._timing.ready_s:g} s ({reason}): look at it"
                )
            await asyncio.sleep(self._timing.interval_s)

    def _over(self, request_id: RequestId) -> None:
        with self._lock:
            self._seen[request_id] = False
            for old in list(self._seen)[: max(0, len(self._seen) - REMEMBERED)]:
                if not self._seen[old]:
                    del self._seen[old]

    def _end_all(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()

        async def stop() -> None:
            if tasks:
                await asyncio.wait(tasks, timeout=CLOSE_S)
            loop.stop()

        self._keep = loop.create_task(_quiet(stop()))


async def _quiet(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(Exception):
        await work


def _unexpected(action: Install, error: Exception) -> str:
    logger.warning("setting %s up raised an unexpected error", action.cloud_id, exc_info=error)
    if isinstance(error, KeyError):
        return f"{action.cloud_id} cannot be set up: the provider does not know it (any more)"
    return f"{action.cloud_id} cannot be set up: {type(error).__name__}: {message_text(error)}"

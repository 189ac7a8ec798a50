"""Keep a copy of the head's ledger on this computer, beside whatever command of a user reaches the head.

The head cannot reach this computer, so each such command fetches a copy, at most one a minute. It is fetched
while the command runs, and never a reason for it to fail.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from muster.autoscaler.lifecycle.open import OpenCluster
from muster.errors import MusterError
from muster.providers.machines import Machine
from muster.remote.runner import CommandRunner

EVERY_S = 60.0
LIMIT_S = 20.0  # of one copy; the next command tries again
CANCEL_S = 5.0


@contextmanager
def keeping_ledger(session: OpenCluster, head: Machine) -> Iterator[None]:
    """Fetch a copy while the block runs, and one more after a block that took long."""
    pull = LedgerPull(session, head)
    pull.start()
    try:
        yield
    except BaseException:
        pull.cancel()
        raise
    pull.wait()
    pull.start()
    pull.wait()


class LedgerPull:
    """Fetches copies from one head, one at a time, in a thread with its own loop."""

    def __init__(self, session: OpenCluster, head: Machine) -> None:
        self._session, self._head = session, head
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fetch a copy, unless one was tried a moment ago or the head's directory is this one."""
        record = self._session.head_record()
        is_elsewhere = bool(record.home and record.python) and not record.shares_home
        if not is_elsewhere or record.node_id != self._head.node_id or not self._is_due():
            return
        try:
            # Before the attempt: a head that does not answer holds up one command a minute, not each.
            self._session.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._session.home.pulled.touch()
            runner = self._session.runner(self._head.node_id)
        except (MusterError, OSError):
            return
        self._thread = threading.Thread(target=self._run, args=(runner,), name="ledger-pull", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join(LIMIT_S + CANCEL_S)
            self._thread = None

    def cancel(self) -> None:
        """End it soon: the command has failed, or was interrupted."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # it is over
                loop.call_soon_threadsafe(task.cancel)
        if self._thread is not None:
            self._thread.join(CANCEL_S)

    def _is_due(self) -> bool:
        try:
            age_s = self._session.context.clock.now() - self._session.home.pulled.stat().st_mtime
        except OSError:
            return True
        return not 0 <= age_s < EVERY_S

    def _run(self, runner: CommandRunner) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._fetch(runner))

    async def _fetch(self, runner: CommandRunner) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._session.pull_ledger(runner), LIMIT_S)

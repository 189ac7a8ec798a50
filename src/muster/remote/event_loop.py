"""Run coroutines on an event loop in its own thread, so that one slow machine holds up nobody else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from muster.errors import ProviderError

T = TypeVar("T")
CLOSE_S = 10.0


class LoopThread:
    """An event loop in a daemon thread; the simulator has one in virtual time instead."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> concurrent.futures.Future[None]:
        """Run a job on the loop's thread, where it may start tasks. Raises RuntimeError after `close`."""

        async def run() -> None:
            job()

        return self._run(run())

    def call(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Wait for work and return its result. Raises ProviderError when the time is up, or after `close`."""
        try:
            waiting = self._run(work)
        except RuntimeError as closed:
            raise ProviderError(str(closed)) from None
        try:
            return waiting.result(limit_s)
        except concurrent.futures.TimeoutError:
            if waiting.done():  # a time limit of the work itself, whose error names what it waited for
                raise
            waiting.cancel()
            raise ProviderError(f"the machines did not answer within {limit_s:g} s") from None

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Cancel everything under way and end the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(ProviderError):  # something does not end when it is cancelled
                self.call(self._cancel_all(), wait_s)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(wait_s)
            if not self._thread.is_alive():
                self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("this provider is closed; make a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for _ in range(10):  # transports of ended processes are closed by callbacks
            await asyncio.sleep(0)

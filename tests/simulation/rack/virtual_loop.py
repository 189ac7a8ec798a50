"""An event loop in the time of the simulated world: real coroutines, no thread, no waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from muster.errors import ProviderError
from muster.remote.event_loop import LoopThread
from muster.sim.cluster.world import World

T = TypeVar("T")


class _NoFiles:
    """What the loop asks for files: there are none, and nobody waits."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class _Loop(asyncio.BaseEventLoop):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._selector = _NoFiles()
        self._clock_resolution = 1e-6
        self.set_task_factory(_quiet_task)

    def __del__(self) -> None:
        """Nothing to close: a killed process leaves its tasks as they are."""

    def time(self) -> float:
        return self._world.time

    def _process_events(self, event_list: list[Any]) -> None:
        """No file has any."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def run_ready(self) -> float | None:
        """Run all that is due now; return when the next timer is due."""
        before = asyncio._get_running_loop()
        if before is not None:
            return None  # this loop runs already, and comes to it
        asyncio._set_running_loop(self)
        self._thread_id = threading.get_ident()
        try:
            while True:
                while self._scheduled and self._scheduled[0]._cancelled:
                    self._run_once()
                is_due = self._scheduled and self._scheduled[0].when() <= self.time() + self._clock_resolution
                if not self._ready and not is_due:
                    return self._scheduled[0].when() if self._scheduled else None
                self._run_once()
        finally:
            self._thread_id = None
            asyncio._set_running_loop(None)


def _quiet_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any
) -> asyncio.Task[T]:
    task = asyncio.Task(work, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class VirtualLoop(LoopThread):
    """What a LoopThread does, in virtual time: a call that waits lets the world's events happen."""

    def __init__(self, world: World) -> None:
        self._world, self._virtual = world, _Loop(world)
        self.is_closed = False
        self._wakes_at: set[float] = set()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        if self.is_closed:
            raise RuntimeError("closed")
        self._virtual.call_soon(job)
        self.pump()
        return Future()

    def call(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        task = self._virtual.create_task(work)
        self.pump()
        give_up = self._world.time + limit_s
        while not task.done() and self._world.run_next(give_up):
            pass
        if not task.done():
            raise ProviderError("simulated: nothing will end this call")
        return task.result()

    def close(self, wait_s: float = 0.0) -> None:
        """Forget everything, as when the process is killed: nothing of it runs any more."""
        self.is_closed = True

    def deliver(self, answer: asyncio.Future[T], result: T | None, error: Exception | None) -> None:
        """End a call to the outside; nobody waits for it after a kill, or after its time limit."""
        if self.is_closed or answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]
        self.pump()

    def future(self) -> asyncio.Future[str]:
        return self._virtual.create_future()

    def pump(self) -> None:
        if self.is_closed:
            return
        due = self._virtual.run_ready()
        if due is not None and due not in self._wakes_at:
            self._wakes_at.add(due)
            self._world.after(due - self._world.time, lambda: self._wake(due))

    def _wake(self, due: float) -> None:
        self._wakes_at.discard(due)
        self.pump()

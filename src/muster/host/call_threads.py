"""Run calls that may block on daemon threads; a call that never returns costs its thread and nothing else."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from muster.base.untrusted import call_safely

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Pool(Protocol):
    """Where calls run: on threads, or in the caller itself."""

    def submit(self, job: Callable[[], None], /) -> Future[None]:
        """Start a call; raise RuntimeError after `close`."""
        ...

    def close(self, wait_s: float = 0.0) -> None:
        """Take no more calls, cancel those that wait, give running ones a moment."""
        ...


class ThreadPool:
    """Run calls on up to `size` daemon threads: unlike the standard library's, an exit never waits for them.

    Threads are kept after a call: a process that the call has started may die with its thread.
    """

    def __init__(self, name: str, size: float = math.inf) -> None:
        self._name, self._size = name, size
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = 0  # threads without a call, less the calls that wait for one
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            self._calls.put((call, future))
            self._free -= 1
            if self._free < 0 and len(self._threads) < self._size:
                self._free += 1
                name = f"{self._name}-{len(self._threads) + 1}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def close(self, wait_s: float = 0.0) -> None:
        with self._lock:
            self._closed = True
        try:
            while (item := self._calls.get_nowait()) is not None:
                item[1].cancel()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(wait_s / len(self._threads))

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            is_wanted = future.set_running_or_notify_cancel()
            deliver = _attempt(call, future) if is_wanted else None
            with self._lock:
                self._free += 1
            if deliver is not None:
                deliver()  # last: whoever waits for it finds this thread free


class InlinePool:
    """Run each call at once, in the caller: deterministic, for tests and the simulator."""

    def __init__(self) -> None:
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        if self._closed:
            raise RuntimeError("the pool is closed")
        future: Future[T] = Future()
        _attempt(call, future)()
        if isinstance(future.exception(), KeyboardInterrupt):
            future.result()  # a user's, in the caller's own thread
        return future

    def close(self, wait_s: float = 0.0) -> None:
        self._closed = True


async def in_thread(call: Callable[[], T], *, name: str = "provider-call") -> T:
    """Return what the call returns, without blocking the event loop.

    Each call has its thread: a pool could be full of calls that never return. A caller that is cancelled
    leaves its call running.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def awaitable() -> T:
        try:
            return call_safely(call)
        except StopIteration as error:  # a coroutine cannot raise it
            raise RuntimeError(repr(error)) from error

    def work() -> None:
        _attempt(awaitable, future)()

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


def log_failure(future: Future[Any]) -> None:
    """Log the error of a call that was to handle its errors itself; a callback of its future."""
    if not future.cancelled() and future.exception() is not None:
        logger.error("a call to a provider raised an unexpected error", exc_info=future.exception())


def _attempt(call: Callable[[], T], future: Future[T]) -> Callable[[], None]:
    """Make the call, and return what passes its outcome on."""
    try:
        return partial(future.set_result, call())
    except BaseException as error:  # noqa: BLE001 - raised where the result is read
        return partial(future.set_exception, error)

"""Runs slow calls: on threads that never keep a process alive, or in the caller itself in tests."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class Pool(Protocol):
    """A Pool takes jobs that handle their own errors; an error that escapes is logged."""

    def submit(self, job: Job) -> Future[None]:
        """Raises RuntimeError after `close`."""
        ...

    def close(self, wait_s: float = 0.0) -> None:
        """Takes no more jobs, forgets those that wait, gives running ones a moment."""
        ...


class ThreadPool:
    """A ThreadPool has a few daemon threads: unlike the standard library's, an exit never waits for them."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._jobs: queue.SimpleQueue[tuple[Job, Future[None]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, job: Job) -> Future[None]:
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            self._jobs.put((job, future))
            if len(self._threads) < self._size:
                name = f"{self._name}-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self, wait_s: float = 0.0) -> None:
        with self._lock:
            self._closed = True
            threads = tuple(self._threads)
        self._forget_waiting()
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join(wait_s / len(threads))

    def _forget_waiting(self) -> None:
        while True:
            try:
                item = self._jobs.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item[1].cancel()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            if future.set_running_or_notify_cancel():
                _run(job, future)


class InlinePool:
    """An InlinePool runs each job at once, in the caller: deterministic, for tests and the simulator."""

    def __init__(self) -> None:
        self._closed = False

    def submit(self, job: Job) -> Future[None]:
        if self._closed:
            raise RuntimeError("the pool is closed")
        future: Future[None] = Future()
        _run(job, future)
        return future

    def close(self, wait_s: float = 0.0) -> None:
        self._closed = True


def _run(job: Job, future: Future[None]) -> None:
    try:
        job()
    except KeyboardInterrupt:  # a user's, in the caller's own thread
        raise
    except BaseException as error:  # a thread that ends would keep every later job waiting
        logger.exception("a call to a provider raised an unexpected error")
        future.set_exception(error)
    else:
        future.set_result(None)

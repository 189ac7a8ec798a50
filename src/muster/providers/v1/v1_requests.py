"""Requests: which effects have been taken on, which are still being worked at, and what failed of them.

Used by the desks of V1Adapter. Filled by threads, asked by the loop.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from muster.base.ids import RequestId

F = TypeVar("F")

REMEMBERED = 10_000  # ids; what an earlier life took on is found by its effects


class Requests(Generic[F]):
    """The book of one desk; `F` is what a failed unit is told as."""

    def __init__(self) -> None:
        self._jobs: dict[RequestId, int] = {}  # still to do per request, oldest request first
        self._failures: list[tuple[RequestId, F]] = []
        self._lock = threading.Lock()

    def take(self, request_id: RequestId, jobs: int) -> bool:
        """Whether the request is new; then it has this many jobs to do."""
        with self._lock:
            if request_id in self._jobs:
                return False
            self._jobs[request_id] = jobs
            if len(self._jobs) > REMEMBERED:
                oldest_done = next((known for known, left in self._jobs.items() if left <= 0), None)
                self._jobs.pop(oldest_done or request_id)
            return True

    def job_done(self, request_id: RequestId) -> None:
        with self._lock:
            if request_id in self._jobs:
                self._jobs[request_id] -= 1

    def drop(self, request_id: RequestId) -> None:
        """It could not be worked at: if it comes again, it is new."""
        with self._lock:
            self._jobs.pop(request_id, None)

    def fail(self, request_id: RequestId, failure: F) -> None:
        with self._lock:
            self._failures.append((request_id, failure))

    def poll(self) -> tuple[F, ...]:
        """Every failure since the last poll."""
        with self._lock:
            told, self._failures = self._failures, []
        return tuple(failure for _, failure in told)

    def is_open(self, request_id: RequestId) -> bool:
        """Whether something is still to come of it: work, or news of a failure."""
        with self._lock:
            return self._jobs.get(request_id, 0) > 0 or any(r == request_id for r, _ in self._failures)

"""Run calls to a cloud away from the loop's thread: listings, and the jobs of launches and terminations.

`V1Adapter` and native providers share it. With `inline_pools` all of it happens in the caller instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from muster.base.clock import Clock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, FailureKind, TerminateFailure
from muster.errors import MusterError
from muster.host.call_threads import InlinePool, Pool, ThreadPool, log_failure
from muster.providers.v1.failures import kind_of, message_of

F = TypeVar("F")
Job = Callable[[], None]

REMEMBERED = 10_000  # ids; what an earlier process took on is found by its effects
TOO_OLD_S = 10.0  # a listing that is older than this is requested again
LIST_WAIT_S = 2.0  # how long a tick waits for the list
GIVEN_UP_S = 300.0  # a call that takes longer than this is made again
TERMINATE_THREADS = 4


@dataclass(frozen=True)
class CallPools:
    """Where the three kinds of calls run; none of them can hold up another."""

    launch: Pool
    terminate: Pool
    new_listing: Callable[[], Pool]  # called again when a listing hangs: its thread is lost
    pause: Callable[[float], object] = lambda seconds: None  # waits on a thread of `launch`


def thread_pools(launch_threads: int, clock: Clock) -> CallPools:
    return CallPools(
        launch=ThreadPool("cloud-launch", launch_threads),
        terminate=ThreadPool("cloud-terminate", TERMINATE_THREADS),
        new_listing=lambda: ThreadPool("cloud-list", 1),
        pause=clock.sleep,
    )


def inline_pools() -> CallPools:
    """Return pools that run everything in the caller's thread, at once: deterministic."""
    return CallPools(launch=InlinePool(), terminate=InlinePool(), new_listing=InlinePool)


class Requests(Generic[F]):
    """Counts the open jobs of requests, and keeps their failures of type `F`."""

    def __init__(self) -> None:
        self._jobs: dict[RequestId, int] = {}  # still to do per request, oldest request first
        self._again: dict[RequestId, list[Job]] = {}  # jobs whose outcome is not known
        self._failures: list[tuple[RequestId, F]] = []
        self._lock = threading.Lock()

    def start(self, request_id: RequestId, jobs: Sequence[Job], pool: Pool) -> None:
        """Submit the jobs of a request; of an id that was seen before, those to be repeated.

        A request that a closed pool refuses is forgotten: if it comes again, it is new.
        """
        with self._lock:
            if request_id in self._jobs:
                jobs = self._again.pop(request_id, ())
            else:
                self._jobs[request_id] = len(jobs)
            if len(self._jobs) > REMEMBERED:
                oldest_done = next((known for known, left in self._jobs.items() if left <= 0), None)
                self._jobs.pop(oldest_done or request_id)
        for job in jobs:
            try:
                pool.submit(job).add_done_callback(log_failure)
            except RuntimeError:
                with self._lock:
                    self._jobs.pop(request_id, None)
                raise

    def repeat_later(self, request_id: RequestId, job: Job) -> None:
        """Keep a job without an outcome, with its request open, until the request comes again."""
        with self._lock:
            self._again.setdefault(request_id, []).append(job)

    def job_done(self, request_id: RequestId, failures: Iterable[F] = (), *, is_over: bool = True) -> None:
        """Report failures of a job; unless it is over, its request stays open."""
        with self._lock:
            self._failures += [(request_id, failure) for failure in failures]
            if request_id in self._jobs and is_over:
                self._jobs[request_id] -= 1

    def poll(self) -> tuple[F, ...]:
        """Return every failure since the last poll."""
        with self._lock:
            polled, self._failures = self._failures, []
        return tuple(failure for _, failure in polled)

    def is_open(self, request_id: RequestId) -> bool:
        """Return whether something is still to come of the request: work, or a failure to poll."""
        with self._lock:
            return self._jobs.get(request_id, 0) > 0 or any(r == request_id for r, _ in self._failures)


class ListingLate(MusterError):
    """The provider has not answered yet; nothing may be concluded from that."""

    retryable = True


class _ListCall:
    """One listing under way."""

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.answered_at = asked_at
        self.machines: Mapping[CloudId, CloudInstance] = {}
        self.error: Exception | None = None
        self.future: Future[None] = Future()


class InstanceLister:
    """Runs one listing at a time; one that comes too late for a tick serves the next."""

    def __init__(
        self,
        list_machines: Callable[[], Mapping[CloudId, CloudInstance]],
        new_pool: Callable[[], Pool],
        clock: Clock,
        wait_s: float = LIST_WAIT_S,
        given_up_s: float = GIVEN_UP_S,
    ) -> None:
        self._list, self._new_pool, self._clock = list_machines, new_pool, clock
        self._wait_s, self._given_up_s = wait_s, given_up_s
        self._pool = new_pool()
        self._call: _ListCall | None = None

    def read(self) -> Mapping[CloudId, CloudInstance]:
        """Wait a bounded time for the listing. Raises ListingLate, or what the provider raised."""
        call = self._current()
        wait((call.future,), timeout=self._wait_s)
        if not call.future.done():
            waited_s = self._clock.monotonic() - call.asked_at
            raise ListingLate(f"the provider has been listing its machines for {waited_s:.0f} s")
        self._call = None
        if call.error is not None:
            raise call.error
        return call.machines

    def close(self) -> None:
        self._pool.close()

    def _current(self) -> _ListCall:
        """Return the listing under way, or a new one; one that hangs is given up with its thread."""
        call, now = self._call, self._clock.monotonic()
        if call is not None:
            since = call.answered_at if call.future.done() else call.asked_at
            limit = TOO_OLD_S if call.future.done() else self._given_up_s
            if now - since <= limit:
                return call
            if not call.future.done():
                self._pool.close()
                self._pool = self._new_pool()
        self._call = call = _ListCall(now)
        call.future = self._pool.submit(lambda: self._finish_call(call))
        return call

    def _finish_call(self, call: _ListCall) -> None:
        try:
            call.machines = self._list()
        except Exception as error:  # noqa: BLE001 - raised where the list is read
            call.error = error
        call.answered_at = self._clock.monotonic()


class TerminationQueue:
    """Takes ids at once and terminates their machines on its pool."""

    def __init__(
        self,
        terminate: Callable[[Sequence[CloudId]], object],
        living: Callable[[], Collection[str]],
        pool: Pool,
        clock: Clock,
        *,
        given_up_s: float = GIVEN_UP_S,
    ) -> None:
        self.requests: Requests[TerminateFailure] = Requests()
        self._terminate, self._living, self._pool, self._clock = terminate, living, pool, clock
        self._given_up_s = given_up_s
        self._ending: dict[CloudId, float] = {}  # id -> when its call was made
        self._lock = threading.Lock()

    def take(self, request_id: RequestId, cloud_ids: Iterable[CloudId], largest: int | None) -> None:
        """Take a request, once; ids that another call is terminating are left to that call."""
        wanted = [cloud_id for cloud_id in dict.fromkeys(cloud_ids) if cloud_id]
        limit = largest or max(len(wanted), 1)
        calls = [wanted[start : start + limit] for start in range(0, len(wanted), limit)]
        self.requests.start(request_id, [partial(self._end, request_id, ids) for ids in calls], self._pool)

    def _end(self, request_id: RequestId, wanted: Sequence[CloudId]) -> None:
        now = self._clock.monotonic()
        with self._lock:  # unless the other call seems to hang
            ids = [c for c in wanted if now - self._ending.get(c, float("-inf")) > self._given_up_s]
            self._ending.update(dict.fromkeys(ids, now))
        failures: list[TerminateFailure] = []
        try:
            if ids:
                self._terminate(ids)
        except Exception as error:  # noqa: BLE001 - comes back as failures
            failures = self._sort_out(ids, error)
        finally:
            with self._lock:
                for cloud_id in ids:
                    self._ending.pop(cloud_id, None)
            self.requests.job_done(request_id, failures)

    def _sort_out(self, ids: Sequence[CloudId], error: Exception) -> list[TerminateFailure]:
        """Try the remaining machines of a failed batch one by one, so that each gets its own reason."""
        errors = dict.fromkeys(self._still_there(ids), error)
        if len(ids) > 1 and kind_of(error) is not FailureKind.THROTTLED:
            errors = self._one_by_one(errors)
            errors = {cloud_id: errors[cloud_id] for cloud_id in self._still_there(errors)}
        return [
            TerminateFailure(cloud_id=cloud_id, kind=kind_of(reason), message=message_of(reason))
            for cloud_id, reason in errors.items()
        ]

    def _one_by_one(self, ids: Iterable[CloudId]) -> dict[CloudId, Exception]:
        failed: dict[CloudId, Exception] = {}
        for cloud_id in ids:
            try:
                self._terminate([cloud_id])
            except Exception as error:  # noqa: BLE001 - comes back as a failure
                failed[cloud_id] = error
        return failed

    def _still_there(self, ids: Iterable[CloudId]) -> list[CloudId]:
        """Return the ids that are still listed, in order; all of them when the listing fails."""
        asked = list(ids)
        try:
            living = self._living() if asked else ()
        except Exception:  # noqa: BLE001 - not known to be gone
            return asked
        return [cloud_id for cloud_id in asked if cloud_id in living]

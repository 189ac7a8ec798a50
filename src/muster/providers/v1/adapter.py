"""V1Adapter makes any v1 NodeProvider a CloudProvider; the registry and tests build it.

The loop's thread never waits for the cloud: creations, terminations and listings have threads of their own,
and `poll_*` returns what failed. With `inline_pools` all of it happens in the caller instead.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from muster.base.clock import Clock, SystemClock
from muster.base.foreign import error_text
from muster.base.ids import CloudId, RequestId
from muster.base.log import OnChange
from muster.cluster.model import CloudInstance, FailureKind, LaunchFailure, Offer, TerminateFailure
from muster.cluster.snapshot import ProviderTraits
from muster.config.node_launch import NodeLaunch
from muster.errors import MusterError, ProviderMisconfigured
from muster.providers.v1.calls import Requests, V1Calls
from muster.providers.v1.failures import kind_of, message_of, provider_call
from muster.providers.v1.launches import V1LaunchQueue
from muster.providers.v1.thread_pools import InlinePool, Pool, ThreadPool

logger = logging.getLogger(__name__)

TOO_OLD_S = 10.0  # a listing that is older than this is requested again


class ListingLate(MusterError):
    """A ListingLate means that the provider has not answered yet; nothing may be concluded from that."""

    retryable = True


class _ListCall:
    """A _ListCall is one listing under way."""

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.answered_at = asked_at
        self.machines: dict[CloudId, CloudInstance] = {}
        self.problems: dict[str, str] = {}
        self.error: Exception | None = None
        self.future: Future[None] | None = None


class InstanceLister:
    """An InstanceLister runs one listing at a time; one that comes too late for a tick serves the next."""

    def __init__(
        self, calls: V1Calls, new_pool: Callable[[], Pool], clock: Clock, wait_s: float, given_up_s: float
    ) -> None:
        self._calls, self._new_pool, self._clock = calls, new_pool, clock
        self._wait_s, self._given_up_s = wait_s, given_up_s
        self._pool = new_pool()
        self._call: _ListCall | None = None
        self._changes = OnChange(logger)

    def read(self) -> Mapping[CloudId, CloudInstance]:
        """Waits a bounded time for the listing; raises ListingLate, or what the provider raised."""
        call = self._current()
        assert call.future is not None
        wait((call.future,), timeout=self._wait_s)
        if not call.future.done():
            waited_s = self._clock.monotonic() - call.asked_at
            raise ListingLate(f"the provider has been listing its machines for {waited_s:.0f} s")
        self._call = None
        if call.error is not None:
            raise call.error
        for node_id, problem in call.problems.items():
            self._changes.log(logging.WARNING, node_id, f"machine {node_id}: {problem}")
        return call.machines

    def close(self, wait_s: float) -> None:
        self._pool.close(wait_s)

    def _current(self) -> _ListCall:
        """Returns the listing under way, or a new one; one that hangs is given up with its thread."""
        call, now = self._call, self._clock.monotonic()
        if call is not None and call.future is not None:
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
            call.machines, call.problems = self._calls.listed()
        except Exception as error:  # noqa: BLE001 - raised where the list is read
            call.error = error
        call.answered_at = self._clock.monotonic()


class TerminationQueue:
    """A TerminationQueue takes ids at once and ends them on its pool."""

    def __init__(self, calls: V1Calls, pool: Pool, clock: Clock, given_up_s: float) -> None:
        self.requests: Requests[TerminateFailure] = Requests()
        self._calls, self._pool, self._clock, self._given_up_s = calls, pool, clock, given_up_s
        self._ending: dict[CloudId, float] = {}  # id -> when its call was made
        self._lock = threading.Lock()

    def take(self, request_id: RequestId, cloud_ids: Iterable[CloudId]) -> None:
        """Takes a request, once; ids that another call is ending are left to that call."""
        wanted = [cloud_id for cloud_id in dict.fromkeys(cloud_ids) if cloud_id]
        limit = self._calls.max_terminate or max(len(wanted), 1)
        calls = [wanted[start : start + limit] for start in range(0, len(wanted), limit)]
        self.requests.start(request_id, [partial(self._end, request_id, ids) for ids in calls], self._pool)

    def _end(self, request_id: RequestId, wanted: Sequence[CloudId]) -> None:
        ids = self._not_yet_ending(wanted)
        try:
            if ids:
                self._calls.terminate(ids)
        except Exception as error:  # noqa: BLE001 - comes back as failures
            self._sort_out(request_id, ids, error)
        finally:
            self._forget(ids)
            self.requests.job_done(request_id)

    def _not_yet_ending(self, ids: Sequence[CloudId]) -> list[CloudId]:
        """Returns the ids without those that another call is ending, unless that call seems to hang."""
        now = self._clock.monotonic()
        with self._lock:
            mine = [c for c in ids if now - self._ending.get(c, float("-inf")) > self._given_up_s]
            self._ending.update(dict.fromkeys(mine, now))
        return mine

    def _sort_out(self, request_id: RequestId, ids: Sequence[CloudId], error: BaseException) -> None:
        """Tries the remaining machines of a failed batch one by one, so that each gets its own reason."""
        errors = dict.fromkeys(self._still_there(ids), error)
        if len(ids) > 1 and kind_of(error) is not FailureKind.THROTTLED:
            errors = self._one_by_one(errors)
            errors = {cloud_id: errors[cloud_id] for cloud_id in self._still_there(errors)}
        for cloud_id, reason in errors.items():
            failure = TerminateFailure(cloud_id=cloud_id, kind=kind_of(reason), message=message_of(reason))
            self.requests.fail(request_id, failure)

    def _one_by_one(self, ids: Iterable[CloudId]) -> dict[CloudId, BaseException]:
        failed: dict[CloudId, BaseException] = {}
        for cloud_id in ids:
            try:
                self._calls.terminate([cloud_id])
            except Exception as error:  # noqa: BLE001 - comes back as a failure
                failed[cloud_id] = error
        return failed

    def _still_there(self, ids: Iterable[CloudId]) -> list[CloudId]:
        """Returns the ids that are still listed, in order; all of them when the listing fails."""
        asked = list(ids)
        if not asked:
            return []
        try:
            living = self._calls.living(asked)
        except Exception:  # noqa: BLE001 - not known to be gone
            return asked
        return [cloud_id for cloud_id in asked if cloud_id in living]

    def _forget(self, ids: Iterable[CloudId]) -> None:
        with self._lock:
            for cloud_id in ids:
                self._ending.pop(cloud_id, None)


TERMINATE_THREADS = 4
CLOSE_S = 5.0


@dataclass(frozen=True)
class AdapterLimits:
    """An AdapterLimits holds how the adapter treats its provider."""

    max_launch_batch: int = 5  # machines per create call
    max_concurrent: int = 10  # machines being created at a time
    least_threads: int = 1  # create calls at a time; more where batches are small
    list_wait_s: float = 2.0  # how long a tick waits for the list
    given_up_s: float = 300.0  # a call that takes longer than this is made again
    installs_runtime: bool | None = None  # None: provider.disable_node_updaters and the class decide

    @property
    def launch_threads(self) -> int:
        return max(self.least_threads, math.ceil(self.max_concurrent / self.max_launch_batch))


@dataclass(frozen=True)
class AdapterPools:
    """An AdapterPools holds where the three kinds of calls run; none of them can hold up another."""

    launch: Pool
    terminate: Pool
    new_listing: Callable[[], Pool]  # called again when a listing hangs: its thread is lost
    pause: Callable[[float], object] = lambda seconds: None  # waits on a thread of `launch`


def thread_pools(limits: AdapterLimits, clock: Clock) -> AdapterPools:
    return AdapterPools(
        launch=ThreadPool("v1-launch", limits.launch_threads),
        terminate=ThreadPool("v1-terminate", TERMINATE_THREADS),
        new_listing=lambda: ThreadPool("v1-list", 1),
        pause=clock.sleep,
    )


def inline_pools() -> AdapterPools:
    """Returns pools that run everything in the caller's thread, at once: deterministic."""
    return AdapterPools(launch=InlinePool(), terminate=InlinePool(), new_listing=InlinePool)


class ReadOnlyRefusal(ProviderMisconfigured, NotImplementedError):
    """A ReadOnlyRefusal means that a read-only provider was asked to change something."""


class V1Adapter:
    """A V1Adapter is the port around one v1 provider object.

    Idempotent by request id: within this process by memory, across restarts by the machines' tags.
    """

    def __init__(
        self,
        node_provider: Any,  # noqa: ANN401 - duck typed
        launches: Callable[[], Mapping[str, NodeLaunch]],
        *,
        cluster_name: str,
        limits: AdapterLimits | None = None,
        pools: AdapterPools | None = None,
        clock: Clock | None = None,
    ) -> None:
        limits, clock = limits or AdapterLimits(), clock or SystemClock()
        self.v1 = node_provider
        self._calls = calls = V1Calls(node_provider, cluster_name)
        self._pools = pools or thread_pools(limits, clock)
        self._launches = V1LaunchQueue(
            calls, launches, self._pools.launch, limits.max_launch_batch, self._pools.pause
        )
        self._terminations = TerminationQueue(calls, self._pools.terminate, clock, limits.given_up_s)
        self._listing = InstanceLister(
            calls, self._pools.new_listing, clock, limits.list_wait_s, limits.given_up_s
        )
        self._limits = limits
        self._traits: ProviderTraits | None = None

    def traits(self) -> ProviderTraits:
        """Returns the provider's traits, read once: they do not change while it lives."""
        if self._traits is None:
            known = self._limits.installs_runtime
            self._traits = ProviderTraits(
                read_only=self._calls.read_only(),
                installs_runtime=self._calls.installs_runtime() if known is None else known,
                max_batch=self._limits.max_launch_batch,
                buys_offers=self._calls.buys_offers(),
                takes_next_offer=self._calls.repeats_safely() and self._calls.buys_offers(),
            )
        return self._traits

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        machines = self._listing.read()
        self._launches.note_listed(machines.values())
        return machines

    def launch(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        self._refuse_if_read_only("launch")
        self._launches.take(request_id, shape)

    def launch_offer(self, request_id: RequestId, shape: Mapping[str, int], offer: Offer) -> None:
        self._refuse_if_read_only("launch")
        self._launches.take(request_id, shape, (offer,))

    def launch_offers(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer]) -> None:
        self._refuse_if_read_only("launch")
        self._launches.take(request_id, shape, offers if self.traits().takes_next_offer else offers[:1])

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self._refuse_if_read_only("terminate")
        self._terminations.take(request_id, cloud_ids)

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        raise ProviderMisconfigured("a v1 provider cannot resize machines: traits().resizable is False")

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return self._launches.requests.poll()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self._terminations.requests.poll()

    def under_way(self, request_id: RequestId) -> bool:
        """Returns whether the request is still being worked on, or has failures that were not polled."""
        queues = (self._launches.requests, self._terminations.requests)
        return any(requests.is_open(request_id) for requests in queues)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Takes nothing more, and gives calls under way a moment; a hung one is not waited for."""
        self._pools.launch.close(wait_s)
        self._pools.terminate.close(wait_s)
        self._listing.close(0.0)
        close = getattr(self.v1, "close", None)  # not Ray's; providers with threads of their own have it
        try:
            if callable(close):
                provider_call(close)
        except Exception as error:  # noqa: BLE001 - what it held is lost with the process
            logger.warning("closing %s failed: %s", type(self.v1).__name__, error_text(error))

    def _refuse_if_read_only(self, what: str) -> None:
        if self.traits().read_only:
            raise ReadOnlyRefusal(f"{type(self.v1).__name__} is read-only: it cannot {what} machines")

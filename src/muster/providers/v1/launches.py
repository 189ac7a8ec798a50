"""V1LaunchQueue turns launch requests of the port into create calls of a v1 provider; used by V1Adapter only.

An order is one node type of one request. It is filled in batches on a pool, and its failures are reported
once, when its last batch is done: only then do the tags show which machines came and which units failed. A
provider that reports neither ids nor an error is believed by its list: what two looks at the tags do not show
has failed. The order stays open until its machines are listed, as long as a listing may take: a process that
starts meanwhile finds the launch in the outbox, and does not repeat it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from muster.base.clock import Clock
from muster.base.ids import RequestId
from muster.cluster.model import CloudInstance, FailureKind, LaunchFailure, Offer
from muster.config.to_spec import NodeLaunch
from muster.errors import ProviderError, ProviderMisconfigured
from muster.host.call_threads import Pool, log_failure
from muster.providers.background_calls import Requests
from muster.providers.v1.calls import V1Calls
from muster.providers.v1.failures import kind_of, message_of

SECOND_LOOK_S = 2.0  # a list may be late: what it lacks right after a create call is looked for again


class ShortBatch(ProviderError):
    """A create call that returned fewer machines than requested, without a reason."""

    kind = "capacity"


class UnreportedBatch(ShortBatch):
    """A create call that returned None: only the list shows how many it made."""


@dataclass
class _Order:
    """What was requested, and what has become of it."""

    request_id: RequestId
    node_type: str
    count: int
    offer: Offer | None = None
    made: set[str] = field(default_factory=set)  # ids known to exist
    unfilled: list[BaseException] = field(default_factory=list)  # one entry per unit that may be missing
    open_batches: int = 0
    expected: int = 0  # machines to be listed, once all batches are done
    listed_by: float = 0.0  # when they must be
    listed: set[str] = field(default_factory=set)
    unclear: list[BaseException] = field(default_factory=list)  # errors after which machines may exist
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_unclear(self, error: BaseException) -> bool:
        return any(error is one for one in self.unclear)  # a foreign error may not even be comparable

    def batch_done(self, made: set[str], unfilled: list[BaseException]) -> bool:
        """Return whether this was the last batch."""
        with self.lock:
            self.made |= made
            self.unfilled += unfilled
            self.open_batches -= 1
            return self.open_batches == 0


class V1LaunchQueue:
    """Takes requests at once and fills them on its pool."""

    def __init__(
        self,
        calls: V1Calls,
        launches: Callable[[], Mapping[str, NodeLaunch]],
        pool: Pool,
        max_batch: int,
        pause: Callable[[float], object],
        clock: Clock,
    ) -> None:
        self.requests: Requests[LaunchFailure] = Requests()
        self._calls, self._launches, self._pool, self._max_batch = calls, launches, pool, max_batch
        self._pause, self._clock = pause, clock
        self._unlisted: list[_Order] = []  # filled, but not all of their machines have been listed
        self._withdrawn: set[RequestId] = set()  # open requests that nobody waits for
        # Request and type of an order counted as short -> the machines that were listed for it.
        self._short: dict[tuple[RequestId | None, str], set[str]] = {}
        self._lists_late = False

    def take(self, request_id: RequestId, shape: Mapping[str, int], offer: Offer | None = None) -> None:
        """Take a request; an id that was taken before changes nothing."""
        wanted = ((node_type, count) for node_type, count in shape.items() if count > 0)
        orders = [_Order(request_id, node_type, count, offer) for node_type, count in wanted]
        self.requests.start(request_id, [partial(self._open, order) for order in orders], self._pool)

    def withdraw(self, request_id: RequestId) -> None:
        """Make no more create calls for a request."""
        if self.requests.is_open(request_id):
            self._withdrawn.add(request_id)

    def _open(self, order: _Order) -> None:
        """List first: a request repeated after a restart may have been filled, in part or as a whole."""
        try:
            launch = self._launch_of(order)
            order.made = self._calls.made_for(order.request_id, order.node_type)
        except Exception as error:  # noqa: BLE001 - comes back as failures
            self._close(order, [error] * order.count)
            return
        # Batch sizes: 7 by 5 is [5, 2]; nothing for a count of 0 or less.
        count = order.count - len(order.made)
        sizes = [min(self._max_batch, count - start) for start in range(0, max(count, 0), self._max_batch)]
        order.open_batches = len(sizes)
        for size in sizes[1:]:
            self._submit(order, launch, size)
        if sizes:
            self._fill(order, launch, sizes[0])
        else:
            self._close(order, [])

    def _launch_of(self, order: _Order) -> NodeLaunch:
        launch = self._launches().get(order.node_type)
        if launch is None:
            raise ProviderMisconfigured(f"node type {order.node_type!r} is not in available_node_types")
        return launch

    def _submit(self, order: _Order, launch: NodeLaunch, size: int) -> None:
        try:
            future = self._pool.submit(lambda: self._fill(order, launch, size))
            future.add_done_callback(log_failure)
        except RuntimeError as closed:
            self._done(order, set(), [closed] * size)

    def _fill(self, order: _Order, launch: NodeLaunch, size: int) -> None:
        if order.request_id in self._withdrawn:
            self._done(order, set(), [])  # the units that are not made are not missed
            return
        try:
            made = self._calls.create(launch, order.request_id, size, order.offer)
        except Exception as error:  # noqa: BLE001 - comes back as failures
            if size > 1 or kind_of(error) is FailureKind.UNKNOWN:
                order.unclear.append(error)  # some may have been made before it was raised
            self._done(order, set(), [error] * size)
            return
        if made is None:
            self._done(order, set(), [UnreportedBatch(_text(order, 0, size))] * size)
            return
        self._done(order, made, [ShortBatch(_text(order, len(made), size))] * (size - len(made)))

    def _done(self, order: _Order, made: set[str], unfilled: list[BaseException]) -> None:
        if order.batch_done(made, unfilled):
            self._close(order, self._failed_units(order) if order.unfilled else [])

    def _failed_units(self, order: _Order) -> list[BaseException]:
        """Return an error for each machine that does not exist; errors with a reason come first."""
        told = [error for error in order.unfilled if not isinstance(error, UnreportedBatch)]
        told.sort(key=order.is_unclear)  # what surely failed is among the missing
        silent = len(order.unfilled) - len(told)
        missing, is_known = self._missing(order)
        if missing and (silent or any(kind_of(error) is FailureKind.UNKNOWN for error in told)):
            self._pause(SECOND_LOOK_S)
            missing, is_known = self._missing(order)
        short = min(silent, max(0, missing - len(told)))
        if not short or not is_known:
            return told[:missing]
        self._short[order.request_id, order.node_type] = set(order.made)
        order.unclear.append(ShortBatch(_text(order, order.count - missing, order.count)))
        return [*told, *order.unclear[-1:] * short]

    def _missing(self, order: _Order) -> tuple[int, bool]:
        """Return how many machines of the order are not known to exist, and whether to believe the list.

        It is believed when it shows launch tags, of whichever request, and has not been late before: a
        provider that keeps no such tags never shows what it makes for a request.
        """
        try:
            order.made |= self._calls.made_for(order.request_id, order.node_type)
            is_known = not self._lists_late and (bool(order.made) or self._calls.keeps_request_tags())
        except Exception:  # noqa: BLE001 - without a list, those count that create calls have returned
            is_known = False
        return max(0, order.count - len(order.made)), is_known

    def note_listed(self, machines: Collection[CloudInstance]) -> None:
        """Close orders whose machines are listed, or should be by now.

        A machine that is listed although its request was counted as short shows that lists are late.
        """
        for order in tuple(self._unlisted):
            of = (order.request_id, order.node_type)
            order.listed |= {
                m.cloud_id for m in machines if (m.request_id, m.node_type) == of or m.cloud_id in order.made
            }
            if len(order.listed) >= order.expected or self._clock.monotonic() >= order.listed_by:
                self._unlisted.remove(order)
                self._end(order)
        if self._short and not self._lists_late:
            self._lists_late = any(
                one.cloud_id not in self._short.get((one.request_id, one.node_type), (one.cloud_id,))
                for one in machines
            )

    def _close(self, order: _Order, failed_units: list[BaseException]) -> None:
        failures = [
            LaunchFailure(
                request_id=order.request_id,
                node_type=order.node_type,
                kind=kind_of(error),
                message=message_of(error),
                may_exist=order.is_unclear(error),
            )
            for error in failed_units
        ]
        order.expected = order.count - len(failures)
        order.listed_by = self._clock.monotonic() + self._calls.listed_within_s
        if order.request_id in self._withdrawn or not order.expected or not self._calls.listed_within_s:
            self._end(order, failures)
        else:
            self.requests.job_done(order.request_id, failures, is_over=False)
            self._unlisted.append(order)

    def _end(self, order: _Order, failures: Sequence[LaunchFailure] = ()) -> None:
        self.requests.job_done(order.request_id, failures)
        if not self.requests.is_open(order.request_id):
            self._withdrawn.discard(order.request_id)


def _text(order: _Order, made: int, asked: int) -> str:
    return f"the provider made {made} of {asked} {order.node_type} and gave no reason"

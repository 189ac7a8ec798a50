"""V1LaunchQueue turns launch requests of the port into create calls of a v1 provider; used by V1Adapter only.

An order is one node type of one request. It is filled in batches on a pool and closed once, when its last
batch is done: only then do the tags show which machines came and which units failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from muster.base.ids import RequestId
from muster.cluster.model import LaunchFailure
from muster.config.node_launch import NodeLaunch
from muster.errors import ProviderError, ProviderMisconfigured
from muster.providers.v1.calls import Requests, V1Calls
from muster.providers.v1.failures import BROKEN, kind_of, message_of
from muster.providers.v1.thread_pools import Pool


class ShortBatch(ProviderError):
    """A ShortBatch is a create call that returned fewer machines than requested, without a reason."""

    kind = "capacity"


@dataclass
class _Order:
    """An _Order is what was requested, and what has become of it."""

    request_id: RequestId
    node_type: str
    count: int
    made: set[str] = field(default_factory=set)  # ids known to exist
    unfilled: list[BaseException] = field(default_factory=list)  # one entry per unit that may be missing
    open_batches: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def batch_done(self, made: set[str], unfilled: list[BaseException]) -> bool:
        """Returns whether this was the last batch."""
        with self.lock:
            self.made |= made
            self.unfilled += unfilled
            self.open_batches -= 1
            return self.open_batches == 0


class V1LaunchQueue:
    """A V1LaunchQueue takes requests at once and fills them on its pool."""

    def __init__(
        self,
        calls: V1Calls,
        launches: Callable[[], Mapping[str, NodeLaunch]],
        pool: Pool,
        max_batch: int,
    ) -> None:
        self.requests: Requests[LaunchFailure] = Requests()
        self._calls, self._launches, self._pool, self._max_batch = calls, launches, pool, max_batch

    def take(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        """Takes a request; an id that was taken before changes nothing."""
        orders = [_Order(request_id, node_type, count) for node_type, count in shape.items() if count > 0]
        self.requests.start(request_id, [partial(self._open, order) for order in orders], self._pool)

    def _open(self, order: _Order) -> None:
        """Lists first: a request repeated after a restart may have been filled, in part or as a whole."""
        try:
            launch = self._launch_of(order)
            order.made = self._calls.made_for(order.request_id, order.node_type)
        except BROKEN as error:
            self._close(order, [error] * order.count)
            return
        sizes = _split(order.count - len(order.made), self._max_batch)
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
            self._pool.submit(lambda: self._fill(order, launch, size))
        except RuntimeError as closed:
            self._done(order, set(), [closed] * size)

    def _fill(self, order: _Order, launch: NodeLaunch, size: int) -> None:
        try:
            made = self._calls.create(launch, order.request_id, size)
        except BROKEN as error:
            self._done(order, set(), [error] * size)
            return
        short = 0 if made is None else size - len(made)
        message = f"the provider made {size - short} of {size} {order.node_type} and gave no reason"
        self._done(order, made or set(), [ShortBatch(message)] * short)

    def _done(self, order: _Order, made: set[str], unfilled: list[BaseException]) -> None:
        if order.batch_done(made, unfilled):
            self._close(order, order.unfilled[: self._missing(order)] if order.unfilled else [])

    def _missing(self, order: _Order) -> int:
        """Returns how many machines of the order do not exist; without a list, those not known to exist."""
        try:
            living = self._calls.made_for(order.request_id, order.node_type)
        except BROKEN:
            living = set()
        return max(0, order.count - len(living | order.made))

    def _close(self, order: _Order, failed_units: list[BaseException]) -> None:
        for error in failed_units:
            failure = LaunchFailure(
                request_id=order.request_id,
                node_type=order.node_type,
                kind=kind_of(error),
                message=message_of(error),
            )
            self.requests.fail(order.request_id, failure)
        self.requests.job_done(order.request_id)


def _split(count: int, largest: int) -> list[int]:
    """Returns batch sizes: 7 by 5 is [5, 2]; nothing for a count of 0 or less."""
    return [min(largest, count - start) for start in range(0, max(count, 0), largest)]

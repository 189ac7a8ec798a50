"""Drain and resize nodes through the GCS; a request is sent once, and a failure comes back from `poll`.

The monitor has a GcsDrainer and a GcsResizer. A drain never kills running work at once: an idle node is
asked, and may refuse; any other is given until its deadline to finish what it runs.
"""

from __future__ import annotations

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from muster.base.clock import Clock, SystemClock
from muster.base.ids import RequestId
from muster.base.untrusted import call_safely, message_text
from muster.cluster.model import DrainFailure, ResizeFailure
from muster.cluster.plan import Drain, ResizeNode
from muster.cluster.ports import CloudProvider, Drainer
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.native import check_ray, parameters_of

logger = logging.getLogger(__name__)

DRAIN_THREADS, RESIZE_THREADS = 8, 4  # one slow node does not keep the others waiting
SHORTEST_S = 1.0  # a deadline that has passed when it arrives is refused

# Ray's numbers of the reasons.
_IDLE_TERMINATION = 1
_PREEMPTION = 2
_NODE_ID = re.compile("([0-9a-f]{2})+")


class GcsDrainer(Drainer):
    """Sends drains; one that was refused or not delivered comes back from `poll`."""

    def __init__(self, client: GcsClient, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(max_workers=DRAIN_THREADS, thread_name_prefix="muster-drain")
        self._lock = threading.Lock()
        # Whether something is still to come of a request: its answer, or a refusal that is not polled yet.
        self._is_open: dict[RequestId, bool] = {}
        self._failures: list[tuple[RequestId, DrainFailure]] = []

    def drain(self, action: Drain) -> None:
        """Send a request once, however often the outbox repeats it; returns at once."""
        with self._lock:
            if action.request_id in self._is_open:
                return
            self._is_open[action.request_id] = True
        self._threads.submit(self._ask, action)

    def poll(self) -> tuple[DrainFailure, ...]:
        with self._lock:
            polled, self._failures = self._failures, []
            self._is_open.update((request_id, False) for request_id, _ in polled)
        return tuple(failure for _, failure in polled)

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether a monitor that is killed now would lose the drain, or its refusal."""
        with self._lock:
            if self._is_open.get(request_id):
                return True
            self._is_open.pop(request_id, None)  # it leaves the outbox now, and does not come again
            return False

    def close(self, *, drop: bool = True) -> None:
        """Wait for what was sent; what was not is dropped, or sent first."""
        self._threads.shutdown(wait=True, cancel_futures=drop)

    def _send(self, action: Drain) -> tuple[bool, str]:
        if not _NODE_ID.fullmatch(action.node_id):  # Ray accepts and ignores unknown ids
            raise ValueError(f"{action.node_id!r} is not the id of a Ray node (hex)")
        return self._client.drain_node(
            action.node_id,
            _IDLE_TERMINATION if action.may_be_refused else _PREEMPTION,
            action.message or f"removed by the autoscaler: {action.cause.name.lower()}",
            round((self._clock.now() + max(action.deadline_s, SHORTEST_S)) * 1000),
        )

    def _ask(self, action: Drain) -> None:
        try:
            accepted, why = call_safely(lambda: self._send(action))
        except Exception as error:  # noqa: BLE001 - it must come back as a failure, not end in a thread
            accepted, why = False, message_text(error)
        with self._lock:
            if accepted:
                self._is_open[action.request_id] = False
            else:
                polled = why or "the node refused to be drained"
                failure = DrainFailure(instance_id=action.instance_id, message=polled)
                self._failures.append((action.request_id, failure))


def resizer_for(client: GcsClient, provider: CloudProvider, stack: ExitStack) -> GcsResizer | None:
    """Return what lets nodes count another size, closed by `stack`; None where no node can count it."""
    if not parameters_of("resize_raylet_resource_instances"):
        if provider.traits().resizable:
            logger.warning("machines are not resized: nodes of Ray %s cannot count another size", check_ray())
        return None
    resizer = GcsResizer(client)
    stack.callback(resizer.close)
    return resizer


class GcsResizer:
    """Sends sizes; what was refused or not delivered comes back from `poll`."""

    def __init__(self, client: GcsClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(max_workers=RESIZE_THREADS, thread_name_prefix="muster-resize")
        self._lock = threading.Lock()
        self._sent: set[RequestId] = set()
        self._failures: list[ResizeFailure] = []

    def resize(self, action: ResizeNode) -> None:
        """Send a request once, however often the outbox repeats it; returns at once."""
        with self._lock:
            if action.request_id in self._sent:
                return
            self._sent.add(action.request_id)
        self._threads.submit(self._send, action)

    def poll(self) -> tuple[ResizeFailure, ...]:
        with self._lock:
            polled, self._failures = self._failures, []
        return tuple(polled)

    def close(self) -> None:
        """Wait for what was sent; what was not is dropped: the next monitor asks again."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _send(self, action: ResizeNode) -> None:
        try:
            call_safely(lambda: self._client.resize_node(action.node_id, action.desired.to_floats()))
        except Exception as error:  # noqa: BLE001 - it must come back as a failure, not end in a thread
            failure = ResizeFailure(cloud_id=action.cloud_id, message=message_text(error), is_of_node=True)
            with self._lock:
                self._failures.append(failure)
        finally:
            with self._lock:
                self._sent.discard(action.request_id)

"""GcsDrainer empties nodes through the GCS, as the Drainer of a monitor; it never kills running work at once.

An idle node is asked, and may refuse; any other is given until its deadline to finish what it runs.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from muster.base.clock import Clock, SystemClock
from muster.base.ids import NodeId, RequestId
from muster.base.untrusted import call_safely, message_text
from muster.cluster.model import DrainFailure
from muster.cluster.plan import Drain
from muster.cluster.ports import Drainer
from muster.runtimes.ray.client import GcsClient

THREADS = 8  # one slow node does not keep the others waiting
SHORTEST_S = 1.0  # a deadline that has passed when it arrives is refused

# Ray's numbers of the reasons.
_IDLE_TERMINATION = 1
_PREEMPTION = 2


class GcsDrainer(Drainer):
    """A GcsDrainer sends drains; one that was refused or not delivered comes back from `poll`."""

    def __init__(self, client: GcsClient, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="muster-drain")
        self._lock = threading.Lock()
        # Whether something is still to come of a request: its answer, or a refusal that is not polled yet.
        self._is_open: dict[RequestId, bool] = {}
        self._failures: list[tuple[RequestId, DrainFailure]] = []

    def drain(self, action: Drain) -> None:
        """Sends a request once, however often the outbox repeats it; returns at once."""
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
        """Returns whether a monitor that is killed now would lose the drain, or its refusal."""
        with self._lock:
            if self._is_open.get(request_id):
                return True
            self._is_open.pop(request_id, None)  # it leaves the outbox now, and does not come again
            return False

    def close(self, *, drop: bool = True) -> None:
        """Waits for what was sent; what was not is dropped, or sent first."""
        self._threads.shutdown(wait=True, cancel_futures=drop)

    def _send(self, action: Drain) -> tuple[bool, str]:
        return self._client.drain_node(
            _hex(action.node_id),
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


def _hex(node_id: NodeId) -> str:
    """Returns the id; raises ValueError for what cannot be one, as Ray accepts and ignores unknown ids."""
    if len(node_id) % 2 or any(letter not in "0123456789abcdef" for letter in node_id) or not node_id:
        raise ValueError(f"{node_id!r} is not the id of a Ray node (hex)")
    return node_id

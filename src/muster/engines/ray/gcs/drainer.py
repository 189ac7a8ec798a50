"""GcsDrainer: empties nodes through the GCS. Never kills running work at once; the Drainer of a monitor.

An idle node is asked (the node may refuse); any other is given until its deadline to finish what it runs.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor

from muster.base.clock import Clock, SystemClock
from muster.base.ids import NodeId
from muster.cluster.model import DrainFailure
from muster.cluster.plan import Drain
from muster.engines.ray.gcs.link import GcsLink

THREADS = 8  # one slow node does not keep the others waiting
SHORTEST_S = 1.0  # a deadline that has passed when it arrives is refused

# Ray's wire numbers.
_IDLE_TERMINATION = 1
_PREEMPTION = 2


class GcsDrainer:
    """`drain` returns at once; a drain that was refused or not delivered comes back from `poll`."""

    def __init__(self, link: GcsLink, clock: Clock | None = None) -> None:
        self._link = link
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="muster-drain")
        self._failures: deque[DrainFailure] = deque()

    def drain(self, action: Drain) -> None:
        self._threads.submit(self._ask, action)

    def poll(self) -> tuple[DrainFailure, ...]:
        found = []
        while self._failures:
            found.append(self._failures.popleft())
        return tuple(found)

    def close(self, *, drop: bool = True) -> None:
        """Wait for what was sent; what was not is dropped, or else sent first."""
        self._threads.shutdown(wait=True, cancel_futures=drop)

    def _ask(self, action: Drain) -> None:
        try:
            accepted, why = self._link.drain_node(
                _hex(action.node_id),
                _IDLE_TERMINATION if action.may_be_refused else _PREEMPTION,
                action.message or f"removed by the autoscaler: {action.cause.name.lower()}",
                round((self._clock.now() + max(action.deadline_s, SHORTEST_S)) * 1000),
            )
        except Exception as error:  # noqa: BLE001 - it must come back as a failure, not end in a thread
            accepted, why = False, str(error)
        if not accepted:
            told = why or "the node refused to be drained"
            self._failures.append(DrainFailure(instance_id=action.instance_id, message=told))


def _hex(node_id: NodeId) -> str:
    """Ray says yes to any id it does not know, and does nothing: so an id that cannot be one is an error."""
    if len(node_id) % 2 or any(letter not in "0123456789abcdef" for letter in node_id) or not node_id:
        raise ValueError(f"{node_id!r} is not the id of a Ray node (hex)")
    return node_id

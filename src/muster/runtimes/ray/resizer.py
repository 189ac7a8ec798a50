"""GcsResizer lets nodes count another size through the GCS, as the NodeResizer of a monitor."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from muster.base.ids import RequestId
from muster.base.untrusted import call_safely, message_text
from muster.cluster.model import ResizeFailure
from muster.cluster.plan import ResizeNode
from muster.cluster.ports import CloudProvider
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.native import check_ray, parameters_of

logger = logging.getLogger(__name__)

THREADS = 4


def resizer_for(client: GcsClient, provider: CloudProvider, stack: ExitStack) -> GcsResizer | None:
    """Returns what lets nodes count another size, closed by `stack`; None where no node can count it."""
    if not parameters_of("resize_raylet_resource_instances"):
        if provider.traits().resizable:
            logger.warning("machines are not resized: nodes of Ray %s cannot count another size", check_ray())
        return None
    resizer = GcsResizer(client)
    stack.callback(resizer.close)
    return resizer


class GcsResizer:
    """A GcsResizer sends sizes; what was refused or not delivered comes back from `poll`."""

    def __init__(self, client: GcsClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="muster-resize")
        self._lock = threading.Lock()
        self._sent: set[RequestId] = set()
        self._failures: list[ResizeFailure] = []

    def resize(self, action: ResizeNode) -> None:
        """Sends a request once, however often the outbox repeats it; returns at once."""
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
        """Waits for what was sent; what was not is dropped: the next monitor asks again."""
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

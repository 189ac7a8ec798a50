"""Read a cluster's GCS all the time on a separate thread, and keep the snapshots."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.live_cluster import ProcessTracker
from muster.cluster.model import NodeReport, NodeStatus, RuntimeReport
from muster.errors import EngineError
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

PROCESSES_EVERY = 4  # reads of the GCS per read of the process table


@dataclass(frozen=True)
class ClusterSnapshot:
    """The report of one moment."""

    at: float  # monotonic
    report: RuntimeReport

    @property
    def workers(self) -> tuple[NodeReport, ...]:
        """Return the live nodes without the head."""
        return tuple(
            node for node in self.report.nodes if not node.is_head and node.status is not NodeStatus.DEAD
        )

    def counts(self) -> dict[str, int]:
        return dict(Counter(node.node_type for node in self.workers))


class ClusterWatch:
    """Reads between `start` and `close`, and passes every snapshot to `on_snapshot`."""

    def __init__(
        self,
        address: str,
        auth: Mapping[str, str],
        *,
        every_s: float,
        processes: ProcessTracker | None = None,
        on_snapshot: Callable[[ClusterSnapshot], None] = lambda snapshot: None,
    ) -> None:
        self._client = GcsClient(address, auth)
        self._source = GcsNodeSource(self._client)
        self._every_s, self._processes, self._on_snapshot = every_s, processes, on_snapshot
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.snapshots: list[ClusterSnapshot] = []
        self.misses = 0  # reads that the GCS did not answer

    @property
    def client(self) -> GcsClient:
        return self._client

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def now(self) -> ClusterSnapshot:
        """Return a snapshot of this moment, on the caller's thread."""
        return ClusterSnapshot(time.monotonic(), self._source.read())

    def since(self, at: float) -> list[ClusterSnapshot]:
        return [snapshot for snapshot in self.snapshots if snapshot.at >= at]

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._every_s):
            number += 1
            try:
                snapshot = self.now()
            except EngineError:
                self.misses += 1
            else:
                self.snapshots.append(snapshot)
                self._on_snapshot(snapshot)
            if self._processes is not None and number % PROCESSES_EVERY == 0:
                self._processes.update()

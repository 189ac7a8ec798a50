"""Watch: looks at a cluster's GCS all the time on a thread of its own, and keeps what it saw."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.live_cluster import Family
from muster.cluster.model import NodeReport, NodeStatus, RuntimeReport
from muster.errors import EngineError
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

FAMILY_EVERY = 4  # looks at the GCS per look at the process table


@dataclass(frozen=True)
class Look:
    """One moment."""

    at: float  # monotonic
    report: RuntimeReport

    @property
    def workers(self) -> tuple[NodeReport, ...]:
        """Nodes that live, without the head."""
        return tuple(
            node for node in self.report.nodes if not node.is_head and node.status is not NodeStatus.DEAD
        )

    def counts(self) -> dict[str, int]:
        return dict(Counter(node.node_type for node in self.workers))


class Watch:
    """Between `start` and `close`; `hear` is told of every look."""

    def __init__(
        self,
        address: str,
        auth: Mapping[str, str],
        *,
        every_s: float,
        family: Family | None = None,
        hear: Callable[[Look], None] = lambda look: None,
    ) -> None:
        self._link = GcsClient(address, auth)
        self._source = GcsNodeSource(self._link)
        self._every_s, self._family, self._hear = every_s, family, hear
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.looks: list[Look] = []
        self.misses = 0  # looks at which the GCS did not answer

    @property
    def link(self) -> GcsClient:
        return self._link

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def now(self) -> Look:
        """A look of this moment, on the caller's thread."""
        return Look(time.monotonic(), self._source.read())

    def since(self, at: float) -> list[Look]:
        return [look for look in self.looks if look.at >= at]

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._every_s):
            number += 1
            try:
                look = self.now()
            except EngineError:
                self.misses += 1
            else:
                self.looks.append(look)
                self._hear(look)
            if self._family is not None and number % FAMILY_EVERY == 0:
                self._family.look()

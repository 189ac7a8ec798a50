"""Check whether a cluster keeps its limits and gives idle nodes back, by its GCS and its records."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.live_cluster import LiveCluster
from bench.live_watch import ClusterSnapshot
from muster.cluster.model import NodeStatus
from muster.host.processes import is_alive

MARGIN_S = 15.0  # beyond the idle timeout: two of the longest pauses between ticks, and the drain
DEATH_S = 40.0  # how long the GCS may continue to show a node whose processes were killed


@dataclass(frozen=True)
class Limits:
    """What the cluster file allows."""

    workers: int
    by_type: Mapping[str, int]
    idle_s: float


@dataclass
class LimitChecker:
    """Gets every snapshot; `broken` has what was wrong, each thing once."""

    cluster: LiveCluster
    limits: Limits
    snapshots: int = 0
    most_workers: int = 0
    longest_idle_s: float = 0.0
    broken: dict[str, str] = field(default_factory=dict)
    killed: dict[str, float] = field(default_factory=dict)
    _without_monitor: list[list[float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_killed(self, cloud_id: str, at: float) -> None:
        with self._lock:
            self.killed[cloud_id] = at

    def note_monitor_gone(self, at: float) -> None:
        with self._lock:
            self._without_monitor.append([at, float("inf")])

    def note_monitor_back(self, at: float) -> None:
        with self._lock:
            self._without_monitor[-1][1] = at

    def on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        with self._lock:
            self.snapshots += 1
            self._check_limits("GCS", self._in_gcs(snapshot), snapshot.at)
            self._check_limits("machines", self._machines(), snapshot.at)
            self._check_idle(snapshot)

    def _in_gcs(self, snapshot: ClusterSnapshot) -> list[str]:
        """Leave out nodes that were just killed: the GCS notices late, and others may have replaced them."""
        return [node.node_type for node in snapshot.workers if str(node.cloud_id) not in self.killed]

    def _machines(self) -> list[str]:
        """Return what the provider has running or pending, without the head."""
        return [
            one.node_type
            for one in self.cluster.node_records()
            if one.node_type in self.limits.by_type
            and (one.state == "pending" or (one.state == "running" and is_alive(one.process)))
        ]

    def _check_limits(self, where: str, types: list[str], at: float) -> None:
        self.most_workers = max(self.most_workers, len(types))
        counts = Counter(types)
        if len(types) > self.limits.workers:
            self._break(f"{where}: above max_workers", f"{dict(counts)} at {at:.0f}")
        for name, count in counts.items():
            if count > self.limits.by_type[name]:
                self._break(f"{where}: above max_workers of {name}", f"{count} at {at:.0f}")

    def _check_idle(self, snapshot: ClusterSnapshot) -> None:
        """Time without a monitor is not counted: then no process can give nodes back."""
        for node in snapshot.workers:
            if node.status is not NodeStatus.IDLE or str(node.cloud_id) in self.killed:
                continue
            idle_s = node.idle_s - self._unwatched(snapshot.at - node.idle_s, snapshot.at)
            self.longest_idle_s = max(self.longest_idle_s, idle_s)
            if idle_s > self.limits.idle_s + MARGIN_S:
                self._break(
                    f"idle: {node.node_id[:12]} ({node.node_type})", f"{idle_s:.0f} s at {snapshot.at:.0f}"
                )
        for cloud_id, at in self.killed.items():
            shown = any(str(node.cloud_id) == cloud_id for node in snapshot.workers)
            if shown and snapshot.at - at > DEATH_S:
                self._break(f"dead: {cloud_id}", "still shown as alive")

    def _unwatched(self, begin: float, end: float) -> float:
        return sum(max(0.0, min(end, back) - max(begin, gone)) for gone, back in self._without_monitor)

    def _break(self, what: str, how: str) -> None:
        self.broken.setdefault(what, how)

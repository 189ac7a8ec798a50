"""Adoption: an edit of the cluster file counts for the monitor itself too, as far as it can while it runs.

Asked after every tick, when the loop has read the file. What counts only at a start is an event, told once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster.autoscaler.events import Event, EventLog
from muster.autoscaler.metrics import DEFAULT_PORT, MetricsServer
from muster.autoscaler.tick_interval import Pace
from muster.base.clock import Clock
from muster.config.schema import ClusterConfig, MonitorConfig
from muster.config.to_spec import retention_of
from muster.stores.ledger.state import Retention
from muster.stores.ledger.store import SqliteInstanceStore

_AT_START = "counts when the monitor is started again"


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the command line said; it stands over the file."""

    interval_s: float | None = None
    metrics_port: int | None = None

    def bounds(self, file: MonitorConfig) -> tuple[float, float]:
        """The shortest and the longest pause between two ticks."""
        base_s = self.interval_s or file.interval_s
        return base_s, max(base_s, file.longest_interval_s)

    def port(self, file: MonitorConfig) -> int:
        wished = file.metrics_port if self.metrics_port is None else self.metrics_port
        return DEFAULT_PORT if wished is None else wished


def unheeded(config: ClusterConfig, given: Given) -> dict[str, tuple[object, str]]:
    """The keys that a running monitor does not take: their value, and what is said when it changes."""
    monitor = config.muster.monitor
    keys: dict[str, tuple[object, str]] = {
        "cluster_name": (config.cluster_name, _AT_START),
        "provider": (config.provider, _AT_START),
        "muster.limits.max_launch_batch": (config.muster.limits.max_launch_batch, _AT_START),
    }
    if given.interval_s is not None:
        why = f"does not count: --interval {given.interval_s:g} does"
        keys["muster.monitor.interval_s"] = (monitor.interval_s, why)
    if given.metrics_port is not None:
        why = f"does not count: --metrics-port {given.metrics_port} does"
        keys["muster.monitor.metrics_port"] = (monitor.metrics_port, why)
    return keys


@dataclass
class Adoption:
    """The parts of a running monitor that an edit may change."""

    config: Callable[[], ClusterConfig]  # as the loop has read it
    given: Given
    pace: Pace
    store: SqliteInstanceStore
    server: MetricsServer | None
    events: EventLog
    clock: Clock

    def __post_init__(self) -> None:
        self._started = self._current = self.config()

    def adopt(self) -> None:
        """Returns at once while the file is as it was."""
        before, now = self._current, self.config()
        if now is before:
            return
        self._current = now
        if now.muster.retention != before.muster.retention:
            self.store.retain(Retention(**retention_of(now)))
        old, new = before.muster.monitor, now.muster.monitor
        if self.given.bounds(new) != self.given.bounds(old):
            self.pace.change(*self.given.bounds(new))
        if self.given.port(new) != self.given.port(old):
            self._move(self.given.port(new))
        self._say(before, now)

    def _move(self, port: int) -> None:
        if self.server is None:
            self._tell(f"muster.monitor.metrics_port: no metrics are served; {port} {_AT_START}.")
            return
        try:
            self.server.move(port)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            self._tell(
                f"muster.monitor.metrics_port: {port} cannot be used ({why}); the metrics stay on port"
                f" {self.server.port}."
            )

    def _say(self, before: ClusterConfig, now: ClusterConfig) -> None:
        known, started = unheeded(before, self.given), unheeded(self._started, self.given)
        for key, (value, why) in unheeded(now, self.given).items():
            if value != known[key][0] and value != started[key][0]:
                self._tell(f"{key} was changed in the cluster file, and {why}.")

    def _tell(self, message: str) -> None:
        self.events.tell(Event(at=self.clock.now(), level="warning", message=message))

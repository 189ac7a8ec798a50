"""Apply an edit of the cluster file to a running monitor, and names what needs a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from muster.autoscaler.events import Event, EventLog
from muster.autoscaler.metrics import DEFAULT_PORT, Metrics, MetricsServer
from muster.autoscaler.monitor import TickInterval
from muster.base.clock import Clock
from muster.config.schema import ClusterConfig, MonitorConfig
from muster.providers.kind import kind_of
from muster.stores.ledger.state import Retention
from muster.stores.ledger.store import SqliteInstanceStore

_AT_START = "takes effect when the monitor is restarted"


@dataclass(frozen=True, kw_only=True)
class CommandLineOverrides:
    """Holds the options of the command line; they win over the cluster file."""

    interval_s: float | None = None
    metrics_port: int | None = None

    def bounds(self, file: MonitorConfig) -> tuple[float, float]:
        """Return the shortest and the longest pause between two ticks."""
        base_s = self.interval_s or file.interval_s
        return base_s, max(base_s, file.longest_interval_s)

    def port(self, file: MonitorConfig) -> int:
        """Return the port of the metrics."""
        chosen = file.metrics_port if self.metrics_port is None else self.metrics_port
        return DEFAULT_PORT if chosen is None else chosen


def retention_of(config: ClusterConfig) -> Retention:
    """Return how much of the past the ledger keeps."""
    kept = config.muster.retention
    return Retention(
        max_age_s=kept.max_age_s,
        max_ended=kept.max_records,
        max_decisions=kept.max_decisions,
        max_decision_bytes=kept.max_decision_bytes,
    )


def ignored_keys(config: ClusterConfig, given: CommandLineOverrides) -> dict[str, tuple[object, str]]:
    """Return the keys that a running monitor ignores, with their values and the reason for the log."""
    monitor = config.muster.monitor
    # The section without what may change while a monitor runs, such as the list of hosts.
    live, provider = kind_of(config).live_keys, config.provider
    written = {key: value for key, value in provider.settings().items() if key not in live}
    without_live_keys = replace(provider, **dict.fromkeys(live, ()), written=written) if live else provider
    keys: dict[str, tuple[object, str]] = {
        "cluster_name": (config.cluster_name, _AT_START),
        "provider": (without_live_keys, _AT_START),
        "muster.backup": (config.muster.backup, _AT_START),
        "muster.limits.max_launch_batch": (config.muster.limits.max_launch_batch, _AT_START),
    }
    if given.interval_s is not None:
        why = f"is ignored: --interval {given.interval_s:g} overrides it"
        keys["muster.monitor.interval_s"] = (monitor.interval_s, why)
    if given.metrics_port is not None:
        why = f"is ignored: --metrics-port {given.metrics_port} overrides it"
        keys["muster.monitor.metrics_port"] = (monitor.metrics_port, why)
    return keys


@dataclass
class ConfigReload:
    """Applies an edit of the cluster file to the parts of a running monitor."""

    config: Callable[[], ClusterConfig]  # as the loop has read it
    given: CommandLineOverrides
    interval: TickInterval
    store: SqliteInstanceStore
    server: MetricsServer | None
    events: EventLog
    clock: Clock
    metrics: Metrics | None = None

    def __post_init__(self) -> None:
        self._started = self._current = self.config()

    def apply(self) -> None:
        """Apply the newest config; return at once while the file is unchanged."""
        before, now = self._current, self.config()
        if now is before:
            return
        self._current = now
        if now.muster.retention != before.muster.retention:
            self.store.retain(retention_of(now))
        old, new = before.muster.monitor, now.muster.monitor
        if self.given.bounds(new) != self.given.bounds(old):
            self.interval.change(*self.given.bounds(new))
        if self.given.port(new) != self.given.port(old):
            self._move(self.given.port(new))
        self._log_ignored(before, now)

    def _move(self, port: int) -> None:
        if self.server is None:
            self._warn(f"muster.monitor.metrics_port: no metrics are served; {port} {_AT_START}.")
            return
        try:
            self.server.move(port)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            self._warn(
                f"muster.monitor.metrics_port: {port} cannot be used ({why}); the metrics stay on port"
                f" {self.server.port}."
            )

    def _log_ignored(self, before: ClusterConfig, now: ClusterConfig) -> None:
        known, started = ignored_keys(before, self.given), ignored_keys(self._started, self.given)
        ignored = ignored_keys(now, self.given)
        if self.metrics is not None:
            waiting = {
                key for key, (value, why) in ignored.items() if why == _AT_START and value != started[key][0]
            }
            self.metrics.restart_needed = bool(waiting)
        for key, (value, why) in ignored.items():
            if value != known[key][0] and value != started[key][0]:
                self._warn(f"{key} was changed in the cluster file; it {why}.")

    def _warn(self, message: str) -> None:
        self.events.log(Event(at=self.clock.now(), level="warning", message=message))

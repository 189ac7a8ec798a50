"""Builds a Monitor from a cluster file, a home directory and an environment.

Called by `muster monitor`, the demo and tests. Whatever was opened is closed when a later step fails, and by
the monitor itself when it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from muster.autoscaler.connect import HeadAddress
from muster.autoscaler.events import Event, EventLog
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lease import Lease
from muster.autoscaler.metrics import DEFAULT_PORT, Metrics, MetricsServer, host_for
from muster.autoscaler.monitor import Loop, Monitor, StopSignal, TickInterval, TickListener
from muster.autoscaler.publish import (
    Announcement,
    LeaseKey,
    LeaseRenewal,
    StatusFile,
    TimelineFile,
    VerdictBoard,
)
from muster.base.ambient import Ambient
from muster.base.clock import Clock, SystemClock
from muster.base.ids import IdSource, RandomIds
from muster.base.rng import Seed
from muster.cluster.controller import ClusterController
from muster.cluster.ports import Ports
from muster.config.node_launch import node_launches
from muster.config.schema import ClusterConfig, MonitorConfig
from muster.config.source import FileSpecSource
from muster.config.to_spec import retention_of
from muster.errors import EngineUnreachable
from muster.providers.registry import ProviderContext, build_provider
from muster.runtimes.ray.client import GcsClient, host_and_port
from muster.runtimes.ray.drainer import GcsDrainer
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import StatePublisher
from muster.runtimes.ray.verdict_board import VerdictWriter
from muster.stores.ledger.state import Retention
from muster.stores.ledger.store import SqliteInstanceStore

_AT_START = "takes effect when the monitor is restarted"


@dataclass(frozen=True, kw_only=True)
class CommandLineOverrides:
    """CommandLineOverrides hold the options of the command line; they win over the cluster file."""

    interval_s: float | None = None
    metrics_port: int | None = None

    def bounds(self, file: MonitorConfig) -> tuple[float, float]:
        """Returns the shortest and the longest pause between two ticks."""
        base_s = self.interval_s or file.interval_s
        return base_s, max(base_s, file.longest_interval_s)

    def port(self, file: MonitorConfig) -> int:
        """Returns the port of the metrics."""
        chosen = file.metrics_port if self.metrics_port is None else self.metrics_port
        return DEFAULT_PORT if chosen is None else chosen


def ignored_keys(config: ClusterConfig, given: CommandLineOverrides) -> dict[str, tuple[object, str]]:
    """Returns the keys that a running monitor ignores, with their values and the reason for the log."""
    monitor = config.muster.monitor
    keys: dict[str, tuple[object, str]] = {
        "cluster_name": (config.cluster_name, _AT_START),
        "provider": (config.provider, _AT_START),
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
    """A ConfigReload applies an edit of the cluster file to the parts of a running monitor."""

    config: Callable[[], ClusterConfig]  # as the loop has read it
    given: CommandLineOverrides
    interval: TickInterval
    store: SqliteInstanceStore
    server: MetricsServer | None
    events: EventLog
    clock: Clock

    def __post_init__(self) -> None:
        self._started = self._current = self.config()

    def apply(self) -> None:
        """Applies the newest config; returns at once while the file is unchanged."""
        before, now = self._current, self.config()
        if now is before:
            return
        self._current = now
        if now.muster.retention != before.muster.retention:
            self.store.retain(Retention(**retention_of(now)))
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
        for key, (value, why) in ignored_keys(now, self.given).items():
            if value != known[key][0] and value != started[key][0]:
                self._warn(f"{key} was changed in the cluster file; it {why}.")

    def _warn(self, message: str) -> None:
        self.events.log(Event(at=self.clock.now(), level="warning", message=message))


logger = logging.getLogger(__name__)

LOCK_WAIT_S = 1.0  # a monitor that is just ending releases its ledger
HEAD_RETRY_S = (0.25, 5.0)  # first and longest pause between two attempts to reach the head


@dataclass(frozen=True)
class MonitorOptions:
    """MonitorOptions are what a user may set for one monitor; None leaves it to the cluster file."""

    config: Path
    home: ClusterHome
    head: HeadAddress
    interval_s: float | None = None
    metrics_port: int | None = None


class StartCancelled(Exception):
    """A StartCancelled is raised when the monitor is stopped before the head was reached."""


def build_monitor(
    options: MonitorOptions,
    environment: Mapping[str, str],
    stop: StopSignal,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Monitor:
    """Waits for the head and returns the monitor. Raises MusterError, or StartCancelled on a stop."""
    kept = ExitStack()  # closed by the monitor
    with ExitStack() as stack:
        parts = _Parts(options, dict(environment), clock or SystemClock(), ids or RandomIds(), stack)
        monitor = parts.monitor(stop, close=kept.close)
        kept.enter_context(stack.pop_all())
        return monitor


class _Parts:
    """The parts of one monitor are opened in the order in which they may fail."""

    def __init__(
        self,
        options: MonitorOptions,
        environment: dict[str, str],
        clock: Clock,
        ids: IdSource,
        stack: ExitStack,
    ) -> None:
        self._options, self._environment, self._stack = options, environment, stack
        self._clock, self._ids = clock, ids
        self._given = CommandLineOverrides(interval_s=options.interval_s, metrics_port=options.metrics_port)
        self._events = EventLog()
        self._source = FileSpecSource(options.config, environment)
        options.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        retention = Retention(**retention_of(self._source.config))
        self._store = stack.enter_context(
            SqliteInstanceStore(options.home.ledger, clock=clock, retention=retention, wait_s=LOCK_WAIT_S)
        )
        host_and_port(options.head.address)  # an address that cannot be parsed fails at once
        self._link = GcsClient(options.head.address, options.head.auth)
        self._nodes = GcsNodeSource(self._link)

    def monitor(self, stop: StopSignal, close: Callable[[], None]) -> Monitor:
        session = reach_head(self._link, stop)
        lease = Lease(LeaseKey(self._link), self._clock, self._ids)
        lease.take(lambda seconds: _pause(stop, seconds))
        self._stack.callback(_quietly, lease.release)
        self._store.raise_version(self._nodes.published_version())
        metrics, server = self._metrics(session)
        interval = TickInterval(*self._given.bounds(self._source.config.muster.monitor))
        reload = ConfigReload(
            config=lambda: self._source.config,
            given=self._given,
            interval=interval,
            store=self._store,
            server=server,
            events=self._events,
            clock=self._clock,
        )
        loop = Loop(
            controller=ClusterController(self._ports(), Ambient(self._clock, self._ids, Seed(0))),
            poll=self._nodes.read,
            stamp=self._stamp,
            reload=reload.apply,
        )
        return Monitor(
            loop,
            interval,
            clock=self._clock,
            listeners=self._listeners(lease, metrics, server),
            problems=metrics,
            close=close,
        )

    def _stamp(self) -> object:
        try:
            found = self._options.config.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _ports(self) -> Ports:
        surroundings = ProviderContext(
            cluster_name=self._source.config.cluster_name,
            home=self._options.home.path,
            address=self._options.head.address,
            clock=self._clock,
            ids=self._ids,
            auth=self._options.head.auth,
            environment=self._environment,
            runtime=self._nodes.read,
        )
        provider = build_provider(
            self._source.config, lambda: node_launches(self._source.config), surroundings
        )
        self._stack.callback(_quietly, provider.close)
        drainer = GcsDrainer(self._link, self._clock)
        self._stack.callback(_quietly, drainer.close)
        return Ports(
            provider=provider,
            nodes=self._nodes,
            drainer=drainer,
            installer=None,
            store=self._store,
            spec=self._source,
        )

    def _metrics(self, session: str) -> tuple[Metrics | None, MetricsServer | None]:
        port = self._given.port(self._source.config.muster.monitor)
        try:
            metrics = Metrics(session)
            server = MetricsServer(metrics, host_for(self._options.head.address), port)
        except ImportError:
            logger.warning("no metrics: prometheus-client is not installed (pip install prometheus-client)")
            return None, None
        except OSError as error:
            logger.warning("metrics are not served: %s", error)
            return metrics, None
        self._stack.callback(_quietly, server.close)
        return metrics, server

    def _listeners(
        self, lease: Lease, metrics: Metrics | None, server: MetricsServer | None
    ) -> list[TickListener]:
        home, events, host = self._options.home, self._events, host_and_port(self._link.address)[0]
        listeners: list[TickListener] = [] if metrics is None else [metrics]
        return [
            *listeners,
            events,
            VerdictBoard(VerdictWriter(self._link)),
            StatusFile(home, lambda: events.newest, lambda: server.port if server is not None else None),
            TimelineFile(home.timeline),
            Announcement(
                StatePublisher(self._link), lambda: f"{host}:{server.port}" if server is not None else ""
            ),
            LeaseRenewal(lease),
        ]


def reach_head(link: GcsClient, stop: StopSignal) -> str:
    """Returns the name of the head's session once the head is up; a wait is logged once."""
    pause_s, longest_s = HEAD_RETRY_S
    is_logged = False
    while True:
        try:
            link.connect()
            session = link.session_name()
            if session:
                return session
            why = f"the head at {link.address} is still starting"
        except EngineUnreachable as error:
            why = str(error)
        if not is_logged:
            logger.warning("waiting for the head: %s", why)
            is_logged = True
        _pause(stop, pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _pause(stop: StopSignal, seconds: float) -> None:
    if stop.wait(seconds):
        raise StartCancelled


def _quietly(close: Callable[[], object]) -> None:
    """A resource that cannot be closed is logged and must not keep the others open."""
    try:
        close()
    except Exception as error:  # noqa: BLE001 - logged; the others are still to be closed
        logger.warning("while closing: %s: %s", type(error).__name__, error)

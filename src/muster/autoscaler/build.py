"""The composition root of the monitor: a cluster file, a home and an environment become a Monitor.

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
from muster.autoscaler.monitor import Loop, Monitor, StopSignal, TickListener
from muster.autoscaler.publish import (
    Announcement,
    LeaseKey,
    LeaseRenewal,
    StatusFile,
    TimelineFile,
    VerdictBoard,
)
from muster.autoscaler.recording_ports import Sightings, watched
from muster.autoscaler.tick_interval import TickInterval
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

_AT_START = "counts when the monitor is started again"


@dataclass(frozen=True, kw_only=True)
class CommandLineOverrides:
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


def unheeded(config: ClusterConfig, given: CommandLineOverrides) -> dict[str, tuple[object, str]]:
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
class ConfigReload:
    """The parts of a running monitor that an edit may change."""

    config: Callable[[], ClusterConfig]  # as the loop has read it
    given: CommandLineOverrides
    pace: TickInterval
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


logger = logging.getLogger(__name__)

LOCK_WAIT_S = 1.0  # a monitor that is just ending lets go of its ledger
HEAD_RETRY_S = (0.25, 5.0)  # first and longest pause between two tries to reach the head


@dataclass(frozen=True)
class MonitorOptions:
    """What a person may say about one monitor; None: as the cluster file says."""

    config: Path
    home: ClusterHome
    reach: HeadAddress
    interval_s: float | None = None
    metrics_port: int | None = None


class StartCancelled(Exception):
    """Asked to end before the cluster was reached."""


def build_monitor(
    options: MonitorOptions,
    environment: Mapping[str, str],
    stop: StopSignal,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Monitor:
    """Waits for the head. Raises a MusterError of one line, or Stopped."""
    with ExitStack() as stack:
        parts = _Parts(options, dict(environment), clock or SystemClock(), ids or RandomIds(), stack)
        monitor = parts.monitor(stop)
        parts.keep(stack.pop_all())
        return monitor


class _Parts:
    """The pieces of one monitor, opened in the order in which they may fail."""

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
        self._kept: ExitStack | None = None
        self._source = FileSpecSource(options.config, environment)
        options.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        retention = Retention(**retention_of(self._source.config))
        self._store = stack.enter_context(
            SqliteInstanceStore(options.home.ledger, clock=clock, retention=retention, wait_s=LOCK_WAIT_S)
        )
        host_and_port(options.reach.address)  # what can never be reached is not waited for
        self._link = GcsClient(options.reach.address, options.reach.auth)
        self._nodes = GcsNodeSource(self._link)

    def keep(self, stack: ExitStack) -> None:
        """From here on the monitor closes what was opened."""
        self._kept = stack

    def monitor(self, stop: StopSignal) -> Monitor:
        session = reach_head(self._link, stop)
        lease = Lease(LeaseKey(self._link), self._clock, self._ids)
        lease.take(lambda seconds: _pause(stop, seconds))
        self._stack.callback(_quietly, lease.release)
        self._store.raise_version(self._nodes.published_version())
        metrics, server = self._metrics(session)
        seen = Sightings()
        controller = ClusterController(watched(self._ports(), seen), self._ambient())
        pace = TickInterval(*self._given.bounds(self._source.config.muster.monitor))
        loop = Loop(
            controller=controller,
            store=self._store,
            seen=seen,
            look=self._nodes.read,
            stamp=self._stamp,
            adopt=self._adoption(pace, server).adopt,
        )
        return Monitor(
            loop,
            pace,
            clock=self._clock,
            outlets=self._outlets(lease, metrics, server),
            metrics=metrics,
            close=self._close,
        )

    def _adoption(self, pace: TickInterval, server: MetricsServer | None) -> ConfigReload:
        return ConfigReload(
            config=lambda: self._source.config,
            given=self._given,
            pace=pace,
            store=self._store,
            server=server,
            events=self._events,
            clock=self._clock,
        )

    def _close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def _stamp(self) -> object:
        try:
            found = self._options.config.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _ambient(self) -> Ambient:
        return Ambient(clock=self._clock, ids=self._ids, seed=Seed(0))

    def _ports(self) -> Ports:
        surroundings = ProviderContext(
            cluster_name=self._source.config.cluster_name,
            home=self._options.home.path,
            address=self._options.reach.address,
            clock=self._clock,
            ids=self._ids,
            auth=self._options.reach.auth,
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
            server = MetricsServer(metrics, host_for(self._options.reach.address), port)
        except ImportError:
            logger.warning("no metrics: prometheus-client is not installed (pip install prometheus-client)")
            return None, None
        except OSError as error:
            logger.warning("metrics are not served: %s", error)
            return metrics, None
        self._stack.callback(_quietly, server.close)
        return metrics, server

    def _outlets(
        self, lease: Lease, metrics: Metrics | None, server: MetricsServer | None
    ) -> list[TickListener]:
        home, events, host = self._options.home, self._events, host_and_port(self._link.address)[0]
        outlets: list[TickListener] = [] if metrics is None else [metrics]
        return [
            *outlets,
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
    """The name of the head's session, once it is up; said once when it is not."""
    pause_s, longest_s = HEAD_RETRY_S
    told = False
    while True:
        try:
            link.connect()
            session = link.session_name()
            if session:
                return session
            why = f"the head at {link.address} is still starting"
        except EngineUnreachable as error:
            why = str(error)
        if not told:
            logger.warning("waiting for the head: %s", why)
            told = True
        _pause(stop, pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _pause(stop: StopSignal, seconds: float) -> None:
    if stop.wait(seconds):
        raise StartCancelled


def _quietly(close: Callable[[], object]) -> None:
    """What cannot be closed must not keep the rest open; it is on its way out anyway."""
    try:
        close()
    except Exception as error:  # noqa: BLE001 - said, and done with
        logger.warning("while ending: %s: %s", type(error).__name__, error)

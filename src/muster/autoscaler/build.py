"""Build a Monitor from a cluster file, a home directory and an environment.

Called by `muster monitor`, the demo and tests. Whatever was opened is closed when a later step fails, and by
the monitor itself when it ends.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from muster.autoscaler.backup import LedgerBackup, backups_of, restore_if_lost
from muster.autoscaler.config_reload import CommandLineOverrides, ConfigReload, retention_of
from muster.autoscaler.connect import HeadAddress, RivalAutoscaler, company, foreign_autoscaler
from muster.autoscaler.events import EventLog
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lease import Lease
from muster.autoscaler.metrics import Metrics, MetricsServer, host_for, start_metrics_server
from muster.autoscaler.monitor import Loop, Monitor, MonitorHealth, StopSignal, TickInterval, TickListener
from muster.autoscaler.shadow import BOOT_S, ShadowReport, ShadowWorld
from muster.autoscaler.status_files import ClusterRecord, StatusFile, read_record, write_record
from muster.base.clock import Boot, Clock, SystemClock
from muster.base.ids import IdSource, RandomIds
from muster.base.rng import Ambient, Seed
from muster.base.untrusted import call_safely, error_text
from muster.cluster.controller import ClusterController
from muster.cluster.plan import Plan
from muster.cluster.ports import Installer, Ports
from muster.config.load import table_only
from muster.config.to_spec import node_launches
from muster.errors import EngineUnreachable
from muster.host.processes import boot_id, identify
from muster.providers.bootstrap import CompletedConfig
from muster.providers.kind import (
    HeadPolicy,
    ProviderContext,
    asked_sizes,
    build_provider,
    check_provider,
    kind_of,
    watch_file,
)
from muster.providers.machines import ManagedProvider
from muster.runtimes.ray.client import GcsClient, host_and_port
from muster.runtimes.ray.kv_board import GcsForecastBoard, GcsNoticeBoard, MonitorBoard
from muster.runtimes.ray.node_requests import GcsDrainer, resizer_for
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import StatePublisher
from muster.stores.history.files import HistoryFile
from muster.stores.ledger.store import SqliteInstanceStore

if TYPE_CHECKING:
    from muster.providers.kuberay.source import RayClusterSource

logger = logging.getLogger(__name__)

LOCK_WAIT_S = 1.0  # a monitor that is just ending releases its ledger
HEAD_RETRY_S = (0.25, 5.0)  # first and longest pause between two attempts to reach the head


@dataclass(frozen=True)
class MonitorOptions:
    """What a user may set for one monitor; None leaves it to the cluster file."""

    config: Path  # not read when there is a source
    home: ClusterHome
    head: HeadAddress
    source: RayClusterSource | None = None  # the configuration and the provider of a RayCluster
    interval_s: float | None = None
    metrics_port: int | None = None
    head_wait_s: float = math.inf  # how long a head that does not answer is waited for
    metrics_host: str | None = None  # None: the head's address
    metrics_token: Path | None = None  # the file of the bearer token; None: that of the home, if it is there
    shadow: bool = False  # plan beside the cluster's own autoscaler, and only say what would be done
    boot_s: float = BOOT_S  # of a machine, in the shadow's bill


class StartCancelled(Exception):
    """Raised when the monitor is stopped before the head was reached."""


def build_monitor(
    options: MonitorOptions,
    environment: Mapping[str, str],
    stop: StopSignal,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Monitor:
    """Wait for the head and return the monitor. Raises MusterError, or StartCancelled on a stop."""
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
        self._events, self._health = EventLog(), MonitorHealth(clock)
        self._mounts: TickListener | None = None  # where muster sets workers up
        sizes = table_only if options.shadow else asked_sizes(clock)  # a shadow asks no provider
        self._source = options.source or watch_file(options.config, environment, sizes)
        if not options.shadow:  # which asks no provider
            check_provider(self._source.config, str(options.config))
        options.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not options.shadow:
            restore_if_lost(self._source.config, options.home, clock, ids)
        retention = retention_of(self._source.config)
        self._store = stack.enter_context(
            SqliteInstanceStore(options.home.ledger, clock=clock, retention=retention, wait_s=LOCK_WAIT_S)
        )
        if options.source is not None and not options.shadow:
            self._remember_spend(options.source)
        host_and_port(options.head.address)  # an address that cannot be parsed fails at once
        self._link = GcsClient(options.head.address, options.head.auth, read_only=options.shadow)
        self._notices = GcsNoticeBoard(self._link, clock)
        self._forecasts = GcsForecastBoard(self._link, clock)
        self._nodes = GcsNodeSource(self._link, clock, self._wants_drivers)

    def _remember_spend(self, source: RayClusterSource) -> None:
        """Start a new ledger, as a new head's pod has one, from the spend that the RayCluster remembers."""
        from muster.providers.kuberay.announce import recorded_spend

        known = recorded_spend(source.provider.scaler.cluster.last() or {})
        if known is not None and self._store.load().version == 0:
            plan = Plan(tick_id=self._ids.fresh("t"), at=self._clock.now(), memory=known)
            self._store.commit(0, plan)

    def _wants_drivers(self) -> bool:
        """Who uses the cluster matters where an unused one ends, and where tuners forecast what they need."""
        source = self._options.source
        return self._forecasts.has_any or (source is not None and source.wants_drivers())

    def monitor(self, stop: StopSignal, close: Callable[[], None]) -> Monitor:
        if self._options.shadow:
            return self._shadow(self._reach_head(stop), close)
        # The process provider comes before the head: it imports Ray meanwhile. Others come after it: their
        # bootstrap completes the configuration. Either is closed before the lease is released.
        held = self._stack.enter_context(ExitStack())
        early = self._ports() if kind_of(self._source.config).head is HeadPolicy.HERE else None
        session = self._reach_head(stop)
        self._refuse_company(stop)
        lease = Lease(self._link, self._clock, self._ids)
        lease.take(lambda seconds: _pause(stop, seconds))
        held.callback(_quietly, lease.release)
        self._store.raise_version(self._nodes.published_version())
        written = self._source.config
        answer = kind_of(written).fill_in(written, self._provider_context())
        self._source.complete_with(CompletedConfig(asked=written, answer=answer).apply)
        self._write_record()
        ports = early or self._ports()
        metrics, server = self._metrics(session)
        return self._assembled(ports, self._listeners(lease, metrics, server), metrics, server, close)

    def _reach_head(self, stop: StopSignal) -> str:
        return reach_head(self._link, stop, limit_s=self._options.head_wait_s, clock=self._clock)

    def _shadow(self, session: str, close: Callable[[], None]) -> Monitor:
        """Nothing of the shadow may reach the cluster: no lease, board, report or drain, and no provider."""
        home = self._options.home
        world = ShadowWorld(self._nodes.read, self._source, home.shadow, self._clock)
        world.boot_s = self._options.boot_s
        self._events = report = ShadowReport(world)
        self._stack.callback(_quietly, report.close)
        metrics, server = (None, None) if self._options.metrics_port is None else self._metrics(session)
        ports = Ports(
            provider=world, nodes=world, drainer=world, installer=None, store=self._store, spec=world
        )
        status = StatusFile(
            home,
            lambda: report.newest,
            lambda: server.port if server is not None else None,
            lambda: world.book.summary,
        )
        listeners: list[TickListener] = [report, status, *([] if metrics is None else [metrics])]
        return self._assembled(ports, listeners, metrics, server, close)

    def _assembled(
        self,
        ports: Ports,
        listeners: list[TickListener],
        metrics: Metrics | None,
        server: MetricsServer | None,
        close: Callable[[], None],
    ) -> Monitor:
        interval = TickInterval(*self._given.bounds(self._source.config.muster.monitor))
        reload = ConfigReload(
            config=lambda: self._source.config,
            given=self._given,
            interval=interval,
            store=self._store,
            server=server,
            events=self._events,
            clock=self._clock,
            metrics=metrics,
        )
        is_real = isinstance(self._clock, SystemClock)
        boot = Boot(boot_id() or self._ids.fresh("boot"), SystemClock.since_boot) if is_real else None
        loop = Loop(
            controller=ClusterController(ports, Ambient(self._clock, self._ids, Seed(0), boot)),
            poll=self._nodes.read,
            config_version=self._config_version,
            notices_version=(lambda: None) if self._options.shadow else self._notices.version,
            reload=reload.apply,
        )
        listeners = [self._health, *listeners]
        return Monitor(loop, interval, clock=self._clock, listeners=listeners, problems=metrics, close=close)

    def _write_record(self) -> None:
        """Leave for `muster down` what this monitor runs, unless `muster up` has done so."""
        home, config, known = self._options.home, self._source.config, read_record(self._options.home)
        mark = identify(os.getpid())
        if mark is None or (known is not None and kind_of(config).head is HeadPolicy.HERE):
            return
        if self._options.source is not None:
            return  # the RayCluster itself is the record
        auth = {key: value for key, value in self._options.head.auth.items() if key != "RAY_AUTH_TOKEN"}
        record = replace(
            known or ClusterRecord(cluster_name=config.cluster_name, config=""),
            config=str(self._options.config.resolve()),
            address=self._options.head.address,
            auth=auth if "RAY_AUTH_TOKEN_PATH" in auth else {},
            monitor_pid=mark.pid,
            monitor=mark,
            provider=config.provider.settings(),
        )
        write_record(home, record)

    def _refuse_company(self, stop: StopSignal) -> None:
        found = foreign_autoscaler(
            self._link,
            lambda seconds: _pause(stop, seconds),
            self._clock,
            own_version=self._store.load().version,
        )
        if found:
            raise company(self._link.address, found)

    def _config_version(self) -> object:
        if self._options.source is not None:
            return self._options.source.config_version()
        try:
            found = self._options.config.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _provider_context(self) -> ProviderContext:
        return ProviderContext(
            cluster_name=self._source.config.cluster_name,
            home=self._options.home.path,
            address=self._options.head.address,
            clock=self._clock,
            ids=self._ids,
            auth=self._options.head.auth,
            environment=self._environment,
            runtime=self._nodes.read,
            current=lambda: self._source.config,
            made=None if self._options.source is None else self._options.source.provider,
        )

    def _ports(self) -> Ports:
        context = self._provider_context()
        provider = build_provider(self._source.config, lambda: node_launches(self._source.config), context)
        self._stack.callback(_quietly, provider.close)
        drainer = GcsDrainer(self._link, self._clock)
        self._stack.callback(_quietly, drainer.close)
        return Ports(
            provider=provider,
            nodes=self._nodes,
            drainer=drainer,
            installer=self._installer(provider),
            store=self._store,
            spec=self._source,
            resizer=resizer_for(self._link, provider, self._stack),
            notices=provider.notice_source() or self._notices,
            forecasts=self._forecasts,
        )

    def _installer(self, provider: ManagedProvider) -> Installer | None:
        """Return what sets machines up over SSH; None where they come up with the runtime."""
        if provider.traits().installs_runtime:
            return None
        from muster.autoscaler.worker_access import MountSync, WorkerAccess
        from muster.remote.installer import NodeInstaller
        from muster.remote.node_setup import timing_of

        head, home = self._options.head, self._options.home
        access = WorkerAccess(
            provider,
            lambda: self._source.config,
            head_ip=host_and_port(head.address)[0],
            auth=head.auth,
            pins=home.path / "known_hosts",
        )
        self._mounts = mounts = MountSync(access, lambda: self._source.config, self._clock)
        self._stack.callback(_quietly, mounts.close)
        timing = timing_of(self._source.config)
        installer = NodeInstaller(access, home.path / "install", timing=timing)
        self._stack.callback(_quietly, installer.close)
        return installer

    def _metrics(self, session: str) -> tuple[Metrics | None, MetricsServer | None]:
        port = self._given.port(self._source.config.muster.monitor)
        try:
            metrics = Metrics(session, self._source.config.cluster_name)
        except ImportError:
            logger.warning("no metrics: prometheus-client is not installed (pip install prometheus-client)")
            return None, None
        token, own = self._options.metrics_token, self._options.home.metrics_token
        token = own if token is None and own.is_file() else token
        metrics.wrap = self._health.beside
        host = self._options.metrics_host or host_for(self._options.head.address)
        server = start_metrics_server(metrics, host, port, token)
        if server is not None:
            self._stack.callback(_quietly, server.close)
        return metrics, server

    def _listeners(
        self, lease: Lease, metrics: Metrics | None, server: MetricsServer | None
    ) -> list[TickListener]:
        home, events = self._options.home, self._events
        history = HistoryFile(home.history, self._clock)
        self._stack.callback(_quietly, history.close)
        listeners: list[TickListener] = [] if metrics is None else [metrics]
        return [
            *listeners,
            *self._backup(),
            *([] if self._mounts is None else [self._mounts]),
            events,
            *self._announcer(),
            MonitorBoard(self._link, self._clock),
            StatusFile(home, lambda: events.newest, lambda: server.port if server is not None else None),
            history,
            StatePublisher(self._link, lambda: server.address if server is not None else ""),
            lease,
            RivalAutoscaler(self._link, self._clock),
        ]

    def _announcer(self) -> list[TickListener]:
        if self._options.source is None:
            return []
        from muster.providers.kuberay.announce import ClusterAnnouncer

        provider = self._options.source.provider
        return [ClusterAnnouncer(provider.effects, provider.paths, lambda: self._events.newest)]

    def _backup(self) -> list[TickListener]:
        config = self._source.config
        backups = backups_of(config)
        if backups is None:
            return []
        backup = LedgerBackup(backups, self._store.path, config.muster.backup.interval_s, self._clock)
        self._stack.callback(_quietly, backup.close)
        return [backup]


def reach_head(
    link: GcsClient, stop: StopSignal, *, limit_s: float = math.inf, clock: Clock | None = None
) -> str:
    """Return the name of the head's session once the head is up; a wait is logged once.

    Raises EngineUnreachable when the head is not up within `limit_s`.
    """
    pause_s, longest_s = HEAD_RETRY_S
    time = clock or SystemClock()
    give_up = time.monotonic() + limit_s
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
        if time.monotonic() + pause_s > give_up:
            raise EngineUnreachable(f"{why}", fix=f"it was waited for {limit_s:g} s")
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
        call_safely(close)
    except Exception as error:  # noqa: BLE001 - logged; the others are still to be closed
        logger.warning("while closing: %s", error_text(error))

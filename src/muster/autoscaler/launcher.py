"""Starts and stops a cluster on this computer: head, token, monitor, and the files that describe them.

Called by `muster up` and `muster down`. Whatever was started is ended when a later step fails.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from muster.autoscaler.backup import backups_of
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import (
    ClusterRecord,
    PublishedStatus,
    read_record,
    read_status,
    write_record,
)
from muster.base.clock import Clock
from muster.base.ids import CloudId, IdSource
from muster.cluster.model import NodeKind
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.config.load import load_config
from muster.config.node_launch import node_launches
from muster.config.schema import ClusterConfig, ProviderConfig
from muster.errors import ClusterError, ConfigError, ProviderError, ProviderMisconfigured, StoreError
from muster.host import daemon
from muster.host.processes import ProcessMark, lives, mark_of
from muster.providers.process.head import (
    Head,
    HeadRequest,
    running_head,
    start_head,
    stop_everything,
    token_file,
)
from muster.providers.process.program import NodeProgram, ray_head
from muster.providers.process.ray_command import NodeSize
from muster.providers.registry import ManagedProvider, ProviderContext, build_provider, check_provider
from muster.providers.teardown import NO_MACHINES, QUIET_S, EndedMachines, WorkerTeardown
from muster.providers.v1.tags import TAG_RAY_LAUNCH_CONFIG
from muster.runtimes.ray.native import check_ray
from muster.stores.ledger.close import close_ledger
from muster.stores.ledger.history import Spend, open_history
from muster.stores.ledger.store import SqliteInstanceStore

READY_S = 120.0  # the monitor imports Ray and connects, the head's own node starts: slow on a busy computer
MACHINES_STOP_S = 180.0  # clouds take a minute or two
COMING_S = 10.0  # a machine that was requested and not seen yet may turn up for so long
MONITOR_STOP_S = 20.0  # a tick under way is finished
POLL_S = 0.1
_LOG_TAIL_BYTES = 1500

StepReporter = Callable[[str], None]  # takes a line about the step under way


@dataclass(frozen=True)
class LaunchedCluster:
    """A LaunchedCluster is what `up` started or found."""

    record: ClusterRecord
    home: ClusterHome
    head_started: bool
    monitor_started: bool

    @property
    def already(self) -> bool:
        return not (self.head_started or self.monitor_started)


@dataclass(frozen=True)
class EndedCluster:
    """An EndedCluster is what `down` stopped."""

    monitor_pid: int | None  # None: none ran
    nodes: tuple[str, ...]
    left: Mapping[str, list[int]]  # processes that did not end
    spend: Spend | None
    machines: EndedMachines = NO_MACHINES  # of a provider that is not this computer

    @property
    def nothing(self) -> bool:
        return self.monitor_pid is None and not self.nodes and not self.machines.ended


@dataclass(frozen=True)
class Programs:
    """Programs start a head and a monitor; tests replace them by cheap ones."""

    head: NodeProgram = field(default_factory=ray_head)
    monitor: tuple[str, ...] = (sys.executable, "-m", "muster.cli.main", "monitor")


class Launcher:
    """A Launcher starts and stops the clusters of one computer; `root` holds their files."""

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        *,
        clock: Clock,
        ids: IdSource,
        report: StepReporter,
        programs: Programs | None = None,
    ) -> None:
        self._root, self._environment = root, environment
        self._clock, self._ids, self._report = clock, ids, report
        self._programs = programs or Programs()

    def up(self, config_file: Path, *, port: int | None = None) -> LaunchedCluster:
        """Starts what is missing and keeps what runs. `port` is the head's; None: a free one."""
        config = load_config(config_file, self._environment)
        check_up(config, config_file)
        check_ray()
        home = ClusterHome.of(config.cluster_name, self._root)
        self._check_file(home, config_file)
        home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.path.chmod(0o700)
        self._end_headless_monitor(home)
        with ExitStack() as undo:
            head = self._head(config, home, undo, port)
            record = ClusterRecord(
                cluster_name=config.cluster_name,
                config=str(config_file.resolve()),
                address=head.address,
                auth=token_file(home.token),
                temp_dir=head.temp_dir,
            )
            running = _running_monitor(home)
            if running is None:
                record = self._monitor(record, home, undo)
            else:
                record = replace(record, monitor=running, monitor_pid=running.pid)
            write_record(home, record)
            undo.pop_all()
        return LaunchedCluster(
            record=record, home=home, head_started=not head.already, monitor_started=running is None
        )

    def down(
        self, home: ClusterHome, *, config_file: Path | None = None, purge: bool = False
    ) -> EndedCluster:
        """Stops the monitor, then workers, head and temporary files. Idempotent.

        The monitor goes first: a running one would start new nodes. Machines of a provider are ended through
        it, and only when none is listed any more is the ledger closed. `config_file` names the provider where
        no monitor has left it. Raises ClusterError, before anything is done, when it cannot be used.
        """
        config = self._machines_config(home, config_file)
        provider = None if config is None else self._provider(home, config)
        monitor = _running_monitor(home)
        if monitor is not None:
            self._report("stopping the monitor")
            daemon.end(monitor, clock=self._clock, patience_s=MONITOR_STOP_S)
        self._report("stopping the nodes")
        stopped = stop_everything(home.nodes, self._clock)
        machines = NO_MACHINES if provider is None else self._end_machines(home, provider)
        spend = None
        is_down = not stopped.left and not machines.left
        if is_down:
            spend = close_ledger(home.ledger, self._clock, self._ids)
            self._last_copy(home, config_file, purge)
            tokens = (home.token,) if provider is None else ()  # of a head by hand it is the user's
            for file in (home.cluster, home.status, *tokens):
                file.unlink(missing_ok=True)
        if purge and is_down:
            shutil.rmtree(home.path, ignore_errors=True)
        return EndedCluster(
            monitor_pid=None if monitor is None else monitor.pid,
            nodes=stopped.nodes,
            left=stopped.left,
            spend=spend,
            machines=machines,
        )

    # -- parts of down ---------------------------------------------------------------------------------

    def _last_copy(self, home: ClusterHome, config_file: Path | None, purge: bool) -> None:
        """The newest copy of the ledger must not name machines that were ended."""
        record = read_record(home)
        written = config_file or (Path(record.config) if record is not None else None)
        try:
            backups = None if written is None else backups_of(load_config(written, self._environment))
            if backups is not None and purge:
                backups.forget()
            elif backups is not None and home.ledger.is_file():
                backups.write(home.ledger)
        except (ConfigError, StoreError) as error:
            self._report(f"the copies of the ledger are as they were: {error}")

    def _machines_config(self, home: ClusterHome, config_file: Path | None) -> ClusterConfig | None:
        """Returns the config of the provider whose machines must be ended; None when there are none."""
        if home.shadow.exists():
            return None  # its ledger names what muster would have bought; the machines are somebody else's
        record = read_record(home)
        if record is not None and record.provider:
            config = _config_of(record)
        else:
            written = config_file or (Path(record.config) if record is not None else None)
            try:
                if written is None:
                    raise ConfigError("no monitor has left it")
                config = load_config(written, self._environment)
            except ConfigError as error:
                left = [] if home.nodes.is_dir() else _machines_of(home)
                if not left:
                    return None
                raise ClusterError(
                    f"these machines may still run, and which provider ends them is not known ({error}): "
                    f"{', '.join(left)}; name the cluster's file: `muster down FILE`"
                ) from error
        return None if config.provider.type in ("process", "readonly") else config

    def _provider(self, home: ClusterHome, config: ClusterConfig) -> ManagedProvider:
        context = ProviderContext(
            cluster_name=config.cluster_name,
            home=home.path,
            address="",
            clock=self._clock,
            ids=self._ids,
            environment=self._environment,
        )
        try:
            return build_provider(config, dict, context)
        except ConfigError as error:
            left = _machines_of(home)
            shown = f"these machines may still run: {', '.join(left)}" if left else "the ledger names none"
            raise ClusterError(
                f"nothing was stopped: the provider that must end them cannot be used; {shown}; {error}"
            ) from error

    def _end_machines(self, home: ClusterHome, provider: ManagedProvider) -> EndedMachines:
        """The ledger is held meanwhile, so that no monitor buys anew."""
        with ExitStack() as held:
            held.callback(provider.close)
            known: list[CloudId] = []
            is_coming = False
            if home.ledger.is_file():
                store = held.enter_context(SqliteInstanceStore(home.ledger, clock=self._clock))
                records = store.load().instances.values()
                known = [i.cloud_id for i in records if i.cloud_id and i.kind is not NodeKind.HEAD]
                is_coming = any(i.state is InstanceState.REQUESTED for i in records)
            teardown = WorkerTeardown(
                provider, self._clock, self._ids, known=known, patience_s=MACHINES_STOP_S
            )
            return teardown.run(self._report, COMING_S if is_coming else QUIET_S)

    # -- parts of up -----------------------------------------------------------------------------------

    def _check_file(self, home: ClusterHome, config_file: Path) -> None:
        """Two files with one cluster name would be one cluster with two owners."""
        record = read_record(home)
        same = record is None or Path(record.config) == config_file.resolve()
        if record is not None and not same and (running_head(home.nodes) or _running_monitor(home)):
            raise ClusterError(
                f"a cluster named {record.cluster_name!r} is up already, from {record.config}: give this "
                f"one another cluster_name, or stop that one with `muster down {record.cluster_name}`"
            )

    def _end_headless_monitor(self, home: ClusterHome) -> None:
        """A monitor whose head is gone polls the old address; the next head has another one."""
        monitor = _running_monitor(home)
        if monitor is not None and running_head(home.nodes) is None:
            self._report("stopping the monitor of a head that is gone")
            daemon.end(monitor, clock=self._clock, patience_s=MONITOR_STOP_S)

    def _head(self, config: ClusterConfig, home: ClusterHome, undo: ExitStack, port: int | None) -> Head:
        if running_head(home.nodes) is None:
            stop_everything(home.nodes, self._clock)  # what a head that died has left behind
            undo.callback(self._undo, home)
        launch = node_launches(config)[config.head_type]
        request = HeadRequest(
            cluster_name=config.cluster_name,
            nodes=home.nodes,
            node_type=config.head_type,
            size=NodeSize(resources=launch.resources, labels=launch.labels),
            auth=token_file(home.token),
            environment=self._environment,
            tags={TAG_RAY_LAUNCH_CONFIG: launch.launch_hash},
            port=port,
        )
        try:
            return start_head(request, self._clock, self._ids, self._report, self._programs.head)
        except ProviderMisconfigured:
            raise
        except ProviderError as error:
            lines = str(error).strip().splitlines()
            raise ClusterError(
                f"{lines[0].split(';')[0]}; its last output: {lines[-1].strip()} (Ray needs some seconds of "
                f"CPU time to start; try again when this computer is less busy)"
            ) from error

    def _undo(self, home: ClusterHome) -> None:
        self._report("a step failed: stopping what was started")
        stop_everything(home.nodes, self._clock)
        home.cluster.unlink(missing_ok=True)
        home.token.unlink(missing_ok=True)

    def _monitor(self, record: ClusterRecord, home: ClusterHome, undo: ExitStack) -> ClusterRecord:
        """Starts the monitor and waits until it reports the head as running."""
        self._report("starting the monitor")
        options = (record.config, "--home", str(home.path.resolve()), "--address", record.address)
        pid = daemon.start_daemon(
            [*self._programs.monitor, *options],
            environment=_authenticated(self._environment, record.auth),
            log=home.monitor_log,
        )
        mark = mark_of(pid)
        if mark is None:
            raise ClusterError(_died(home))
        undo.callback(daemon.end, mark, clock=self._clock, patience_s=MONITOR_STOP_S)
        known = replace(record, monitor=mark, monitor_pid=mark.pid)
        write_record(home, known)  # already: a `muster down` from elsewhere must find it
        self._await_head(home, mark)
        return known

    def _await_head(self, home: ClusterHome, mark: ProcessMark) -> None:
        """Waits until the monitor has seen the head's node run: from then on trials and tasks can start."""
        give_up = self._clock.monotonic() + READY_S
        while self._clock.monotonic() < give_up:
            status = read_status(home)
            if status is not None and status.monitor_pid == mark.pid:
                self._report("waiting for the head's node")
                if _head_runs(status):
                    return
            if not lives(mark):
                raise ClusterError(_died(home))
            if running_head(home.nodes) is None:
                raise ClusterError(
                    f"the head ended while it started; see {home.nodes} and {home.monitor_log}"
                )
            self._clock.sleep(POLL_S)
        raise ClusterError(f"the head's node did not come up within {READY_S:.0f} s; see {home.monitor_log}")


def _config_of(record: ClusterRecord) -> ClusterConfig:
    """Returns what a provider is built from, as the monitor that ran it has left it."""
    section = dict(record.provider)
    return ClusterConfig(
        cluster_name=record.cluster_name,
        provider=ProviderConfig(
            type=str(section.get("type", "")),
            module=section.get("module"),
            disable_node_updaters=bool(section.get("disable_node_updaters")),
            written=section,
        ),
    )


def _machines_of(home: ClusterHome) -> list[str]:
    """Returns the machines that the ledger holds as bought; the head is not one of them."""
    if not home.ledger.is_file():
        return []
    with open_history(home.ledger) as history:
        records = history.find(states=ON_CLOUD)
    return [i.cloud_id for i in records if i.cloud_id and i.kind is not NodeKind.HEAD]


def check_up(config: ClusterConfig, file: Path) -> None:
    """Raises ConfigError or ClusterError for a cluster that `muster up` cannot start."""
    check_provider(config, str(file))
    kind = config.provider.type
    if kind != "process":
        raise ClusterError(
            f"`muster up` starts clusters of provider type 'process' (this computer), not {kind!r} yet; for "
            "others start the head yourself with `ray start --head --no-monitor`, and there `muster monitor "
            f"{file}`; `muster down` ends the machines that it bought"
        )


def _head_runs(status: PublishedStatus) -> bool:
    return any(
        record.kind is NodeKind.HEAD and record.state is InstanceState.RAY_RUNNING
        for record in status.instances
    )


def _running_monitor(home: ClusterHome) -> ProcessMark | None:
    record = read_record(home)
    return record.monitor if record is not None and lives(record.monitor) else None


def _authenticated(environment: Mapping[str, str], auth: Mapping[str, str]) -> dict[str, str]:
    """Only this cluster's token may be set: RAY_AUTH_TOKEN of another cluster would win over the file."""
    return {**{key: value for key, value in environment.items() if not key.startswith("RAY_AUTH")}, **auth}


def _died(home: ClusterHome) -> str:
    """The end of the monitor's log names the cause."""
    try:
        size = os.path.getsize(home.monitor_log)
        with open(home.monitor_log, "rb") as stream:
            stream.seek(max(0, size - _LOG_TAIL_BYTES))
            lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    last = lines[-1] if lines else "(nothing)"
    return f"the monitor ended at once; its last output: {last} (its log: {home.monitor_log})"

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

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import (
    ClusterRecord,
    PublishedStatus,
    read_record,
    read_status,
    write_record,
)
from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.cluster.model import Instance, NodeKind, StatusChange
from muster.cluster.plan import Plan
from muster.cluster.ports import Ledger
from muster.cluster.spend import cost_of
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.config.load import load_config
from muster.config.node_launch import node_launches
from muster.config.schema import ClusterConfig
from muster.errors import ClusterError, ProviderError, ProviderMisconfigured
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
from muster.providers.v1.tags import TAG_RAY_LAUNCH_CONFIG
from muster.runtimes.ray.native import check_ray
from muster.stores.ledger.history import Spend
from muster.stores.ledger.store import SqliteInstanceStore

DETAILS = "ended by muster down"


def close_ledger(path: Path, clock: Clock, ids: IdSource) -> Spend | None:
    """Ends every record and returns the cluster's total cost; None when no ledger was written. Idempotent."""
    if not path.is_file():
        return None
    with SqliteInstanceStore(path, clock=clock) as store:
        ledger = store.load()
        # No process is left that could carry the effects out.
        store.handed_over([action.request_id for action in ledger.outbox])
        if ledger.instances:
            store.commit(ledger.version, closing(ledger, ids.fresh("t"), clock.now()))
        return store.history.spend(clock.now())


def closing(ledger: Ledger, tick_id: str, now: float) -> Plan:
    """Returns the plan that ends every record; pure."""
    at = max(now, ledger.newest_at)
    live = tuple(ledger.instances.values())
    spent = sum(cost_of(record, at) for record in live if record.state in ON_CLOUD)
    return Plan(
        tick_id=tick_id,
        at=at,
        writes=tuple(_ended(record, at) for record in live),
        memory=replace(ledger.memory, spent=ledger.memory.spent + spent),
    )


def _ended(record: Instance, at: float) -> Instance:
    asked = record.state is InstanceState.REQUESTED  # the machine never arrived
    state = InstanceState.ALLOCATION_FAILED if asked else InstanceState.TERMINATED
    return replace(record, state=state, history=(*record.history, StatusChange(state, at, DETAILS)))


READY_S = 120.0  # the monitor imports Ray and connects, the head's own node starts: slow on a busy computer
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

    @property
    def nothing(self) -> bool:
        return self.monitor_pid is None and not self.nodes


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
        _check_provider(config)
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

    def down(self, home: ClusterHome, *, purge: bool = False) -> EndedCluster:
        """Stops the monitor, then workers, head and temporary files. Idempotent.

        The monitor goes first: a running one would start new nodes.
        """
        monitor = _running_monitor(home)
        if monitor is not None:
            self._report("stopping the monitor")
            daemon.end(monitor, clock=self._clock, patience_s=MONITOR_STOP_S)
        self._report("stopping the nodes")
        stopped = stop_everything(home.nodes, self._clock)
        spend = None
        if not stopped.left:
            spend = close_ledger(home.ledger, self._clock, self._ids)
            for file in (home.cluster, home.token, home.status):
                file.unlink(missing_ok=True)
        if purge and not stopped.left:
            shutil.rmtree(home.path, ignore_errors=True)
        return EndedCluster(
            monitor_pid=None if monitor is None else monitor.pid,
            nodes=stopped.nodes,
            left=stopped.left,
            spend=spend,
        )

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


def _check_provider(config: ClusterConfig) -> None:
    kind = config.provider.type
    if kind != "process":
        raise ClusterError(
            f"`muster up` starts clusters of provider type 'process' (this computer), not {kind!r} yet; for "
            f"others start the head yourself with `ray start --head --no-monitor`, and there `muster monitor`"
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

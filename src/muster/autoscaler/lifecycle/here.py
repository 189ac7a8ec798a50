"""Start and stop the head and the monitor of a cluster on this computer.

Called by `up` and `down`. Whatever was started is stopped when a later step fails.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lifecycle.open import OpenCluster, RunningCluster
from muster.autoscaler.status_files import ClusterRecord, read_record, read_status, write_record
from muster.base.clock import Clock
from muster.cluster.model import NodeKind
from muster.config.to_spec import node_launches
from muster.errors import ClusterError, ProviderError, ProviderMisconfigured
from muster.host.processes import ProcessIdentity, end_process, identify, is_alive, start_daemon
from muster.providers.process.head import (
    Head,
    HeadRequest,
    running_head,
    start_head,
    stop_everything,
    token_file,
)
from muster.providers.process.ray_command import NodeSize
from muster.providers.teardown import WorkerTeardown
from muster.providers.v1.tags import TAG_RAY_LAUNCH_CONFIG
from muster.runtimes.ray.native import check_ray

READY_S = 120.0  # the monitor imports Ray and connects, the head's own node starts: slow on a busy computer
MONITOR_STOP_S = 20.0  # a tick under way is finished
POLL_S = 0.1
UNDO_S = 60.0  # until workers elsewhere have ended
_LOG_TAIL_BYTES = 1500


class HeadHere:
    """Starts what is missing of a cluster on this computer, and keeps what runs."""

    def __init__(self, cluster: OpenCluster, port: int | None = None) -> None:
        """Take the head's port; None: a free one."""
        self._cluster, self._port, self._home = cluster, port, cluster.home
        self._context, self._clock = cluster.context, cluster.context.clock

    def up(self) -> RunningCluster:
        check_ray()
        self._check_file()
        self._home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._home.path.chmod(0o700)
        if running_head(self._home.nodes) is None:
            # A monitor whose head is gone polls the old address; the next head has another one.
            if running_monitor(self._home):
                self._report("stopping the monitor of a head that is gone")
            end_monitor(self._home, self._clock)
        with ExitStack() as undo:
            head = self._head(undo)
            record = ClusterRecord(
                cluster_name=self._cluster.config.cluster_name,
                config=str(self._cluster.file),
                address=head.address,
                auth=token_file(self._home.token),
                temp_dir=head.temp_dir,
                provider=self._cluster.config.provider.settings() if self._cluster.kind.has_workers else {},
            )
            monitor = running_monitor(self._home)
            if monitor is None:
                record = self._monitor(record, undo)
            else:
                record = replace(record, monitor=monitor, monitor_pid=monitor.pid)
            write_record(self._home, record)
            undo.pop_all()
        is_changed = monitor is None or not head.already
        return RunningCluster(
            record,
            record.auth,
            is_new=not head.already,
            is_changed=is_changed,
            notes=self._cluster.notes_on_removed_types(),
        )

    def _report(self, step: str) -> None:
        self._context.report("", step)

    def _check_file(self) -> None:
        """Two files with one cluster name would be one cluster with two owners."""
        home, record = self._home, read_record(self._home)
        same = record is None or Path(record.config) == self._cluster.file
        if record is not None and not same and (running_head(home.nodes) or running_monitor(home)):
            raise ClusterError(
                f"a cluster named {record.cluster_name!r} is up already, from {record.config}: give this "
                f"one another cluster_name, or stop that one with `muster down {record.cluster_name}`"
            )

    def _head(self, undo: ExitStack) -> Head:
        config, home = self._cluster.config, self._home
        if running_head(home.nodes) is None:
            stop_everything(home.nodes, self._clock)  # what a head that died has left behind
            undo.callback(self._undo)
        launch = node_launches(config)[config.head_type]
        request = HeadRequest(
            cluster_name=config.cluster_name,
            nodes=home.nodes,
            node_type=config.head_type,
            size=NodeSize(resources=launch.resources, labels=launch.labels),
            auth=token_file(home.token),
            environment=self._context.environment,
            tags={TAG_RAY_LAUNCH_CONFIG: launch.launch_hash},
            port=self._port,
            ip=self._cluster.kind.head_ip(config),
        )
        try:
            program = self._context.programs.head
            return start_head(request, self._clock, self._context.ids, self._report, program)
        except ProviderMisconfigured:
            raise
        except ProviderError as error:
            lines = str(error).strip().splitlines()
            raise ClusterError(
                f"{lines[0].split(';')[0]}",
                fix=(
                    f"its last output: {lines[-1].strip()} (Ray needs some seconds of "
                    f"CPU time to start; try again when this computer is less busy)"
                ),
            ) from error

    def _undo(self) -> None:
        self._report("a step failed: stopping what was started")
        stop_everything(self._home.nodes, self._clock)
        if self._cluster.kind.has_workers:  # which the monitor may have launched already
            port, ids = self._cluster.port, self._context.ids
            WorkerTeardown(port, self._clock, ids, known=()).run(self._report, UNDO_S)
        self._home.cluster.unlink(missing_ok=True)
        self._home.token.unlink(missing_ok=True)

    def _monitor(self, record: ClusterRecord, undo: ExitStack) -> ClusterRecord:
        """Start the monitor and wait until it reports the head as running."""
        home = self._home
        self._report("starting the monitor")
        # Only this cluster's token may be set: RAY_AUTH_TOKEN of another cluster would win over the file.
        inherited = self._context.environment.items()
        environment = {key: value for key, value in inherited if not key.startswith("RAY_AUTH")}
        environment.update(record.auth)
        options = (record.config, "--home", str(home.path.resolve()), "--address", record.address)
        pid = start_daemon(
            [*self._context.programs.monitor, *options],
            environment=environment,
            log=home.monitor_log,
        )
        mark = identify(pid)
        if mark is None:
            raise ClusterError(_died(home))
        undo.callback(end_process, mark, clock=self._clock, patience_s=MONITOR_STOP_S)
        known = replace(record, monitor=mark, monitor_pid=mark.pid)
        write_record(home, known)  # already: a `muster down` from elsewhere must find it
        self._await_head(mark)
        return known

    def _await_head(self, mark: ProcessIdentity) -> None:
        """Wait until the monitor has seen the head's node run: from then on trials and tasks can start."""
        home = self._home
        give_up = self._clock.monotonic() + READY_S
        while self._clock.monotonic() < give_up:
            status = read_status(home)
            if status is not None and status.monitor_pid == mark.pid:
                self._report("waiting for the head's node")
                if status.running(NodeKind.HEAD):
                    return
            if not is_alive(mark):
                raise ClusterError(_died(home))
            if running_head(home.nodes) is None:
                raise ClusterError(
                    "the head ended while it started", fix=f"see {home.nodes} and {home.monitor_log}"
                )
            self._clock.sleep(POLL_S)
        raise ClusterError(
            f"the head's node did not come up within {READY_S:.0f} s", fix=f"see {home.monitor_log}"
        )


def running_monitor(home: ClusterHome) -> ProcessIdentity | None:
    record = read_record(home)
    return record.monitor if record is not None and is_alive(record.monitor) else None


def end_monitor(home: ClusterHome, clock: Clock) -> int | None:
    """Stop the monitor that runs on this computer; return its process id, or None when none ran."""
    monitor = running_monitor(home)
    if monitor is None:
        return None
    end_process(monitor, clock=clock, patience_s=MONITOR_STOP_S)
    return monitor.pid


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

"""Read and write `cluster.json` and `status.json`: plain JSON, replaced as a whole, private to the owner.

The launcher and the monitor write, the commands read. A file that cannot be decoded is a StoreError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from muster.autoscaler.events import Event
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.monitor import state_of
from muster.autoscaler.shadow_book import ShadowSummary
from muster.base import codec
from muster.cluster.model import Instance, NodeKind, RuntimeReport
from muster.cluster.ports import TickResult
from muster.cluster.snapshot import FailedLaunch, Quarantined
from muster.cluster.states import InstanceState
from muster.cluster.status import StatusSnapshot, status_of
from muster.errors import StoreError
from muster.host.atomic_write import atomic_write
from muster.host.processes import ProcessIdentity


class HeadRecord(Struct, frozen=True, kw_only=True):
    """What `up` leaves of a head on another machine, here and on that machine."""

    node_id: str = ""
    ip: str = ""
    home: str = ""  # the cluster's directory on the head
    python: str = ""  # on the head, that has muster
    request: str = ""  # of the last `up`
    is_up: bool = False  # False: `up` began, and stopped before it was done
    shares_home: bool = False  # the head has the same HOME directory, as with homes on NFS


class ClusterRecord(Struct, frozen=True, kw_only=True):
    """How to reach a cluster, and what `muster down` must stop.

    `muster up` writes it; the monitor adds itself and its provider.
    """

    cluster_name: str
    config: str  # path of the cluster file, re-read while running
    address: str = ""  # of the GCS
    auth: Mapping[str, str] = field(default_factory=dict)  # RAY_AUTH_MODE and the token's path, not the token
    monitor_pid: int | None = None  # for other programs
    monitor: ProcessIdentity | None = (
        None  # the same, with its start time: an id alone may be another's by now
    )
    temp_dir: str = ""
    provider: Mapping[str, Any] = field(default_factory=dict)  # its section, as the monitor runs with it
    head: HeadRecord | None = None  # of a cluster whose head is another machine

    @property
    def is_elsewhere(self) -> bool:
        """Return whether nothing of the cluster runs here: its head is asked instead."""
        return self.head is not None and self.monitor is None


class PublishedStatus(Struct, frozen=True, kw_only=True):
    """One complete snapshot; `muster status` and `muster why` read nothing else."""

    cluster_name: str
    at: float
    tick_id: str
    version: int  # of the ledger
    interval_s: float  # until the monitor's next tick
    monitor_pid: int
    status: StatusSnapshot
    instances: tuple[Instance, ...]  # live records
    runtime: RuntimeReport | None  # None: the runtime could not be read in this tick
    quarantined: tuple[Quarantined, ...] = ()
    recent_failures: tuple[FailedLaunch, ...] = ()  # of launches: the plan's `report.failed_launches`
    config_problem: str = ""  # what is wrong with the newest edit of the config
    metrics_port: int | None = None
    events: tuple[Event, ...] = ()  # the newest, oldest first
    shadow: ShadowSummary | None = None  # of a monitor that only plans, beside another autoscaler

    def running(self, kind: NodeKind) -> int:
        """Return how many nodes of a kind run Ray."""
        runs = InstanceState.RAY_RUNNING
        return sum(one.kind is kind and one.state is runs for one in self.instances)


T = TypeVar("T")
REFRESH_S = 5.0  # spend and idle times move although nothing changes


def write_record(home: ClusterHome, record: ClusterRecord) -> None:
    """Write how to reach the cluster."""
    _replace(home.cluster, codec.encode_plain(record))


def write_status(home: ClusterHome, status: PublishedStatus) -> None:
    """Write what the monitor saw and decided in its newest tick."""
    _replace(home.status, codec.encode_plain(status))


def read_record(home: ClusterHome) -> ClusterRecord | None:
    """Return None before `muster up` or a monitor has written the file, and after `muster down`."""
    return _read(home.cluster, ClusterRecord)


def read_status(home: ClusterHome) -> PublishedStatus | None:
    """Return None before the first tick."""
    return _read(home.status, PublishedStatus)


class StatusFile:
    """Keeps `status.json` of one cluster up to date."""

    def __init__(
        self,
        home: ClusterHome,
        events: Callable[[], tuple[Event, ...]],
        metrics_port: Callable[[], int | None] = lambda: None,
        shadow: Callable[[], ShadowSummary | None] = lambda: None,
    ) -> None:
        self._home, self._events, self._metrics_port, self._shadow = home, events, metrics_port, shadow
        self._written: object = None
        self._written_at = float("-inf")

    def on_tick(self, tick: TickResult) -> None:
        events, port = self._events(), self._metrics_port()
        verdicts = tuple((v.subject, v.subject_id, v.reason, v.count) for v in tick.plan.verdicts)
        content = (state_of(tick), verdicts, events, port, tick.interval_s)
        if content == self._written and tick.plan.at - self._written_at < REFRESH_S:
            return
        status = PublishedStatus(
            cluster_name=tick.spec.cluster_name,
            at=tick.plan.at,
            tick_id=tick.plan.tick_id,
            version=tick.ledger.version,
            interval_s=tick.interval_s,
            monitor_pid=os.getpid(),
            status=status_of(tick),
            instances=tick.records,
            runtime=tick.runtime,
            quarantined=tick.plan.quarantined,
            recent_failures=tick.plan.report.failed_launches,
            config_problem=tick.port_errors.config,
            metrics_port=port,
            events=events,
            shadow=self._shadow(),
        )
        write_status(self._home, status)
        self._written, self._written_at = content, tick.plan.at


def _replace(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one, never half of one."""
    try:
        atomic_write(path, data, mode=0o600)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", fix="this user must be able to write it") from error


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return codec.convert(msgspec.json.decode(data), kind)
    except ValueError as error:  # msgspec's errors are of this kind
        raise StoreError(
            f"{path}: {error}", fix="it may have been written by another version of muster"
        ) from error

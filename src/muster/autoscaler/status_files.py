"""Reads and writes `cluster.json` and `status.json`: plain JSON, replaced as a whole, private to the owner.

The launcher and the monitor write, the commands read. A file that cannot be decoded is a StoreError.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from muster.autoscaler.events import Event
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.shadow_book import ShadowSummary
from muster.base import codec
from muster.cluster.model import Instance, RuntimeReport
from muster.cluster.snapshot import FailedLaunch, Quarantined
from muster.cluster.status import StatusSnapshot
from muster.errors import StoreError
from muster.host.atomic_write import atomic_write
from muster.host.processes import ProcessMark


class ClusterRecord(Struct, frozen=True, kw_only=True):
    """A ClusterRecord is how to reach a cluster, and what `muster down` must end.

    `muster up` writes it; where a provider buys the machines, the monitor does.
    """

    cluster_name: str
    config: str  # path of the cluster file, re-read while running
    address: str  # of the GCS
    auth: Mapping[str, str] = field(default_factory=dict)  # RAY_AUTH_MODE and the token's path, not the token
    monitor_pid: int | None = None  # for other programs
    monitor: ProcessMark | None = None  # the same, with its start time: an id alone may be another's by now
    temp_dir: str = ""
    provider: Mapping[str, Any] = field(default_factory=dict)  # its section, as the monitor runs with it


class PublishedStatus(Struct, frozen=True, kw_only=True):
    """A PublishedStatus is one complete snapshot; `muster status` and `muster why` read nothing else."""

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


T = TypeVar("T")


def write_record(home: ClusterHome, record: ClusterRecord) -> None:
    """Writes how to reach the cluster."""
    _replace(home.cluster, codec.encode_plain(record))


def write_status(home: ClusterHome, status: PublishedStatus) -> None:
    """Writes what the monitor saw and decided in its newest tick."""
    _replace(home.status, codec.encode_plain(status))


def read_record(home: ClusterHome) -> ClusterRecord | None:
    """Returns None before `muster up` or a monitor has written the file, and after `muster down`."""
    return _read(home.cluster, ClusterRecord)


def read_status(home: ClusterHome) -> PublishedStatus | None:
    """Returns None before the first tick."""
    return _read(home.status, PublishedStatus)


def _replace(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one, never half of one."""
    try:
        atomic_write(path, data, mode=0o600)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; this user must be able to write it") from error


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
        raise StoreError(f"{path}: {error}; it may have been written by another version of muster") from error

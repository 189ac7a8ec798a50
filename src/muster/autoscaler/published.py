"""What the monitor tells people and tools, as values: `status.json` and `cluster.json` of a ClusterHome."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from muster.autoscaler.events import Event
from muster.cluster.model import Instance, RuntimeReport
from muster.cluster.snapshot import FailedLaunch, Quarantined
from muster.cluster.status import ClusterStatus
from muster.host.processes import ProcessMark


class ClusterRecord(Struct, frozen=True, kw_only=True):
    """How to reach a cluster that `muster up` made, and which processes belong to it."""

    cluster_name: str
    config: str  # path of the cluster file, re-read while running
    address: str  # of the GCS
    auth: Mapping[str, str] = field(default_factory=dict)  # RAY_AUTH_MODE and the token's path, not the token
    monitor_pid: int | None = None  # for other programs
    monitor: ProcessMark | None = None  # the same, with its start time: an id alone may be another's by now
    temp_dir: str = ""


class PublishedStatus(Struct, frozen=True, kw_only=True):
    """One moment of a cluster, complete: `muster status`, `muster why` and the watch need nothing else."""

    cluster_name: str
    at: float
    tick_id: str
    version: int  # of the ledger
    interval_s: float  # when the monitor means to look again
    monitor_pid: int
    status: ClusterStatus
    instances: tuple[Instance, ...]  # live records
    runtime: RuntimeReport | None  # None: the runtime could not be read at this look
    quarantined: tuple[Quarantined, ...] = ()
    recent_failures: tuple[FailedLaunch, ...] = ()  # of launches: the plan's `report.failed_launches`
    config_problem: str = ""  # what is wrong with the newest edit of the config
    metrics_port: int | None = None
    events: tuple[Event, ...] = ()  # the newest, oldest first

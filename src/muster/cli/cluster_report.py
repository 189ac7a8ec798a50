"""StatusReport: what `muster status --json` prints, and what the page and the watch draw. Values only.

Fields may be added; a field is never renamed or given another meaning without a new `format`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from muster.cluster.plan import Reason
from muster.cluster.snapshot import Quarantined

FORMAT = 1


class NodeRow(Struct, frozen=True, kw_only=True):
    """One machine of the cluster, from wish to grave; or a node that no record knows."""

    instance_id: str  # "" for a node without a record
    node_id: str  # "" while no node runs on it
    cloud_id: str
    node_type: str
    is_head: bool
    state: str  # a word for people: busy, idle, starting ...
    instance_state: str  # the record's state, Ray's name
    for_s: float | None  # how long it has been in that state
    used: Mapping[str, float]
    total: Mapping[str, float]
    price_per_hour: float | None
    reason: Reason | None  # why it stays or goes
    detail: str


class PendingRow(Struct, frozen=True, kw_only=True):
    """Requests that wait and share a fate."""

    kind: str  # demand, gang or constraint
    subject_id: str
    shape: str
    count: int
    reason: Reason
    told: str
    target: str  # the machine or node type meant
    for_s: float | None


class EventRow(Struct, frozen=True, kw_only=True):
    """Something that happened lately."""

    at: float
    level: str
    message: str


class FailureRow(Struct, frozen=True, kw_only=True):
    """A machine that did not come."""

    at: float
    instance_id: str
    node_type: str
    message: str


class TypeRow(Struct, frozen=True, kw_only=True):
    """Why a node type is bought or not."""

    node_type: str
    reason: Reason
    detail: str


class Usage(Struct, frozen=True, kw_only=True):
    """One resource over all nodes that run."""

    used: float
    total: float


class StatusReport(Struct, frozen=True, kw_only=True):
    """The whole answer of `muster status`."""

    format: int = FORMAT
    cluster: str
    address: str
    config: str
    at: float  # of the monitor's look
    age_s: float
    interval_s: float
    monitor_pid: int | None
    log: str
    metrics_port: int | None
    problem: str  # why the rest may be out of date; "" when it is not
    config_problem: str
    notes: tuple[str, ...]  # about the cluster as a whole
    nodes: tuple[NodeRow, ...]
    states: Mapping[str, int]  # record state -> machines
    usage: Mapping[str, Usage]
    pending: tuple[PendingRow, ...]
    node_types: tuple[TypeRow, ...]
    failures: tuple[FailureRow, ...]
    events: tuple[EventRow, ...]  # newest first
    set_aside: tuple[Quarantined, ...]
    price_per_hour: float
    spent: float

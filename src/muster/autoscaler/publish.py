"""Publishes every tick: to the runtime, to `status.json`, to the timeline and to the history.

Each class is a TickListener of the Monitor. A runtime that could not be read is not called again in the same
tick.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, json
from msgspec.structs import replace

from muster.autoscaler.events import Event
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lease import Lease
from muster.autoscaler.monitor import Tick, state_of
from muster.autoscaler.shadow_book import ShadowSummary
from muster.autoscaler.status_files import PublishedStatus, write_status
from muster.base.clock import Clock
from muster.cluster.model import NodeReport, NodeStatus, RuntimeReport
from muster.cluster.plan import Subject
from muster.cluster.spend import price_per_hour, spend_so_far
from muster.host.atomic_write import atomic_write
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.price_board import PriceWriter
from muster.runtimes.ray.publish import StatePublisher
from muster.runtimes.ray.verdict_board import VerdictWriter
from muster.stores.history.files import HistoryWriter
from muster.stores.history.recorder import TickRecord

LEASE_SPACE, LEASE_KEY = "__muster", "monitor"


class Announcement:
    """An Announcement sends the cluster's limits and the metrics' address to Ray's tools."""

    def __init__(self, announcer: StatePublisher, metrics_address: Callable[[], str]) -> None:
        self._announcer, self._metrics_address = announcer, metrics_address

    def on_tick(self, tick: Tick) -> None:
        if tick.runtime is not None:
            self._announcer.publish(tick.spec, self._metrics_address())


class VerdictBoard:
    """A VerdictBoard publishes why requests wait, for trials that need not wait for nothing."""

    def __init__(self, writer: VerdictWriter, wall: Clock) -> None:
        self._writer, self._wall = writer, wall

    def on_tick(self, tick: Tick) -> None:
        if tick.runtime is not None:
            self._writer.write(self._wall.now(), tick.plan.verdicts)


class PriceBoard:
    """A PriceBoard publishes what each node costs, for tuners that add up what their trials cost."""

    def __init__(self, writer: PriceWriter, wall: Clock) -> None:
        self._writer, self._wall = writer, wall

    def on_tick(self, tick: Tick) -> None:
        if tick.runtime is not None:
            self._writer.write(self._wall.now(), tick.ledger.instances.values())


class LeaseRenewal:
    """A LeaseRenewal keeps other monitors out."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def on_tick(self, tick: Tick) -> None:
        if tick.runtime is not None:
            self._lease.renew()


class LeaseKey:
    """A LeaseKey is the key of the lease in the cluster's own store."""

    def __init__(self, link: GcsClient) -> None:
        self._link = link

    def get(self) -> bytes | None:
        return self._link.kv_get(LEASE_KEY, LEASE_SPACE)

    def put(self, value: bytes) -> None:
        self._link.kv_put(LEASE_KEY, value, LEASE_SPACE)

    def delete(self) -> None:
        self._link.kv_delete(LEASE_KEY, LEASE_SPACE)


REFRESH_S = 5.0  # spend and idle times move although nothing changes


class StatusFile:
    """A StatusFile keeps `status.json` of one cluster up to date."""

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

    def on_tick(self, tick: Tick) -> None:
        events, port = self._events(), self._metrics_port()
        verdicts = tuple((v.subject, v.subject_id, v.reason, v.count) for v in tick.plan.verdicts)
        content = (state_of(tick), verdicts, events, port, tick.interval_s)
        if content == self._written and tick.plan.at - self._written_at < REFRESH_S:
            return
        write_status(self._home, replace(published(tick, events, port), shadow=self._shadow()))
        self._written, self._written_at = content, tick.plan.at


def published(tick: Tick, events: tuple[Event, ...] = (), metrics_port: int | None = None) -> PublishedStatus:
    """Returns the complete status of the cluster after a tick."""
    return PublishedStatus(
        cluster_name=tick.spec.cluster_name,
        at=tick.plan.at,
        tick_id=tick.plan.tick_id,
        version=tick.ledger.version,
        interval_s=tick.interval_s,
        monitor_pid=os.getpid(),
        status=tick.status(),
        instances=tuple(tick.ledger.instances.values()),
        runtime=tick.runtime,
        quarantined=tick.plan.quarantined,
        recent_failures=tick.plan.report.failed_launches,
        config_problem=tick.config_problem,
        metrics_port=metrics_port,
        events=events,
    )


class HistoryFile:
    """A HistoryFile keeps the compact history of one cluster; it is written after the tick's effects."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._writer: HistoryWriter | None = None

    def on_tick(self, tick: Tick) -> None:
        if not tick.is_decided:
            return
        if self._writer is None:
            self._writer = HistoryWriter(self._folder)
        self._writer.record(TickRecord(tick.snapshot, tick.plan, tick.ledger))

    def close(self) -> None:
        """Notes the end, so that a reader knows until when the cluster was watched."""
        if self._writer is not None:
            self._writer.close(self._clock.now())


KEPT_BYTES = 2_000_000  # some ten thousand lines
_PLACEMENT_GROUP = "_PG_"  # the label of a node that holds a bundle of a gang
_DEMANDS = {Subject.DEMAND: "demands", Subject.GANG: "gangs", Subject.CONSTRAINT: "constraints"}


class TimelinePoint(Struct, frozen=True, kw_only=True):
    """A TimelinePoint is one moment; `demand` counts requests by kind (demands, gangs ...) and verdict."""

    at: float
    demand: Mapping[str, Mapping[str, int]]
    nodes: Mapping[str, int]  # instance state -> count, heads included
    types: Mapping[str, int]  # node type -> nodes that run
    gangs_running: int  # trials, where each is a placement group
    gangs_pending: int
    spent: float
    price_per_hour: float


class TimelineFile:
    """A TimelineFile appends a point when more than time and money has changed."""

    def __init__(self, path: Path, kept_bytes: int = KEPT_BYTES) -> None:
        self._path, self._kept_bytes = path, kept_bytes
        self._last: TimelinePoint | None = None

    def on_tick(self, tick: Tick) -> None:
        point = point_of(tick)
        if self._last is not None and _timeless(point) == _timeless(self._last):
            return
        self._last = point
        with open(self._path, "ab") as file:
            file.write(json.encode(point) + b"\n")
            size = file.tell()
        if size > 2 * self._kept_bytes:
            self._shorten()

    def _shorten(self) -> None:
        """Only the newest lines are kept; a reader sees the old file or the new one."""
        with open(self._path, "rb") as file:
            file.seek(-self._kept_bytes, os.SEEK_END)
            file.readline()  # the rest of a line
            kept = file.read()
        atomic_write(self._path, kept)


def read_timeline(path: Path) -> list[TimelinePoint]:
    """Returns every whole line of the file; [] when there is no file yet."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [json.decode(line, type=TimelinePoint) for line in lines[:-1]]


def point_of(tick: Tick) -> TimelinePoint:
    """Returns the counts of a tick."""
    records = tuple(tick.ledger.instances.values())
    running, pending = _gangs(tick.runtime)
    return TimelinePoint(
        at=tick.plan.at,
        demand=_demand(tick),
        nodes=dict(Counter(record.state.name for record in records)),
        types=dict(Counter(node.node_type for node in _alive(tick.runtime))),
        gangs_running=running,
        gangs_pending=pending,
        spent=round(spend_so_far(records, tick.ledger.memory, tick.plan.at), 6),
        price_per_hour=price_per_hour(records),
    )


def _demand(tick: Tick) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for verdict in tick.plan.verdicts:
        what = _DEMANDS.get(verdict.subject)
        if what is not None:
            reasons = counts.setdefault(what, {})
            reasons[verdict.reason.value] = reasons.get(verdict.reason.value, 0) + verdict.count
    return counts


def _alive(runtime: RuntimeReport | None) -> list[NodeReport]:
    return [node for node in runtime.nodes if node.status is not NodeStatus.DEAD] if runtime else []


def _gangs(runtime: RuntimeReport | None) -> tuple[int, int]:
    """Counts the gangs that hold a place on some node, and those that wait for one."""
    labels = {label for node in _alive(runtime) for label in node.labels}
    return sum(label.startswith(_PLACEMENT_GROUP) for label in labels), len(runtime.gangs) if runtime else 0


def _timeless(point: TimelinePoint) -> TimelinePoint:
    return replace(point, at=0.0, spent=0.0)

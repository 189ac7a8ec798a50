"""timeline.jsonl: one line per tick that changed something; `make demo` and notebooks draw it.

The monitor appends, anybody may read at any time. The file never grows beyond twice `KEPT_BYTES`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, json
from msgspec.structs import replace

from muster.autoscaler.tick import Tick
from muster.cluster.model import NodeStatus, RuntimeReport
from muster.cluster.plan import Subject
from muster.cluster.spend import price_per_hour, spend_so_far

KEPT_BYTES = 2_000_000  # some ten thousand lines
_PLACEMENT_GROUP = "_PG_"  # the label of a node that holds a bundle of a gang
_DEMANDS = {Subject.DEMAND: "demands", Subject.GANG: "gangs", Subject.CONSTRAINT: "constraints"}


class TimelinePoint(Struct, frozen=True, kw_only=True):
    """One moment. `demand` counts requests by what they are (demands, gangs, constraints) and verdict."""

    at: float
    demand: Mapping[str, Mapping[str, int]]
    nodes: Mapping[str, int]  # instance state -> count, heads included
    types: Mapping[str, int]  # node type -> nodes that run
    gangs_running: int  # trials, where each is a placement group
    gangs_pending: int
    spent: float
    price_per_hour: float


class Timeline:
    """Appends a point when it differs from the last one in more than time and money."""

    def __init__(self, path: Path, kept_bytes: int = KEPT_BYTES) -> None:
        self._path, self._kept_bytes = path, kept_bytes
        self._last: TimelinePoint | None = None

    def hear(self, tick: Tick) -> None:
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
        """Keep the newest lines; a reader sees the old file or the new one."""
        with open(self._path, "rb") as file:
            file.seek(-self._kept_bytes, os.SEEK_END)
            file.readline()  # the rest of a line
            kept = file.read()
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.write_bytes(kept)
        os.replace(fresh, self._path)


def read_timeline(path: Path) -> list[TimelinePoint]:
    """Every whole line; [] before the first."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [json.decode(line, type=TimelinePoint) for line in lines[:-1]]


def point_of(tick: Tick) -> TimelinePoint:
    """This tick, counted."""
    records = tuple(tick.ledger.instances.values())
    running, pending = _gangs(tick.runtime)
    return TimelinePoint(
        at=tick.plan.at,
        demand=_demand(tick),
        nodes=dict(Counter(record.state.name for record in records)),
        types=_serving(tick.runtime),
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


def _serving(runtime: RuntimeReport | None) -> dict[str, int]:
    nodes = runtime.nodes if runtime is not None else ()
    return dict(Counter(node.node_type for node in nodes if node.status is not NodeStatus.DEAD))


def _gangs(runtime: RuntimeReport | None) -> tuple[int, int]:
    """Gangs that hold a place on some node, and gangs that wait for one."""
    if runtime is None:
        return 0, 0
    alive = (node for node in runtime.nodes if node.status is not NodeStatus.DEAD)
    placed = {label for node in alive for label in node.labels if label.startswith(_PLACEMENT_GROUP)}
    return len(placed), len(runtime.gangs)


def _timeless(point: TimelinePoint) -> TimelinePoint:
    return replace(point, at=0.0, spent=0.0)

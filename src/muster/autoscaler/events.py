"""Derive the events of a tick, in the words of Ray's log, and keep the newest.

A warning is logged once, until it changes or disappears. The newest events are part of the published status.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from muster.base.resources import EMPTY, Resources
from muster.base.text import is_internal
from muster.cluster.model import Demand, Gang, Instance, NodeKind, Notice, StopCause, health_key
from muster.cluster.plan import Reason, Subject
from muster.cluster.ports import TickResult
from muster.cluster.rules.notices import text_of
from muster.cluster.states import RUNNING_REACHABLE, InstanceState

logger = logging.getLogger("muster.events")

_S = InstanceState
REMOVED_BECAUSE = {
    StopCause.OUTDATED: "outdated",
    StopCause.MAX_NODES: "max number of worker nodes reached",
    StopCause.MAX_NODES_PER_TYPE: "max number of worker nodes per type reached",
    StopCause.IDLE: "idle",
    StopCause.NOTICE: "taken by the cloud",
    StopCause.CONSOLIDATION: "consolidated",
    StopCause.BUDGET: "over budget",
    StopCause.BROKEN_SLICE: "another machine of the slice is gone",
}
_COUNTED = {"CPU": "CPUs", "GPU": "GPUs", "TPU": "TPUs"}
_ADVICE = "Add suitable node types to this cluster to resolve this issue."
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
RING = 100


class Event(Struct, frozen=True, kw_only=True):
    """One line of the cluster's log."""

    at: float
    level: str  # debug, info, warning
    message: str


T = TypeVar("T", Demand, Gang)
WarningKeys = frozenset[str]  # of the warnings in force


def events_of(known: WarningKeys, tick: TickResult) -> tuple[tuple[Event, ...], WarningKeys]:
    """Return the new events of a tick and the keys of the warnings in force after it; pure."""
    shape = () if tick.snapshot.traits.read_only else tuple(_shape_events(tick))
    current = _warnings(tick)
    if tick.runtime is None:  # nothing was observed, so no warning has ended either
        return shape, known
    fresh = [text for key, text in current.items() if key not in known]
    warnings = tuple(Event(at=tick.plan.at, level="warning", message=text) for text in fresh)
    return (*shape, *warnings), frozenset(current)


class EventLog:
    """Writes events to the log `muster.events` and keeps the newest."""

    def __init__(self) -> None:
        self._warnings: WarningKeys = frozenset()
        self._ring: deque[Event] = deque(maxlen=RING)

    @property
    def newest(self) -> tuple[Event, ...]:
        """Return the newest events, oldest first."""
        return tuple(self._ring)

    def on_tick(self, tick: TickResult) -> None:
        """Log the new events of a tick."""
        events, self._warnings = events_of(self._warnings, tick)
        for event in events:
            self.log(event)

    def log(self, event: Event) -> None:
        """Log one event; other parts of the monitor report through here as well."""
        logger.log(_LEVELS[event.level], "%s", event.message)
        if event.level != "debug":
            self._ring.append(event)


def _shape_events(tick: TickResult) -> Iterator[Event]:
    at = tick.plan.at
    added = Counter(record.node_type for record in tick.plan.writes if _is_new(record, at))
    removed = Counter(
        (record.stop_cause, record.node_type) for record in tick.plan.writes if _is_going(record, at)
    )
    for node_type, count in added.items():
        yield Event(at=at, level="info", message=f"Adding {count} node(s) of type {node_type}.")
    found = Counter(record.node_type for record in tick.plan.writes if _is_adopted(record, at))
    for node_type, count in found.items() if not tick.snapshot.traits.read_only else ():
        text = f"Found {count} machine(s) of type {node_type} without an owner: adopted."
        yield Event(at=at, level="warning", message=text)
    for (cause, node_type), count in removed.items():
        why = REMOVED_BECAUSE.get(cause, "") if cause else ""
        if why:
            text = f"Removing {count} nodes of type {node_type} ({why})."
            yield Event(at=at, level="info", message=text)
    lost = losses_of(tick)
    for (node_type, why), count in lost.items():
        text = f"Lost {count} node(s) of type {node_type} ({why})."
        yield Event(at=at, level="warning", message=text)
    for notice in fresh_notices(tick):
        text = f"Notice for {notice.cloud_id}: {text_of(notice)}."
        yield Event(at=at, level="warning", message=text)
    if added or removed or lost:
        size = size_after(tick)
        yield Event(at=at, level="info", message=f"Resized to {_shown_size(size)}.")
        shown = Resources({name: units for name, units in size.items() if not is_internal(name)})
        yield Event(at=at, level="debug", message=f"Current cluster resources: {{{shown}}}.")
    yield from _failed_launches(tick)


def fresh_notices(tick: TickResult) -> tuple[Notice, ...]:
    """Return the notices about machines of the cluster that this tick saw first, or that have changed."""
    before, after = tick.snapshot.memory.noticed, tick.plan.memory.noticed
    fresh = {name for name, kind in after.items() if before.get(name) is not kind}
    return tuple(n for n in tick.snapshot.notices or () if n.cloud_id in fresh and not n.is_cancelled)


def losses_of(tick: TickResult) -> Counter[tuple[str, str]]:
    """Count the machines that were lost in this tick, by type and reason."""
    if tick.snapshot.traits.read_only:
        return Counter()
    losses = [(record, record.loss) for record in tick.plan.writes]
    fresh = [(record, loss) for record, loss in losses if loss is not None and loss.at == tick.plan.at]
    # A record may end because its machine has another one: then only the record is gone.
    held = {record.cloud_id for record in tick.ledger.instances.values()} if fresh else set()
    return Counter(
        (record.node_type, loss.details)
        for record, loss in fresh
        if loss.state is not _S.TERMINATED or record.cloud_id not in held
    )


def _is_new(record: Instance, at: float) -> bool:
    first = record.history[0] if record.history else None
    return first is not None and first.state is _S.QUEUED and first.at == at and record.stop_cause is None


def _is_adopted(record: Instance, at: float) -> bool:
    """Return whether a worker was listed that no record was about: left behind by a head, or by hand."""
    first = record.history[0] if record.history else None
    if first is None or record.kind is not NodeKind.WORKER or record.launch_request_id is not None:
        return False
    return first.state is _S.ALLOCATED and first.at == at and not record.cancelled and not record.provisional


def _is_going(record: Instance, at: float) -> bool:
    """Return whether the machine begins to leave in this tick because of a decision of the autoscaler."""
    if record.stop_cause is None or not record.history or record.history[-1].at != at:
        return False
    if record.state is _S.RAY_STOP_REQUESTED:
        return True
    return record.state is _S.TERMINATING and not record.entered(_S.RAY_STOP_REQUESTED)


def size_after(tick: TickResult) -> Resources:
    """Return the cluster's resources after every machine on its way has arrived or left."""
    nodes = {} if tick.runtime is None else {node.node_id: node for node in tick.runtime.nodes}
    types = {kind.name: kind.resources for kind in tick.spec.node_types}
    size = EMPTY
    for record in tick.ledger.instances.values():
        if record.state in RUNNING_REACHABLE and record.stop_cause is None:
            node = nodes.get(record.node_id) if record.node_id else None
            size = size.plus(node.total if node is not None else types.get(record.node_type, EMPTY))
    return size


def _shown_size(size: Resources) -> str:
    amounts = size.to_floats()
    parts = [f"{amounts.get('CPU', 0.0):g} CPUs"]
    parts += [
        f"{amounts[key]:g} {name}" for key, name in _COUNTED.items() if key != "CPU" and amounts.get(key)
    ]
    return ", ".join(parts)


_FAILED = {_S.ALLOCATION_FAILED: "launch", _S.RAY_INSTALL_FAILED: "set up"}


def _failed_launches(tick: TickResult) -> Iterator[Event]:
    at = tick.plan.at
    failed = Counter(
        (_FAILED[change.state], health_key(record.node_type, record.offer_name), change.details)
        for record in tick.plan.writes
        for change in record.history
        if change.state in _FAILED and change.at == at
    )
    for (what, node_type, why), count in failed.items():
        text = f"Failed to {what} {count} node(s) of type {node_type}: {why}"
        yield Event(at=at, level="warning", message=text)


# -- warnings: by key, so that a changed count alone is not logged again --------------------------------


def _warnings(tick: TickResult) -> dict[str, str]:
    if tick.runtime is None:
        return {}
    found: dict[str, str] = {}
    demands = _infeasible(tick, Subject.DEMAND, requests_by_id(tick.runtime.demands))
    if demands:
        listed = ", ".join(f"{_shown(demand)}*{count}" for demand, count in demands)
        key = "requests " + ", ".join(sorted(_shown(demand) for demand, _ in demands))
        found[key] = f"No available node types can fulfill resource requests {listed}. {_ADVICE}"
    gangs = {gang.gang_id: gang for gang in tick.runtime.gangs}
    for gang, _ in _infeasible(tick, Subject.GANG, gangs):
        parts = ", ".join(f"{_shown(bundle)}*{bundle.count}" for bundle in gang.options[0])
        group = f"{parts} (placement group {gang.gang_id}, {gang.strategy.value})"
        text = f"No available node types can fulfill placement group requests {group}. {_ADVICE}"
        found[f"gang {gang.gang_id}"] = text
    bundles = requests_by_id(
        bundle for constraint in tick.runtime.constraints for bundle in constraint.demands
    )
    for bundle, count in _infeasible(tick, Subject.CONSTRAINT, bundles):
        shown = _shown(bundle)
        text = f"No available node types can fulfill cluster constraint {shown}*{count}. {_ADVICE}"
        found[f"constraint {shown}"] = text
    return found


def _infeasible(tick: TickResult, subject: Subject, items: Mapping[str, T]) -> list[tuple[T, int]]:
    """Requests that no type could ever hold; those that wait for a limit or a back-off are left out."""
    return [
        (items[verdict.subject_id], verdict.count)
        for verdict in tick.plan.verdicts
        if verdict.subject is subject and verdict.reason is Reason.INFEASIBLE and verdict.subject_id in items
    ]


def requests_by_id(demands: Iterable[Demand]) -> dict[str, Demand]:
    """Return demands by the planner's name: their own, or the position among those with a usable count."""
    sane = [demand for demand in demands if demand.count > 0]
    return {demand.name or str(position): demand for position, demand in enumerate(sane)}


def _shown(demand: Demand) -> str:
    selectors = " or ".join(
        " and ".join(f"{m.key} {m.operator.value} ({', '.join(m.values)})" for m in selector)
        for selector in demand.selectors
        if selector
    )
    return f"{{{demand.shape}}}" + (f" with labels {selectors}" if selectors else "")

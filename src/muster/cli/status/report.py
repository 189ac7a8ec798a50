"""Build a StatusReport from the status that the monitor published; pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.autoscaler.events import Event
from muster.autoscaler.shadow_book import ShadowSummary
from muster.autoscaler.status_files import PublishedStatus
from muster.base.resources import SCALE, Resources
from muster.base.text import is_internal, short_id
from muster.cli.plan.report import TypeRow, type_rows
from muster.cluster.model import (
    Demand,
    Gang,
    Instance,
    LabelOperator,
    NodeKind,
    NodeReport,
    NodeStatus,
    RuntimeReport,
)
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.snapshot import Quarantined
from muster.cluster.states import InstanceState
from muster.cluster.status import OfferStatus

FORMAT = 1


class NodeRow(Struct, frozen=True, kw_only=True):
    """One machine of the cluster, or a node that no record knows."""

    instance_id: str  # "" for a node without a record
    node_id: str  # "" while no node runs on it
    cloud_id: str
    node_type: str
    is_head: bool
    state: str = ""  # for users: busy, idle, starting ...
    instance_state: str = ""  # the record's state, Ray's name; "" for a node without a record
    for_s: float | None = None  # how long it has been in that state
    used: Mapping[str, float] = {}
    total: Mapping[str, float] = {}
    price_per_hour: float | None = None
    zone: str = ""  # of the offer it was launched from; "" when its type has none
    market: str = ""
    reason: Reason | None = None  # why it stays or goes
    detail: str


class PendingRow(Struct, frozen=True, kw_only=True):
    """A number of waiting requests that share a reason."""

    kind: str  # demand, gang or constraint
    subject_id: str
    shape: str
    count: int
    reason: Reason
    detail: str
    target: str  # the machine or node type meant
    for_s: float | None
    short_id: str = ""  # of a gang: the beginning of its id that begins no other


class FailureRow(Struct, frozen=True, kw_only=True):
    """A launch that failed recently."""

    at: float
    instance_id: str
    node_type: str
    message: str
    offer: str = ""


class Usage(Struct, frozen=True, kw_only=True):
    """One resource over all nodes that run."""

    used: float
    total: float


class StatusReport(Struct, frozen=True, kw_only=True):
    """The whole answer of `muster status`."""

    format: int = FORMAT
    cluster: str
    address: str = ""
    config: str = ""
    at: float  # of the monitor's newest tick
    age_s: float
    interval_s: float
    monitor_pid: int | None
    log: str = ""
    metrics_port: int | None
    problem: str  # why the rest may be out of date; "" when it is not
    config_problem: str
    notes: tuple[str, ...]  # about the cluster as a whole
    nodes: tuple[NodeRow, ...]
    states: Mapping[str, int]  # record state -> machines
    usage: Mapping[str, Usage]
    pending: tuple[PendingRow, ...]
    node_types: tuple[TypeRow, ...]
    offers: tuple[OfferStatus, ...] = ()
    failures: tuple[FailureRow, ...]
    events: tuple[Event, ...]  # newest first
    set_aside: tuple[Quarantined, ...]
    price_per_hour: float
    spent: float
    budget: str = ""  # what is spent and reserved of it; "" without one
    shadow: ShadowSummary | None = None  # of `muster monitor --shadow`


def shape_of(verdict: Verdict, runtime: RuntimeReport | None) -> str:
    """Return `{CPU: 2}` or `STRICT_SPREAD of 3 x {CPU: 1}`; "" when the report no longer has the request."""
    if runtime is None:
        return ""
    if verdict.subject is Subject.GANG:
        gang = next((g for g in runtime.gangs if g.gang_id == verdict.subject_id), None)
        return "" if gang is None else gang_words(gang)
    if verdict.subject is Subject.CONSTRAINT:
        demands: Sequence[Demand] = [d for c in runtime.constraints for d in c.demands if d.count > 0]
    else:
        demands = [demand for demand in runtime.demands if demand.count > 0]
    # A demand is known by its name, or by its position in the list when it has none.
    named = next((demand for demand in demands if demand.name == verdict.subject_id), None)
    if named is not None or not verdict.subject_id.isdigit():
        found = named
    else:
        index = int(verdict.subject_id)
        found = demands[index] if index < len(demands) else None
    return "" if found is None else demand_words(found)


def demand_words(demand: Demand) -> str:
    """Return one request of the demand as text."""
    words = f"{{{demand.shape.positive()}}}"
    signs = {LabelOperator.IN: "is", LabelOperator.NOT_IN: "is not"}
    alternatives = [
        " and ".join(f"{match.key} {signs[match.operator]} {' or '.join(match.values)}" for match in selector)
        for selector in demand.selectors
        if selector
    ]
    if alternatives:
        words += " where " + " or else ".join(alternatives)
    if demand.avoid is not None:
        words += f" away from {demand.avoid[0]}"
    return words


def gang_words(gang: Gang) -> str:
    """Return a gang's first option as text, and the number of the others."""
    bundles: Counter[str] = Counter()
    for bundle in gang.options[0] if gang.options else ():
        bundles[demand_words(bundle)] += bundle.count
    listed = ", ".join(f"{count} x {words}" for words, count in bundles.items())
    others = f" (or {len(gang.options) - 1} other forms)" if len(gang.options) > 1 else ""
    return f"{gang.strategy.value} of {listed}{others}"


_S = InstanceState
_REQUESTS = (Subject.DEMAND, Subject.GANG, Subject.CONSTRAINT)
_WORDS = {
    _S.QUEUED: "wanted",
    _S.REQUESTED: "requested",
    _S.ALLOCATED: "starting",
    _S.RAY_INSTALLING: "setting up",
    _S.RAY_RUNNING: "running",
    _S.RAY_STOP_REQUESTED: "draining",
    _S.RAY_STOPPING: "draining",
    _S.RAY_STOPPED: "stopped",
    _S.TERMINATING: "terminating",
    _S.ALLOCATION_TIMEOUT: "never came up",
    _S.RAY_INSTALL_FAILED: "setup failed",
    _S.TERMINATION_FAILED: "not gone yet",
}
_RUNNING_WORDS = {NodeStatus.IDLE: "idle", NodeStatus.RUNNING: "busy", NodeStatus.DRAINING: "draining"}
_ORDER = {word: position for position, word in enumerate(("busy", "idle", "running", "draining"))}


def build_report(published: PublishedStatus, *, now: float, problem: str = "") -> StatusReport:
    """Build the report; `problem` is why the status may be out of date. The caller adds the files."""
    age_s = max(0.0, now - published.at)
    nodes = tuple(_nodes(published, 0.0 if problem else age_s))
    verdicts = published.status.verdicts
    return StatusReport(
        cluster=published.cluster_name,
        at=published.at,
        age_s=age_s,
        interval_s=published.interval_s,
        monitor_pid=published.monitor_pid,
        metrics_port=published.metrics_port,
        problem=problem,
        config_problem=published.config_problem,
        notes=tuple(_notes(published)),
        nodes=nodes,
        states=dict(sorted(Counter(i.state.name for i in published.instances).items())),
        usage=_usage(nodes),
        pending=tuple(_pending(published)),
        node_types=type_rows(verdicts),
        offers=published.status.offers,
        failures=tuple(
            FailureRow(
                at=f.failed_at,
                instance_id=f.instance_id,
                node_type=f.node_type,
                message=f.reason,
                offer=f.offer,
            )
            for f in sorted(published.recent_failures, key=lambda f: -f.failed_at)
        ),
        events=tuple(reversed(published.events)),
        set_aside=published.quarantined,
        price_per_hour=published.status.price_per_hour,
        spent=published.status.spent,
        budget=published.status.budget,
        shadow=published.shadow,
    )


def node_word(instance: Instance, report: NodeReport | None) -> str:
    """Return a user's word for the machine's state."""
    if instance.state is _S.RAY_RUNNING and report is not None:
        return _RUNNING_WORDS.get(report.status, "running")
    return _WORDS.get(instance.state, instance.state.name.lower())


def detail_of(verdict: Verdict) -> str:
    """Return the verdict's own sentence, or one for the reasons that need none."""
    if verdict.detail:
        return verdict.detail
    sentences = {
        Reason.PLACED: "fits on {}, which runs",
        Reason.WAITING_FOR_NODE: "{} is on its way",
        Reason.WAITING_FOR_LAUNCH: "a machine of type {} is being launched",
        Reason.WAITING_FOR_RESIZE: "{} is being enlarged",
    }
    return sentences.get(verdict.reason, "{}").format(verdict.target)


def shown_resources(resources: Resources) -> dict[str, float]:
    """Return the resources without those Ray adds for nodes and placement groups."""
    return {name: units / SCALE for name, units in resources.items() if not is_internal(name)}


def _nodes(published: PublishedStatus, age_s: float) -> list[NodeRow]:
    reports = {node.node_id: node for node in published.runtime.nodes} if published.runtime else {}
    why = _node_verdicts(published.status.verdicts)
    rows = []
    for instance in published.instances:
        report = reports.pop(instance.node_id, None) if instance.node_id else None
        facts = _of_record(instance, why.get(instance.instance_id))
        rows.append(replace(facts, **_of_node(report), **_state(instance, report, published.at, age_s)))
    rows += [_without_record(node) for node in reports.values() if node.status is not NodeStatus.DEAD]
    return sorted(rows, key=lambda row: (not row.is_head, _ORDER.get(row.state, 9), row.node_type))


# What is wrong with a machine is not hidden by why it is kept.
_TROUBLES = frozenset({Reason.RESIZE_FAILED, Reason.STUCK})
_KEPT = frozenset(reason for reason in Reason if reason.name.startswith("KEPT_"))


def _node_verdicts(verdicts: Iterable[Verdict]) -> dict[str, Verdict]:
    """Return the verdict that is shown of each machine: the newest, unless an earlier one is a trouble."""
    shown: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.subject is not Subject.NODE:
            continue
        before = shown.get(verdict.subject_id)
        if before is None or before.reason not in _TROUBLES or verdict.reason not in _KEPT:
            shown[verdict.subject_id] = verdict
    return shown


def _of_record(instance: Instance, verdict: Verdict | None) -> NodeRow:
    return NodeRow(
        instance_id=instance.instance_id,
        node_id=instance.node_id or "",
        cloud_id=instance.cloud_id or "",
        node_type=instance.node_type,
        is_head=instance.kind is NodeKind.HEAD,
        instance_state=instance.state.name,
        price_per_hour=instance.price_per_hour,
        zone=instance.offer.zone if instance.offer else "",
        market=instance.offer.market if instance.offer else "",
        reason=verdict.reason if verdict else None,
        detail=verdict.detail if verdict else instance.details,
    )


def _of_node(report: NodeReport | None) -> dict[str, Any]:
    if report is None or report.status is NodeStatus.DEAD:
        return {}
    total, free = shown_resources(report.total), shown_resources(report.available)
    used = {name: max(0.0, quantity - free.get(name, 0.0)) for name, quantity in total.items()}
    return {"used": used, "total": total}


def _state(instance: Instance, report: NodeReport | None, at: float, age_s: float) -> dict[str, Any]:
    """An idle node's time is the runtime's; that of a transitional state is the record's."""
    word = node_word(instance, report)
    if word == "idle" and report is not None:
        return {"state": word, "for_s": report.idle_s + age_s}
    if instance.state is _S.RAY_RUNNING or not math.isfinite(instance.since):
        return {"state": word}
    return {"state": word, "for_s": max(0.0, at + age_s - instance.since)}


def _without_record(node: NodeReport) -> NodeRow:
    row = NodeRow(
        instance_id="",
        node_id=node.node_id,
        cloud_id=node.cloud_id or "",
        node_type=node.node_type,
        is_head=node.is_head,
        state=_RUNNING_WORDS.get(node.status, "running"),
        for_s=node.idle_s if node.status is NodeStatus.IDLE else None,
        detail="not started by muster",
    )
    return replace(row, **_of_node(node))


def _usage(nodes: Iterable[NodeRow]) -> dict[str, Usage]:
    used: defaultdict[str, float] = defaultdict(float)
    total: defaultdict[str, float] = defaultdict(float)
    for row in nodes:
        for name, quantity in row.total.items():
            total[name] += quantity
            used[name] += row.used.get(name, 0.0)
    return {name: Usage(used=used[name], total=total[name]) for name in sorted(total)}


def _pending(published: PublishedStatus) -> Iterator[PendingRow]:
    verdicts = [verdict for verdict in published.status.verdicts if verdict.subject in _REQUESTS]
    gangs = [verdict.subject_id for verdict in verdicts if verdict.subject is Subject.GANG]
    for verdict in verdicts:
        row = _pending_row(verdict, published)
        is_gang = verdict.subject is Subject.GANG
        yield replace(row, short_id=short_id(row.subject_id, gangs)) if is_gang else row


def _pending_row(verdict: Verdict, published: PublishedStatus) -> PendingRow:
    return PendingRow(
        kind=verdict.subject.value,
        subject_id=verdict.subject_id,
        shape=shape_of(verdict, published.runtime),
        count=verdict.count,
        reason=verdict.reason,
        detail=detail_of(verdict),
        target=verdict.target,
        for_s=None if verdict.since is None else max(0.0, published.at - verdict.since),
    )


def _notes(published: PublishedStatus) -> Iterator[str]:
    if published.shadow is not None:
        yield from published.shadow.lines()
    for verdict in published.status.verdicts:
        if verdict.subject is Subject.CLUSTER:
            yield f"{verdict.reason.value}: {verdict.detail}" if verdict.detail else verdict.reason.value
    if published.runtime is None:
        yield "the runtime could not be read in the newest tick: nodes and demand are not known"

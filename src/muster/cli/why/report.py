"""Puts a WhyReport together: the verdict of now and the story of the ledger. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec import Struct

from muster.cli.status.report import NodeRow, PendingRow, StatusReport, TypeRow, build_report
from muster.cli.why.command import DEMAND, GANG, MACHINE, NODE_TYPE, Known, Meant
from muster.cluster.model import Instance
from muster.cluster.plan import Reason, Subject
from muster.cluster.spend import cost_of
from muster.cluster.states import TERMINAL
from muster.stores.ledger.history import Decision

FORMAT = 1


class StoryLine(Struct, frozen=True, kw_only=True):
    """One thing that happened, or one verdict that changed."""

    at: float
    what: str  # a state, or a verdict
    details: str
    count: int = 1


class MachineStory(Struct, frozen=True, kw_only=True):
    """One machine, from wish to grave."""

    instance_id: str
    node_type: str
    state: str
    cost: float
    ended: bool
    story: tuple[StoryLine, ...]


class WhyReport(Struct, frozen=True, kw_only=True):
    """The whole answer of `muster why`; parts that do not concern the subject are empty."""

    format: int = FORMAT
    cluster: str
    subject: str
    kind: str  # machine, node type, gang or demand
    at: float  # of the newest look; 0 when there was none
    problem: str  # why what is said about now may be out of date
    machine: NodeRow | None  # as it is now
    pending: tuple[PendingRow, ...]
    node_types: tuple[TypeRow, ...]
    machines: tuple[MachineStory, ...]
    story: tuple[StoryLine, ...]  # how its verdicts changed


MAX_MACHINES = 10  # of a type: the newest
_VERDICTS = {GANG: Subject.GANG.value, NODE_TYPE: Subject.NODE_TYPE.value}


def answer(meant: Meant, known: Known) -> WhyReport:
    """Everything that concerns the subject."""
    report = None
    if known.published is not None:
        report = build_report(known.published, now=known.now, problem=known.problem)
    return WhyReport(
        cluster=known.cluster,
        subject=meant.key or DEMAND,
        kind=meant.kind,
        at=known.published.at if known.published is not None else 0.0,
        problem=known.problem,
        machine=_machine_now(meant, report),
        pending=tuple(_pending(meant, report)),
        node_types=tuple(_types(meant, report)),
        machines=tuple(_stories(meant, known)),
        story=tuple(_verdict_story(meant, known.decisions)),
    )


def _machine_now(meant: Meant, report: StatusReport | None) -> NodeRow | None:
    rows = report.nodes if report is not None and meant.kind == MACHINE else ()
    return next((row for row in rows if row.instance_id == meant.key), None)


def _pending(meant: Meant, report: StatusReport | None) -> Iterator[PendingRow]:
    """Requests that the subject is, or that wait for it."""
    for row in report.pending if report is not None else ():
        is_it = meant.kind == DEMAND or (meant.kind == GANG and row.subject_id == meant.key)
        can_have_it = row.reason is not Reason.INFEASIBLE  # else the target is only the nearest miss
        waits_for_it = meant.kind in (MACHINE, NODE_TYPE) and row.target == meant.key and can_have_it
        if is_it or waits_for_it:
            yield row


def _types(meant: Meant, report: StatusReport | None) -> Iterator[TypeRow]:
    for row in report.node_types if report is not None else ():
        if meant.kind in (DEMAND, GANG) or (meant.kind == NODE_TYPE and row.node_type == meant.key):
            yield row


def _stories(meant: Meant, known: Known) -> Iterator[MachineStory]:
    """Of one machine, or of the newest machines of a type; live records as they were published."""
    merged = {record.instance_id: record for record in known.records}
    if not merged and known.published is not None:
        merged = {record.instance_id: record for record in known.published.instances}
    if meant.kind == MACHINE:
        chosen = [record for record in merged.values() if record.instance_id == meant.key]
    elif meant.kind == NODE_TYPE:
        of_type = [record for record in merged.values() if record.node_type == meant.key]
        chosen = sorted(of_type, key=_began, reverse=True)[:MAX_MACHINES]
    else:
        chosen = []
    return (_story(record, known.now) for record in chosen)


def _began(record: Instance) -> float:
    return record.history[0].at if record.history else -math.inf


def _story(record: Instance, now: float) -> MachineStory:
    lines = (StoryLine(at=c.at, what=c.state.name, details=c.details) for c in record.history)
    return MachineStory(
        instance_id=record.instance_id,
        node_type=record.node_type,
        state=record.state.name,
        cost=cost_of(record, now),
        ended=record.state in TERMINAL,
        story=tuple(lines),
    )


def _verdict_story(meant: Meant, decisions: Iterable[Decision]) -> Iterator[StoryLine]:
    """One line per change, oldest first. Demands without a name have no identity over time: none for them."""
    subject = _VERDICTS.get(meant.kind)
    last: tuple[object, ...] = ()
    for decision in sorted(decisions, key=lambda one: one.version) if subject else ():
        told = [v for v in decision.verdicts if v.get("subject") == subject and v["subject_id"] == meant.key]
        current = tuple(
            (v["reason"], v.get("count", 1), v.get("detail") or v.get("target", "")) for v in told
        )
        if current and current != last:
            for reason, count, detail in current:
                yield StoryLine(at=decision.at, what=str(reason), details=str(detail), count=int(count))
        last = current or last

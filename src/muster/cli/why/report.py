"""Puts a WhyReport together: the verdict of now and the story of the ledger. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from rich.console import RenderableType
from rich.text import Text

from muster.cli.format import clock_time, money, span, used_of
from muster.cli.plan.view import BAD, HEADING, QUIET
from muster.cli.status.report import NodeRow, PendingRow, StatusReport, TypeRow, build_report
from muster.cli.status.status_frame import Frame, Grid, pending_section
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


MAX_LINES = 40  # of one story: the newest


def why_page(report: WhyReport, frame: Frame) -> Iterator[RenderableType]:
    """Top to bottom."""
    yield Text.assemble((_headline(report), HEADING), (f"  of {report.cluster}", QUIET))
    if report.problem:
        yield Text(report.problem, style=BAD)
    yield from _now(report)
    titles = {MACHINE: "Waiting for it", NODE_TYPE: "Waiting for machines of this type"}
    yield from pending_section(titles.get(report.kind, "Waiting"), report.pending, frame)
    yield from _types_section(report, frame)
    for machine in report.machines:
        title = "Story" if report.kind == MACHINE else _machine_line(machine)
        yield from _story_section(title, machine.story, frame)
    yield from _story_section("Story", report.story, frame)


def _headline(report: WhyReport) -> str:
    return "everything that waits" if report.kind == DEMAND else f"{report.kind} {report.subject}"


def _now(report: WhyReport) -> Iterator[Text]:
    row = report.machine
    if row is not None:
        lasted = f" for {span(row.for_s)}" if row.for_s is not None else ""
        used = used_of(dict(row.used), dict(row.total), tuple(sorted(row.total)))
        yield Text(f"now    {row.state}{lasted}, type {row.node_type}" + (f", {used} in use" if used else ""))
        if row.reason is not None:
            yield Text(f"why    {row.reason.value}" + (f": {row.detail}" if row.detail else ""))
    elif report.kind == MACHINE and report.machines:
        yield Text(f"now    {'gone' if report.machines[0].ended else report.machines[0].state}")
    if report.kind == MACHINE and report.machines:
        yield Text(f"cost   {money(report.machines[0].cost)} so far")
    if report.kind == DEMAND and not report.pending:
        yield Text("Nothing is waiting.")
    if report.kind == GANG and not report.pending:
        yield Text("now    not waiting any more: placed, or given up")


def _types_section(report: WhyReport, frame: Frame) -> Iterator[RenderableType]:
    """Every type's own reason; for a type that nobody needs there is none."""
    grid = Grid("type", "verdict", "")
    for row in report.node_types:
        grid.add(row.node_type, row.reason.value, row.detail)
    yield from grid.section("Node types", frame, of=len(report.node_types))
    if report.kind == NODE_TYPE and not report.node_types:
        yield Text("now    no more machines of this type are needed")


def _machine_line(machine: MachineStory) -> str:
    return f"{machine.instance_id}: {machine.state}, {money(machine.cost)}"


def _story_section(title: str, lines: Sequence[StoryLine], frame: Frame) -> Iterator[RenderableType]:
    """With the time since the line before: what took long is seen at once."""
    grid = Grid("at", ">after", "", "")
    shown = lines[-MAX_LINES:]
    before = [None, *(line.at for line in shown)]
    for line, earlier in zip(shown, before, strict=False):
        count = f" x {line.count}" if line.count > 1 else ""
        after = "" if earlier is None else span(line.at - earlier)
        grid.add(clock_time(line.at), after, f"{line.what}{count}", line.details)
    return grid.section(title, frame, of=len(shown))

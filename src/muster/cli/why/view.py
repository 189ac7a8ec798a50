"""A WhyReport for people: what holds now, then how it came to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from muster.cli.format import clock_time, money, span, used_of
from muster.cli.plan.view import BAD, HEADING, QUIET
from muster.cli.status.pending_view import pending_section
from muster.cli.status.status_frame import Frame, Grid
from muster.cli.why.command import DEMAND, GANG, MACHINE, NODE_TYPE
from muster.cli.why.report import MachineStory, StoryLine, WhyReport

MAX_LINES = 40  # of one story: the newest


def why_page(report: WhyReport, frame: Frame) -> Iterator[RenderableType]:
    """Top to bottom."""
    yield Text.assemble((_headline(report), HEADING), (f"  of {report.cluster}", QUIET))
    if report.problem:
        yield Text(report.problem, style=BAD)
    yield from _now(report)
    titles = {MACHINE: "Waiting for it", NODE_TYPE: "Waiting for machines of this type"}
    yield from pending_section(titles.get(report.kind, "Waiting"), report.pending, frame)
    yield from _types(report, frame)
    for machine in report.machines:
        title = "Story" if report.kind == MACHINE else _machine_line(machine)
        yield from _story(title, machine.story, frame)
    yield from _story("Story", report.story, frame)


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


def _types(report: WhyReport, frame: Frame) -> Iterator[RenderableType]:
    """Every type's own reason; for a type that nobody needs there is none."""
    grid = Grid("type", "verdict", "")
    for row in report.node_types:
        grid.add(row.node_type, row.reason.value, row.detail)
    yield from grid.section("Node types", frame, of=len(report.node_types))
    if report.kind == NODE_TYPE and not report.node_types:
        yield Text("now    no more machines of this type are needed")


def _machine_line(machine: MachineStory) -> str:
    return f"{machine.instance_id}: {machine.state}, {money(machine.cost)}"


def _story(title: str, lines: Sequence[StoryLine], frame: Frame) -> Iterator[RenderableType]:
    """With the time since the line before: what took long is seen at once."""
    grid = Grid("at", ">after", "", "")
    shown = lines[-MAX_LINES:]
    before = [None, *(line.at for line in shown)]
    for line, earlier in zip(shown, before, strict=False):
        count = f" x {line.count}" if line.count > 1 else ""
        after = "" if earlier is None else span(line.at - earlier)
        grid.add(clock_time(line.at), after, f"{line.what}{count}", line.details)
    return grid.section(title, frame, of=len(shown))

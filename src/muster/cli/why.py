"""Implements `muster why`: the reason for a machine, a request or a node type, and its history."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Iterator, Sequence

import click
from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from muster.autoscaler.known_clusters import KnownCluster, clusters_root, find_cluster
from muster.autoscaler.status_files import PublishedStatus
from muster.base.clock import SystemClock
from muster.base.codec import encode_plain
from muster.base.text import clock_time, money, short_duration, used_of
from muster.cli.console import BAD, HEADING, QUIET, console, emit
from muster.cli.plan.report import TypeRow
from muster.cli.status.report import NodeRow, PendingRow, StatusReport, build_report
from muster.cli.status.view import PageSize, TableGrid, pending_section
from muster.cluster.model import Instance
from muster.cluster.plan import Reason, Subject
from muster.cluster.spend import cost_of
from muster.cluster.states import TERMINAL
from muster.errors import ClusterError
from muster.stores.ledger.history import Decision, open_history

MACHINE, NODE_TYPE, GANG, DEMAND = "machine", "node type", "gang", "demand"
ALL_DEMAND = frozenset({"demand", "demands", "pending", "waiting"})
_SHORTEST_PREFIX = 3
_MAX_SHOWN = 6


class Known(Struct, frozen=True, kw_only=True):
    """A Known is all the data that answers are made from."""

    cluster: str
    now: float
    published: PublishedStatus | None
    problem: str
    node_types: tuple[str, ...] = ()  # of the cluster's file
    records: tuple[Instance, ...] = ()  # of the ledger, ended ones included
    decisions: Sequence[Decision] = ()  # newest first


class WhySubject(Struct, frozen=True, kw_only=True):
    """A WhySubject is the subject of a question; `key` is its instance id, type name or gang id."""

    kind: str
    key: str


def find_subject(word: str, known: Known) -> WhySubject:
    """Finds the subject by its name or the beginning of it. Raises ClusterError with the nearest names."""
    if word.lower() in ALL_DEMAND:
        return WhySubject(kind=DEMAND, key="")
    names = _names(known)
    if word in names:
        return names[word]
    is_long_enough = len(word) >= _SHORTEST_PREFIX
    found = {name: about for name, about in names.items() if is_long_enough and name.startswith(word)}
    if len({(about.kind, about.key) for about in found.values()}) == 1:
        return next(iter(found.values()))
    if found:
        raise ClusterError(f"{word!r} is the beginning of {_listed(found)}: give more characters")
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {_listed(close)}?" if close else f"there are {_listed(names)}"
    raise ClusterError(
        f"nothing here is called {word!r}; {hint if names else 'nothing has happened here yet'} "
        f"(`muster why demand` shows everything that waits)"
    )


def _names(known: Known) -> dict[str, WhySubject]:
    """Node types come first: their names are the shortest."""
    now = known.published
    everything = [*known.records, *(now.instances if now is not None else ())]
    types = [*known.node_types, *(record.node_type for record in everything)]
    names = {name: WhySubject(kind=NODE_TYPE, key=name) for name in types if name}
    for verdict in now.status.verdicts if now is not None else ():
        if verdict.subject is Subject.NODE_TYPE:
            names[verdict.subject_id] = WhySubject(kind=NODE_TYPE, key=verdict.subject_id)
        if verdict.subject is Subject.GANG:
            names[verdict.subject_id] = WhySubject(kind=GANG, key=verdict.subject_id)
    for decision in known.decisions:
        for past in decision.verdicts:
            if past.get("subject") == Subject.GANG.value:
                names.setdefault(past["subject_id"], WhySubject(kind=GANG, key=past["subject_id"]))
    for record in everything:
        for name in (record.instance_id, record.cloud_id, record.node_id):
            if name:
                names.setdefault(name, WhySubject(kind=MACHINE, key=record.instance_id))
    return names


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    return ", ".join(repr(name) for name in shown[:_MAX_SHOWN]) + more


DECISIONS = 2000  # how many of the newest are read

_EPILOG = """\b
SUBJECT is one of
  demand                 everything that waits, and why
  a machine              as `muster status` shows it; also its node's id, or the provider's
  a node type            why it is bought or not, and the history of its newest machines
  a placement group      by its id
The beginning of an id is enough.

\b
Examples:
  muster why demand
  muster why t-5f4e3d2c1b0a-i2
  muster why big examples/laptop.yaml --json | jq '.machines[].story'
"""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("subject")
@click.argument("cluster", required=False, metavar="[FILE|NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def why(subject: str, cluster: str | None, as_json: bool) -> None:
    """Show why SUBJECT is as it is: the reason now, and its history from the ledger.

    Without the name of a cluster: the only one that is up.
    """
    known = known_of(find_cluster(cluster, clusters_root(os.environ)))
    about = find_subject(subject, known)
    report = answer(about, known)
    if as_json:
        emit(encode_plain(report))
        return
    page = console()
    for part in why_page(report, PageSize(width=page.width)):
        page.print(part)


def known_of(cluster: KnownCluster) -> Known:
    """Reads the published status and the ledger of a cluster, whichever of them exists."""
    now, published = SystemClock().now(), cluster.status()
    known = Known(
        cluster=cluster.name,
        now=now,
        published=published,
        problem="" if published is None else cluster.problem(published, now),
        node_types=cluster.node_types(),
    )
    if not cluster.home.ledger.is_file():
        return known
    with open_history(cluster.home.ledger) as history:
        return replace(known, records=history.find(), decisions=history.decisions(limit=DECISIONS))


FORMAT = 1


class StoryLine(Struct, frozen=True, kw_only=True):
    """A StoryLine is one event, or one verdict that changed."""

    at: float
    what: str  # a state, or a verdict
    details: str
    count: int = 1


class MachineStory(Struct, frozen=True, kw_only=True):
    """A MachineStory is the history of one machine."""

    instance_id: str
    node_type: str
    state: str
    cost: float
    ended: bool
    story: tuple[StoryLine, ...]


class WhyReport(Struct, frozen=True, kw_only=True):
    """A WhyReport is the whole answer of `muster why`; parts that do not concern the subject are empty."""

    format: int = FORMAT
    cluster: str
    subject: str
    kind: str  # machine, node type, gang or demand
    at: float  # of the newest tick; 0 when there was none
    problem: str  # why the present state may be out of date
    machine: NodeRow | None  # as it is now
    pending: tuple[PendingRow, ...]
    node_types: tuple[TypeRow, ...]
    machines: tuple[MachineStory, ...]
    story: tuple[StoryLine, ...]  # how its verdicts changed


MAX_MACHINES = 10  # of a type: the newest
_VERDICTS = {GANG: Subject.GANG.value, NODE_TYPE: Subject.NODE_TYPE.value}


def answer(about: WhySubject, known: Known) -> WhyReport:
    """Returns everything that concerns the subject."""
    report = None
    if known.published is not None:
        report = build_report(known.published, now=known.now, problem=known.problem)
    return WhyReport(
        cluster=known.cluster,
        subject=about.key or DEMAND,
        kind=about.kind,
        at=known.published.at if known.published is not None else 0.0,
        problem=known.problem,
        machine=_machine_now(about, report),
        pending=tuple(_pending(about, report)),
        node_types=tuple(_types(about, report)),
        machines=tuple(_stories(about, known)),
        story=tuple(_verdict_story(about, known.decisions)),
    )


def _machine_now(about: WhySubject, report: StatusReport | None) -> NodeRow | None:
    rows = report.nodes if report is not None and about.kind == MACHINE else ()
    return next((row for row in rows if row.instance_id == about.key), None)


def _pending(about: WhySubject, report: StatusReport | None) -> Iterator[PendingRow]:
    """Yields the requests that are the subject, or that wait for it."""
    for row in report.pending if report is not None else ():
        is_it = about.kind == DEMAND or (about.kind == GANG and row.subject_id == about.key)
        can_have_it = row.reason is not Reason.INFEASIBLE  # else the target is only the nearest miss
        waits_for_it = about.kind in (MACHINE, NODE_TYPE) and row.target == about.key and can_have_it
        if is_it or waits_for_it:
            yield row


def _types(about: WhySubject, report: StatusReport | None) -> Iterator[TypeRow]:
    for row in report.node_types if report is not None else ():
        if about.kind in (DEMAND, GANG) or (about.kind == NODE_TYPE and row.node_type == about.key):
            yield row


def _stories(about: WhySubject, known: Known) -> Iterator[MachineStory]:
    """Yields the history of one machine, or of the newest machines of a type."""
    merged = {record.instance_id: record for record in known.records}
    if not merged and known.published is not None:
        merged = {record.instance_id: record for record in known.published.instances}
    if about.kind == MACHINE:
        chosen = [record for record in merged.values() if record.instance_id == about.key]
    elif about.kind == NODE_TYPE:
        of_type = [record for record in merged.values() if record.node_type == about.key]
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


def _verdict_story(about: WhySubject, decisions: Iterable[Decision]) -> Iterator[StoryLine]:
    """Yields one line per change, oldest first. Demands without a name cannot be followed over time."""
    subject = _VERDICTS.get(about.kind)
    last: tuple[object, ...] = ()
    for decision in sorted(decisions, key=lambda one: one.version) if subject else ():
        own = [v for v in decision.verdicts if v.get("subject") == subject and v["subject_id"] == about.key]
        current = tuple((v["reason"], v.get("count", 1), v.get("detail") or v.get("target", "")) for v in own)
        if current and current != last:
            for reason, count, detail in current:
                yield StoryLine(at=decision.at, what=str(reason), details=str(detail), count=int(count))
        last = current or last


MAX_LINES = 40  # of one story: the newest


def why_page(report: WhyReport, frame: PageSize) -> Iterator[RenderableType]:
    """Yields the page, top to bottom."""
    headline = "everything that waits" if report.kind == DEMAND else f"{report.kind} {report.subject}"
    yield Text.assemble((headline, HEADING), (f"  of {report.cluster}", QUIET))
    if report.problem:
        yield Text(report.problem, style=BAD)
    yield from _now(report)
    titles = {MACHINE: "Waiting for it", NODE_TYPE: "Waiting for machines of this type"}
    yield from pending_section(titles.get(report.kind, "Waiting"), report.pending, frame)
    yield from _types_section(report, frame)
    for machine in report.machines:
        summary = f"{machine.instance_id}: {machine.state}, {money(machine.cost)}"
        yield from _story_section("Story" if report.kind == MACHINE else summary, machine.story, frame)
    yield from _story_section("Story", report.story, frame)


def _now(report: WhyReport) -> Iterator[Text]:
    row = report.machine
    if row is not None:
        lasted = f" for {short_duration(row.for_s)}" if row.for_s is not None else ""
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


def _types_section(report: WhyReport, frame: PageSize) -> Iterator[RenderableType]:
    """Every type has its own reason; a type that is not needed has none."""
    grid = TableGrid("type", "verdict", "")
    for row in report.node_types:
        grid.add(row.node_type, row.reason.value, row.detail)
    yield from grid.section("Node types", frame, of=len(report.node_types))
    if report.kind == NODE_TYPE and not report.node_types:
        yield Text("now    no more machines of this type are needed")


def _story_section(title: str, lines: Sequence[StoryLine], frame: PageSize) -> Iterator[RenderableType]:
    """The column `after` is the time since the line before, so that slow steps are easy to see."""
    grid = TableGrid("at", ">after", "", "")
    shown = lines[-MAX_LINES:]
    before = [None, *(line.at for line in shown)]
    for line, earlier in zip(shown, before, strict=False):
        count = f" x {line.count}" if line.count > 1 else ""
        after = "" if earlier is None else short_duration(line.at - earlier)
        grid.add(clock_time(line.at), after, f"{line.what}{count}", line.details)
    return grid.section(title, frame, of=len(shown))

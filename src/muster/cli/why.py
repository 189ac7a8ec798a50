"""Implement `muster why`: the reason for a machine, a request or a node type, and its history."""

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

from muster.autoscaler.events import REMOVED_BECAUSE
from muster.autoscaler.known_clusters import KnownCluster, clusters_root, find_cluster, is_launched
from muster.autoscaler.status_files import PublishedStatus
from muster.base.clock import SystemClock
from muster.base.codec import encode_plain
from muster.base.text import clock_time, money, short_duration, used_of
from muster.cli.console import BAD, HEADING, QUIET, TABLE_WIDTH, console, emit
from muster.cli.grid import PageSize, TableGrid
from muster.cli.plan.report import TypeRow
from muster.cli.status.report import NodeRow, PendingRow, StatusReport, build_report
from muster.cli.status.view import offers_section, pending_section
from muster.cluster.cost import cost_of
from muster.cluster.model import Instance, NodeReport, offer_name
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.states import TERMINAL
from muster.cluster.status import OfferStatus
from muster.errors import ClusterError
from muster.stores.ledger.history import Decision, open_history

MACHINE, NODE_TYPE, GANG, DEMAND = "machine", "node type", "gang", "demand"
ALL_DEMAND = frozenset({"demand", "demands", "pending", "waiting"})
_SHORTEST_PREFIX = 3
_MAX_SHOWN = 6


class Known(Struct, frozen=True, kw_only=True):
    """All the data that answers are made from."""

    cluster: str
    now: float
    published: PublishedStatus | None
    problem: str
    node_types: tuple[str, ...] = ()  # of the cluster's file
    records: tuple[Instance, ...] = ()  # of the ledger, ended ones included
    decisions: Sequence[Decision] = ()  # newest first


class WhySubject(Struct, frozen=True, kw_only=True):
    """The subject of a question; `key` is its instance id, type name or gang id."""

    kind: str
    key: str


def find_subject(word: str, known: Known) -> WhySubject:
    """Find the subject by its name or the beginning of it. Raises ClusterError with the nearest names."""
    if word.lower() in ALL_DEMAND:
        return WhySubject(kind=DEMAND, key="")
    names = _names(known)
    if word in names:
        return names[word]
    is_long_enough = len(word) >= _SHORTEST_PREFIX
    found = {name: about for name, about in names.items() if is_long_enough and name.startswith(word)}
    machines = known.published.instances if known.published is not None else ()
    gangs = {verdict.subject_id for verdict in _verdicts(known) if verdict.subject is Subject.GANG}
    live = gangs | {record.instance_id for record in machines} | {node.node_id for node in _nodes(known)}
    for candidates in (found, {name: about for name, about in found.items() if about.key in live}):
        if len({(about.kind, about.key) for about in candidates.values()}) == 1:
            return next(iter(candidates.values()))
    if found:
        raise ClusterError(f"{word!r} is the beginning of {_listed(found)}: give more characters")
    raise ClusterError(_unknown(word, known))


def _unknown(word: str, known: Known) -> str:
    """Return an error with the names that people use; the ids of nodes are left out."""
    node_ids = {record.node_id for record in _records(known)} | {node.node_id for node in _nodes(known)}
    names = {name: about.kind for name, about in _names(known).items() if name not in node_ids}
    if not names:
        return f"nothing here is called {word!r}; nothing has happened here yet: `muster up FILE` starts it"
    listed = {record.instance_id: f"{record.instance_id} ({record.node_type})" for record in _records(known)}
    types = sorted(name for name, kind in names.items() if kind == NODE_TYPE)
    titled = {"node types": types, "machines": list(listed.values())}
    choices = "; ".join(f"{title}: {_some(found)}" for title, found in titled.items() if found)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {_listed(close)}?" if close else "give one of these"
    waits = "(`muster why demand` shows everything that waits)"
    return f"nothing here is called {word!r}; {choices}; {hint} {waits}"


def _records(known: Known) -> list[Instance]:
    """Return every record that is known, live ones first."""
    live = known.published.instances if known.published is not None else ()
    return [*live, *known.records]


def _nodes(known: Known) -> tuple[NodeReport, ...]:
    runtime = known.published.runtime if known.published is not None else None
    return runtime.nodes if runtime is not None else ()


def _verdicts(known: Known) -> tuple[Verdict, ...]:
    return known.published.status.verdicts if known.published is not None else ()


def _names(known: Known) -> dict[str, WhySubject]:
    """Node types come first: their names are the shortest."""
    types = [*known.node_types, *(record.node_type for record in _records(known))]
    names = {name: WhySubject(kind=NODE_TYPE, key=name) for name in types if name}
    kinds = {Subject.NODE_TYPE: NODE_TYPE, Subject.GANG: GANG}
    for verdict in _verdicts(known):
        if verdict.subject in kinds:
            names[verdict.subject_id] = WhySubject(kind=kinds[verdict.subject], key=verdict.subject_id)
    for past in (one for decision in known.decisions for one in decision.verdicts):
        if past.get("subject") == Subject.GANG.value:
            names.setdefault(past["subject_id"], WhySubject(kind=GANG, key=past["subject_id"]))
    for record in _records(known):
        ips = (record.internal_ip, record.external_ip)
        for name in filter(None, (record.instance_id, record.cloud_id, record.node_id, *ips)):
            names.setdefault(name, WhySubject(kind=MACHINE, key=record.instance_id))
    for node in _nodes(known):
        names.setdefault(node.node_id, WhySubject(kind=MACHINE, key=node.node_id))  # without a record
    return names


def _listed(names: Iterable[str]) -> str:
    return _some([repr(name) for name in sorted(names)])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more


DECISIONS = 2000  # how many of the newest are read

_EPILOG = """\b
SUBJECT is one of
  demand                 every waiting request and its reason
  a machine              its id in `muster status`, node id, ip, or cloud id
  a node type            why muster launches it or not, and its newest machines
  a placement group      its id
A unique prefix of an id is enough.

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
@click.pass_context
def why(ctx: click.Context, /, subject: str, cluster: str | None, as_json: bool) -> None:
    """Explain the state of SUBJECT, with its history from the ledger.

    Default cluster: the only one that is up.
    """
    from muster.cli.ray_cluster import explain_in_ray_cluster, manifest_of

    manifest = manifest_of(cluster)
    if manifest is not None:
        explain_in_ray_cluster(subject, manifest, as_json=as_json)
        return
    if is_launched(cluster, clusters_root(os.environ)):
        from muster.cli.cluster.commands import ask_head

        ctx.exit(ask_head(str(cluster), "why", [subject, *(["--json"] if as_json else [])]))
    known = known_of(find_cluster(cluster, clusters_root(os.environ)))
    about = find_subject(subject, known)
    report = answer(about, known)
    if as_json:
        emit(encode_plain(report))
        return
    page = console(TABLE_WIDTH)
    for part in why_page(report, PageSize(width=page.width)):
        page.print(part)


def known_of(cluster: KnownCluster) -> Known:
    """Read the published status and the ledger of a cluster, whichever of them exists."""
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
    """One event, or one verdict that changed."""

    at: float
    what: str  # a state, or a verdict
    details: str
    count: int = 1


class MachineStory(Struct, frozen=True, kw_only=True):
    """The history of one machine."""

    instance_id: str
    node_type: str
    state: str
    zone: str = ""  # of the offer it was launched from; "" when its type had none
    market: str = ""
    cost: float
    ended: bool
    cause: str = ""  # why it went: "lost: its node is dead", "removed: idle"
    story: tuple[StoryLine, ...]


class WhyReport(Struct, frozen=True, kw_only=True):
    """The whole answer of `muster why`; parts that do not concern the subject are empty."""

    format: int = FORMAT
    cluster: str
    subject: str
    kind: str  # machine, node type, gang or demand
    at: float  # of the newest tick; 0 when there was none
    problem: str  # why the present state may be out of date
    machine: NodeRow | None  # as it is now
    pending: tuple[PendingRow, ...]
    node_types: tuple[TypeRow, ...]
    offers: tuple[OfferStatus, ...] = ()  # of the node type
    machines: tuple[MachineStory, ...]
    story: tuple[StoryLine, ...]  # how its verdicts changed


MAX_MACHINES = 10  # of a type: the newest
_VERDICTS = {GANG: Subject.GANG.value, NODE_TYPE: Subject.NODE_TYPE.value}


def answer(about: WhySubject, known: Known) -> WhyReport:
    """Return everything that concerns the subject."""
    report = None
    if known.published is not None:
        report = build_report(known.published, now=known.now, problem=known.problem)
    nodes = report.nodes if report is not None and about.kind == MACHINE else ()
    machine = next((row for row in nodes if about.key in (row.instance_id, row.node_id)), None)
    is_type, is_request = about.kind == NODE_TYPE, about.kind in (DEMAND, GANG)
    types = report.node_types if report is not None else ()
    offers = report.offers if report is not None and is_type else ()
    return WhyReport(
        cluster=known.cluster,
        subject=about.key or DEMAND,
        kind=about.kind,
        at=known.published.at if known.published is not None else 0.0,
        problem=known.problem,
        machine=machine,
        pending=tuple(_pending(about, report)),
        node_types=tuple(row for row in types if is_request or (is_type and row.node_type == about.key)),
        offers=tuple(row for row in offers if row.node_type == about.key),
        machines=tuple(_stories(about, known)),
        story=tuple(_verdict_story(about, known.decisions)),
    )


def _pending(about: WhySubject, report: StatusReport | None) -> Iterator[PendingRow]:
    """Yield the requests that are the subject, or that wait for it."""
    for row in report.pending if report is not None else ():
        is_it = about.kind == DEMAND or (about.kind == GANG and row.subject_id == about.key)
        can_have_it = row.reason is not Reason.INFEASIBLE  # else the target is only the nearest miss
        waits_for_it = about.kind in (MACHINE, NODE_TYPE) and row.target == about.key and can_have_it
        if is_it or waits_for_it:
            yield row


def _stories(about: WhySubject, known: Known) -> Iterator[MachineStory]:
    """Yield the history of one machine, or of the newest machines of a type."""
    merged = {record.instance_id: record for record in known.records}
    if not merged and known.published is not None:
        merged = {record.instance_id: record for record in known.published.instances}
    if about.kind == MACHINE:
        chosen = [record for record in merged.values() if record.instance_id == about.key]
    elif about.kind == NODE_TYPE:
        of_type = [record for record in merged.values() if record.node_type == about.key]
        of_type.sort(key=lambda record: record.history[0].at if record.history else -math.inf, reverse=True)
        chosen = of_type[:MAX_MACHINES]
    else:
        chosen = []
    return (_story(record, known.now, _cause(record, merged.values())) for record in chosen)


def _story(record: Instance, now: float, cause: str) -> MachineStory:
    lines = (StoryLine(at=c.at, what=c.state.name, details=c.details) for c in record.history)
    return MachineStory(
        instance_id=record.instance_id,
        node_type=record.node_type,
        state=record.state.name,
        zone=record.offer.zone if record.offer else "",
        market=record.offer.market if record.offer else "",
        cost=cost_of(record, now),
        ended=record.state in TERMINAL,
        cause=cause,
        story=tuple(lines),
    )


def _cause(record: Instance, records: Iterable[Instance]) -> str:
    loss = record.loss
    later = (one for one in records if one.cloud_id == record.cloud_id and one is not record and one.history)
    if loss is not None and loss.state in TERMINAL and any(one.history[-1].at >= loss.at for one in later):
        return ""  # its machine has another record: nothing was lost
    if loss is not None:
        return f"lost: {loss.details}".rstrip(": ")
    return f"removed: {REMOVED_BECAUSE[record.stop_cause]}" if record.stop_cause in REMOVED_BECAUSE else ""


def _verdict_story(about: WhySubject, decisions: Iterable[Decision]) -> Iterator[StoryLine]:
    """Yield one line per change, oldest first. Demands without a name cannot be followed over time."""
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
    """Yield the page, top to bottom."""
    headline = "everything that waits" if report.kind == DEMAND else f"{report.kind} {report.subject}"
    yield Text.assemble((headline, HEADING), (f"  of {report.cluster}", QUIET))
    if report.problem:
        yield Text(report.problem, style=BAD)
    yield from _now(report)
    titles = {MACHINE: "Waiting for it", NODE_TYPE: "Waiting for machines of this type"}
    yield from pending_section(titles.get(report.kind, "Waiting"), report.pending, frame)
    yield from _types_section(report, frame)
    yield from offers_section(report.offers, report.at, replace(frame, verbose=True))
    alike: dict[tuple[object, ...], list[MachineStory]] = {}
    for machine in report.machines:
        steps = (machine.zone, machine.market, machine.cause, *(line.what for line in machine.story))
        alike.setdefault(steps, []).append(machine)
    for machine, *others in alike.values():
        offer = offer_name(machine.zone, machine.market)
        facts = (machine.state, offer, machine.cause, money(machine.cost))
        summary = f"{machine.instance_id}: {', '.join(fact for fact in facts if fact)}"
        if others:
            summary += f"; {len(others)} more like it, {money(sum(other.cost for other in others))} together"
        yield from _story_section("Story" if report.kind == MACHINE else summary, machine.story, frame)
    yield from _story_section("Story", report.story, frame)


def _now(report: WhyReport) -> Iterator[Text]:
    row = report.machine
    if row is not None:
        lasted = f" for {short_duration(row.for_s)}" if row.for_s is not None else ""
        used = used_of(dict(row.used), dict(row.total), tuple(sorted(row.total)))
        kind = f", type {row.node_type} {offer_name(row.zone, row.market)}" if row.node_type else ""
        kind = kind.rstrip()
        yield Text(f"now    {row.state}{lasted}{kind}" + (f", {used} in use" if used else ""))
        words = (row.reason.value if row.reason is not None else "", row.detail)
        if any(words):
            yield Text(f"why    {': '.join(word for word in words if word)}")
    elif report.kind == MACHINE and report.machines:
        gone = report.machines[0]
        cause = f", {gone.cause}" if gone.cause else ""
        yield Text(f"now    {'gone' if gone.ended else gone.state}{cause}")
    if report.kind == MACHINE and report.machines:
        yield Text(f"cost   {money(report.machines[0].cost)} so far")
    if report.kind == DEMAND and not report.pending:
        yield Text("Nothing is waiting.")
    if report.kind == GANG and not report.pending:
        yield Text("now    not waiting any more: placed, or given up")


def _types_section(report: WhyReport, frame: PageSize) -> Iterator[RenderableType]:
    """Every type has its own reason; a type that is not needed has none."""
    grid = TableGrid("~type", "verdict", "~")
    for row in report.node_types:
        grid.add(row.node_type, row.reason.value, row.detail)
    yield from grid.section("Node types", frame, of=len(report.node_types))
    if report.kind == NODE_TYPE and not report.node_types:
        yield Text("now    no more machines of this type are needed")


def _story_section(title: str, lines: Sequence[StoryLine], frame: PageSize) -> Iterator[RenderableType]:
    """The column `after` is the time since the line before, so that slow steps are easy to see."""
    grid = TableGrid("at", ">after", "", "~")
    shown = lines[-MAX_LINES:]
    before = [None, *(line.at for line in shown)]
    for line, earlier in zip(shown, before, strict=False):
        count = f" x {line.count}" if line.count > 1 else ""
        after = "" if earlier is None else short_duration(line.at - earlier)
        grid.add(clock_time(line.at), after, f"{line.what}{count}", line.details)
    return grid.section(title, frame, of=len(shown))

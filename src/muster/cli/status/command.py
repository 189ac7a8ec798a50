"""`muster status`: machines, waiting requests with their verdicts, failures and spend of a cluster."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from muster.autoscaler.known_clusters import KnownCluster, open_cluster
from muster.cli.console import BAD, GOOD, HEADING, QUIET
from muster.cli.format import clock_time, money, span, used_of
from muster.cli.status.report import NodeRow, StatusReport
from muster.cli.status.status_frame import WAITING, WIDE_ENOUGH, PageSize, TableGrid, pending_section
from muster.cluster.plan import Reason
from muster.errors import ClusterError, MusterError

if TYPE_CHECKING:
    from muster.autoscaler.known_clusters import KnownCluster


BLOCKED_TYPES = frozenset({Reason.TYPE_BACKED_OFF, Reason.TYPE_NEEDS_A_PERSON})
_STATE_STYLES = {"busy": GOOD, "idle": "", "running": GOOD, "draining": WAITING, "never came up": BAD}
_STATE_STYLES |= {"setup failed": BAD, "not gone yet": BAD, "stopped": BAD}
_QUIET_REASONS = frozenset({Reason.KEPT_BUSY, Reason.KEPT_HEAD, Reason.KEPT_PENDING, Reason.LEAVING})
_REASON_WORDS = {Reason.KEPT_NEEDED: "needed", Reason.KEPT_MIN_NODES: "kept: minimum"}
_SPARE = ("memory", "object_store_memory")  # shown when in use, or with -v


def status_page(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Top to bottom; what is wrong stands above everything else."""
    yield _title(report, frame)
    yield from _warnings(report)
    yield Text(f"machines  {machines_line(report)}")
    usage = _usage_line(report, verbose=frame.verbose)
    yield Text(f"in use    {usage}" if usage else "in use    nothing is known")
    yield Text(f"spend     {money(report.price_per_hour)} per hour, {money(report.spent)} so far")
    yield from _nodes(report, frame)
    yield from pending_section("Waiting", report.pending, frame)
    yield from _types(report, frame)
    yield from _failures(report, frame)
    yield from _events(report, frame)
    yield from _set_aside(report, frame)


def machines_line(report: StatusReport) -> str:
    """`1 head, 2 busy, 1 idle, 1 starting`."""
    counts = Counter("head" if row.is_head else row.state for row in report.nodes)
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or "none"


def _title(report: StatusReport, frame: PageSize) -> Text:
    title = Text.assemble((report.cluster, HEADING), (f"  {report.address}", QUIET))
    looked = f"looked {span(report.age_s)} ago"
    room = frame.width - title.cell_len - len(looked)
    return title.append(f"{' ' * max(2, room)}{looked}", style=QUIET)


def _warnings(report: StatusReport) -> Iterator[Text]:
    if report.problem:
        yield Text(report.problem, style=BAD)
    if report.config_problem:
        yield Text(report.config_problem, style=BAD)
    for note in report.notes:
        yield Text(note, style=WAITING)


def _usage_line(report: StatusReport, *, verbose: bool) -> str:
    used = {name: usage.used for name, usage in report.usage.items()}
    total = {name: usage.total for name, usage in report.usage.items()}
    return used_of(used, total, _names(used, total, verbose=verbose))


def _names(used: dict[str, float], total: dict[str, float], *, verbose: bool) -> tuple[str, ...]:
    """CPU and GPU first; memory where it says something."""
    first = [name for name in ("CPU", "GPU") if total.get(name)]
    rest = [name for name in sorted(total) if name not in ("CPU", "GPU")]
    return (*first, *(name for name in rest if verbose or name not in _SPARE or used.get(name)))


def _nodes(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """A narrow page leaves out the price and the reason; `muster why` has both."""
    columns = ("machine", "type", "state", ">for", "in use", ">$/h", "")
    grid = TableGrid(*columns[: len(columns) if frame.width >= WIDE_ENOUGH else 5])
    for row in report.nodes[: frame.machines]:
        used, total = dict(row.used), dict(row.total)
        grid.add(
            _machine_name(row, frame),
            _type_name(row),
            Text(row.state, style=_STATE_STYLES.get(row.state, WAITING)),
            span(row.for_s),
            used_of(used, total, _names(used, total, verbose=frame.verbose)),
            "" if row.price_per_hour is None else money(row.price_per_hour).lstrip("$"),
            Text(_why_node(row), style=QUIET),
        )
    return grid.section("Machines", frame, of=len(report.nodes))


def _machine_name(row: NodeRow, frame: PageSize) -> str:
    name = row.instance_id or row.node_id[:12]
    return name if frame.width >= 80 else f"{name[:4]}…{name[-5:]}" if len(name) > 10 else name


def _type_name(row: NodeRow) -> str:
    if not row.is_head:
        return row.node_type or "?"
    return "head" if row.node_type in ("", "head") else f"{row.node_type} (head)"


def _why_node(row: NodeRow) -> str:
    if row.reason in _QUIET_REASONS:
        return ""
    if row.reason in (None, Reason.KEPT_NOT_IDLE_LONG_ENOUGH):
        return row.detail
    known = _REASON_WORDS.get(row.reason, row.reason.value) if row.reason else ""
    return f"{known}: {row.detail}" if row.detail else known


def _types(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Types that cannot be had for now; with -v all that were looked at."""
    rows = [row for row in report.node_types if frame.verbose or row.reason in BLOCKED_TYPES]
    grid = TableGrid("type", "verdict", "")
    for row in rows[: frame.others]:
        style = BAD if row.reason in BLOCKED_TYPES else ""
        grid.add(row.node_type, Text(row.reason.value, style=style), row.detail)
    return grid.section("Node types", frame, of=len(rows))


def _failures(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    grid = TableGrid("at", "type", "reason")
    for row in report.failures[: frame.others]:
        grid.add(clock_time(row.at), row.node_type, Text(row.message, style=BAD))
    return grid.section("Failed launches", frame, of=len(report.failures))


def _events(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """The newest; a status that is asked for again and again tells the rest."""
    grid = TableGrid("at", "")
    shown = report.events[: frame.others]
    for row in shown:
        grid.add(clock_time(row.at), Text(row.message, style=WAITING if row.level == "warning" else ""))
    return grid.section("Lately", frame, of=len(shown))


def _set_aside(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Inputs that made no sense; everything else went on."""
    grid = TableGrid("what", "why")
    for note in report.set_aside[: frame.others]:
        grid.add(note.source, note.message)
    return grid.section("Set aside", frame, of=len(report.set_aside))


_EPILOG = """\b
Examples:
  muster status                      the only cluster that is up
  muster status examples/laptop.yaml --watch
  muster status laptop --json | jq '.pending[] | {shape, reason, told}'

\b
Exit codes:
  0  shown
  2  no such cluster, or it has not been looked at yet
  3  shown, but out of date: the monitor is gone or silent
"""
OUT_OF_DATE = 3


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("cluster", required=False, metavar="[FILE|NAME]")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")
@click.option("-w", "--watch", "live", is_flag=True, help="Stay and follow; q or Ctrl-C ends it.")
@click.option("-v", "--verbose", is_flag=True, help="Also memory, every node type, and all failures.")
@click.pass_context
def status(ctx: click.Context, cluster: str | None, as_json: bool, live: bool, verbose: bool) -> None:
    """Show the machines of a cluster, what waits and why, what failed, and what it costs.

    Without a name: the cluster that is up, when there is only one.
    """
    from muster.autoscaler.known_clusters import clusters_root, find_cluster

    known = find_cluster(cluster, clusters_root(os.environ))
    if live:
        if as_json or not sys.stdout.isatty():
            raise ClusterError("--watch needs a terminal and no --json; programs read `muster status --json`")
        from muster.cli.status.command import watch

        watch(known, verbose=verbose)
        return
    report = report_of(known)
    if as_json:
        from muster.base.codec import encode_plain
        from muster.cli.console import emit

        emit(encode_plain(report))
    else:
        from muster.cli.console import console
        from muster.cli.status.command import status_page
        from muster.cli.status.status_frame import PageSize

        page = console()
        for part in status_page(
            report, PageSize(width=page.width, others=20 if verbose else 5, verbose=verbose)
        ):
            page.print(part)
    ctx.exit(OUT_OF_DATE if report.problem else 0)


def report_of(cluster: KnownCluster) -> StatusReport:
    """What is known now; ClusterError before the first look."""
    from msgspec.structs import replace

    from muster.base.clock import SystemClock
    from muster.cli.status.report import build_report

    published = cluster.status()
    if published is None and cluster.record is None:
        raise ClusterError(
            f"{cluster.name} is down; `muster up FILE` starts it, "
            f"`muster why TYPE {cluster.name}` tells its past"
        )
    if published is None:
        raise ClusterError(
            f"{cluster.name}: the monitor has not looked at it yet; see {cluster.home.monitor_log}"
        )
    now = SystemClock().now()
    record = cluster.record
    return replace(
        build_report(published, now=now, problem=cluster.problem(published, now)),
        address=record.address if record else "",
        config=record.config if record else "",
        log=str(cluster.home.monitor_log),
    )


MAX_WIDTH = 120
PERIOD_S = 0.5
FOOTER = "q quits; `muster why MACHINE` tells its story"
_QUITS = frozenset({"q", "Q", "\x03", "\x04"})
# Rows for machines, requests and the rest: the most that fit. Machines are the last to be cut.
_ROWS: tuple[tuple[int, int, int], ...] = (
    *((50, 20, 5), (30, 12, 5), (20, 8, 3), (14, 6, 2), (10, 5, 1), (8, 4, 1), (7, 3, 1)),
    *((6, 2, 1), (5, 2, 1), (4, 2, 1), (4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 1)),
)


def watch(cluster: KnownCluster, *, verbose: bool) -> None:
    """Follow one cluster; also one that is going down or coming up."""
    page = Console(highlight=False, markup=False, emoji=False)
    screen = Live(console=page, screen=True, auto_refresh=False, vertical_overflow="crop")
    with contextlib.suppress(KeyboardInterrupt), _keys_at_once(), screen as live:
        while True:
            live.update(_picture(cluster, page, verbose=verbose), refresh=True)
            if _pressed(PERIOD_S) in _QUITS:
                return


def _picture(cluster: KnownCluster, page: Console, *, verbose: bool) -> RenderableType:
    try:
        report = report_of(open_cluster(cluster.home))
    except MusterError as problem:
        return Group(Text(str(problem)), Text(f"\n{FOOTER}", style=QUIET))
    return fitted(report, page, verbose=verbose)


def fitted(report: StatusReport, page: Console, *, verbose: bool) -> RenderableType:
    """The page with as many rows per section as the screen has room for, and the footer."""
    width, height = min(page.width, MAX_WIDTH), page.height
    options = page.options.update(width=width, height=None)
    for machines, requests, others in _ROWS:
        frame = PageSize(
            width=width, machines=machines, requests=requests, others=others, wrap=False, verbose=verbose
        )
        lines = page.render_lines(Group(*status_page(report, frame)), options, pad=False)
        if len(lines) < height - 1:
            break
    shown = Text("\n").join(_line(segments) for segments in lines[: height - 2])
    return Group(shown, Text(f"\n{FOOTER}", style=QUIET))


def _line(segments: list[Segment]) -> Text:
    return Text.assemble(*((segment.text, segment.style or "") for segment in segments))


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys arrive without Enter and are not echoed; the terminal is put back as it was."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(wait_s: float) -> str:
    """A key pressed within the time; "" for none. Without a keyboard it only waits."""
    readable, _, _ = select.select([sys.stdin] if sys.stdin.isatty() else [], [], [], wait_s)
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if readable else ""

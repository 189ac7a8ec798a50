"""A StatusReport as a page of 60 to 120 columns; the watch draws the same page with one line per row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from muster.cli.format import clock_time, money, span, used_of
from muster.cli.plan.view import BAD, GOOD, HEADING, QUIET
from muster.cli.status.pending_view import pending_section
from muster.cli.status.report import NodeRow, StatusReport
from muster.cli.status.status_frame import WAITING, WIDE_ENOUGH, Frame, Grid
from muster.cluster.plan import Reason

BLOCKED_TYPES = frozenset({Reason.TYPE_BACKED_OFF, Reason.TYPE_NEEDS_A_PERSON})
_STATE_STYLES = {"busy": GOOD, "idle": "", "running": GOOD, "draining": WAITING, "never came up": BAD}
_STATE_STYLES |= {"setup failed": BAD, "not gone yet": BAD, "stopped": BAD}
_QUIET_REASONS = frozenset({Reason.KEPT_BUSY, Reason.KEPT_HEAD, Reason.KEPT_PENDING, Reason.LEAVING})
_REASON_WORDS = {Reason.KEPT_NEEDED: "needed", Reason.KEPT_MIN_NODES: "kept: minimum"}
_SPARE = ("memory", "object_store_memory")  # shown when in use, or with -v


def status_page(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
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


def _title(report: StatusReport, frame: Frame) -> Text:
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


def _nodes(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
    """A narrow page leaves out the price and the reason; `muster why` has both."""
    columns = ("machine", "type", "state", ">for", "in use", ">$/h", "")
    grid = Grid(*columns[: len(columns) if frame.width >= WIDE_ENOUGH else 5])
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


def _machine_name(row: NodeRow, frame: Frame) -> str:
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


def _types(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
    """Types that cannot be had for now; with -v all that were looked at."""
    rows = [row for row in report.node_types if frame.verbose or row.reason in BLOCKED_TYPES]
    grid = Grid("type", "verdict", "")
    for row in rows[: frame.others]:
        style = BAD if row.reason in BLOCKED_TYPES else ""
        grid.add(row.node_type, Text(row.reason.value, style=style), row.detail)
    return grid.section("Node types", frame, of=len(rows))


def _failures(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
    grid = Grid("at", "type", "reason")
    for row in report.failures[: frame.others]:
        grid.add(clock_time(row.at), row.node_type, Text(row.message, style=BAD))
    return grid.section("Failed launches", frame, of=len(report.failures))


def _events(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
    """The newest; a status that is asked for again and again tells the rest."""
    grid = Grid("at", "")
    shown = report.events[: frame.others]
    for row in shown:
        grid.add(clock_time(row.at), Text(row.message, style=WAITING if row.level == "warning" else ""))
    return grid.section("Lately", frame, of=len(shown))


def _set_aside(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
    """Inputs that made no sense; everything else went on."""
    grid = Grid("what", "why")
    for note in report.set_aside[: frame.others]:
        grid.add(note.source, note.message)
    return grid.section("Set aside", frame, of=len(report.set_aside))

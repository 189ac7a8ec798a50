"""A StatusReport as a page of 60 to 120 columns; the watch draws the same page with one line per row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.cli.amounts import clock_time, money, span, used_of
from muster.cli.cluster_report import NodeRow, StatusReport
from muster.cli.pending_view import pending_lines
from muster.cli.render import BAD, GOOD, HEADING, QUIET
from muster.cli.status_frame import WAITING, WIDE_ENOUGH, Frame, more_line
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
    yield from pending_lines(report, frame)
    yield from _types(report, frame)
    yield from _failures(report, frame)
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
    shown = len(columns) if frame.width >= WIDE_ENOUGH else 5
    table = _table(frame, *columns[:shown])
    for row in report.nodes[: frame.rows]:
        used, total = dict(row.used), dict(row.total)
        cells = (
            _machine_name(row, frame),
            _type_name(row),
            Text(row.state, style=_STATE_STYLES.get(row.state, WAITING)),
            span(row.for_s),
            used_of(used, total, _names(used, total, verbose=frame.verbose)),
            "" if row.price_per_hour is None else money(row.price_per_hour).lstrip("$"),
            Text(_why_node(row), style=QUIET),
        )
        table.add_row(*cells[:shown])
    return _section("Machines", table, len(report.nodes))


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
    rows = [row for row in report.node_types if frame.verbose or row.reason in BLOCKED_TYPES]
    table = _table(frame, "type", "verdict", "")
    for row in rows[: frame.rows]:
        style = BAD if row.reason in BLOCKED_TYPES else ""
        table.add_row(row.node_type, Text(row.reason.value, style=style), row.detail)
    return _section("Node types", table, len(rows))


def _failures(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
    table = _table(frame, "at", "type", "machine", "reason")
    for row in report.failures[: min(frame.rows, 5)] if not frame.verbose else report.failures[: frame.rows]:
        table.add_row(clock_time(row.at), row.node_type, row.instance_id, Text(row.message, style=BAD))
    return _section("Failed launches", table, len(report.failures))


def _set_aside(report: StatusReport, frame: Frame) -> Iterator[RenderableType]:
    table = _table(frame, "what", "why")
    for note in report.set_aside[: frame.rows]:
        table.add_row(note.source, note.message)
    return _section("Set aside", table, len(report.set_aside))


def _table(frame: Frame, *columns: str) -> Table:
    """A column whose name starts with `>` stands right; the last one takes what is left."""
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 2, 0, 0), show_edge=False)
    for position, name in enumerate(columns):
        last = position == len(columns) - 1
        table.add_column(
            name.lstrip(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold" if frame.wrap else "ellipsis",
            no_wrap=not (frame.wrap and last),
        )
    return table


def _section(title: str, table: Table, rows: int) -> Iterator[RenderableType]:
    if not rows:
        return
    yield Text(f"\n{title}", style=HEADING)
    yield Padding(table, (0, 0, 0, 2), expand=False)
    yield from more_line(rows - table.row_count)

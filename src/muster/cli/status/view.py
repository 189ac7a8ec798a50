"""Renders a StatusReport as a page of tables that fits the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.base.text import clock_time, money, short_duration, used_of
from muster.cli.console import BAD, GOOD, HEADING, QUIET, more_line
from muster.cli.status.report import NodeRow, PendingRow, StatusReport
from muster.cluster.plan import SERVED, Reason

WAITING = "yellow"
WIDE_ENOUGH = 76  # columns; below, tables leave out what `muster why` shows
_GAP = 2
_INDENT = 2
_LEAST = 8  # columns that the last cell gets in any case


class PageSize(Struct, frozen=True, kw_only=True):
    """A PageSize limits the page: its width and the rows of each section."""

    width: int = 80
    machines: int = 20  # rows of each section
    requests: int = 20
    others: int = 5
    wrap: bool = True  # False: one line per row, for the watch
    verbose: bool = False


class TableGrid:
    """A TableGrid is rows under a dim header. A column whose name starts with `>` is right-aligned."""

    def __init__(self, *columns: str) -> None:
        self._names = [name.lstrip(">") for name in columns]
        self._right = [name.startswith(">") for name in columns]
        self._rows: list[list[Text]] = []

    def add(self, *cells: str | Text) -> None:
        """Adds a row; cells beyond the columns are dropped."""
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append(texts[: len(self._names)])

    def section(self, title: str, frame: PageSize, *, of: int) -> Iterator[RenderableType]:
        """Yields a heading, the table and the number of hidden rows of all `of`; nothing without rows."""
        if not of:
            return
        yield Text(f"\n{title}", style=HEADING)
        yield Padding(self._table(frame), (0, 0, 0, _INDENT), expand=False)
        yield from more_line(of - len(self._rows))

    def _table(self, frame: PageSize) -> Table:
        table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, _GAP, 0, 0), show_edge=False)
        last = len(self._names) - 1
        for position, (name, right) in enumerate(zip(self._names, self._right, strict=True)):
            folds = frame.wrap and position == last
            table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=not folds)
        room = frame.width - _INDENT - self._taken()
        for row in self._rows:
            if not frame.wrap:
                row[last].truncate(max(_LEAST, room), overflow="ellipsis")
            table.add_row(*row)
        return table

    def _taken(self) -> int:
        """Returns the width of all cells but the last, gaps included."""
        firsts = range(len(self._names) - 1)
        widest = [max(len(self._names[at]), *(row[at].cell_len for row in self._rows)) for at in firsts]
        return sum(widest) + _GAP * len(widest)


_COUNT_INDENT = 9  # count and its gap
_COUNT_GAP = 2
_SPAN = 7  # "90 min" and room


def pending_section(title: str, pending: Sequence[PendingRow], frame: PageSize) -> Iterator[RenderableType]:
    """Yields the waiting requests; blocked ones come first, because users look for them."""
    rows = sorted(pending, key=lambda row: row.reason in SERVED)
    if not rows:
        return
    shown = rows[: frame.requests]
    count = sum(row.count for row in rows)
    yield Text(f"\n{title}: {count:,} request{'' if count == 1 else 's'}", style=HEADING)
    widths = _widths(shown, frame)
    beside = (
        _COUNT_INDENT + sum(widths) + _SPAN + 2 * _COUNT_GAP + max(len(row.detail) for row in shown)
        <= frame.width
    )
    for row in shown:
        line = _line(row, widths)
        if beside:
            yield line.append(f"  {row.detail}")
        else:
            yield line
            yield from _sentence(row.detail, frame)
    yield from more_line(len(rows) - len(shown))


def _widths(rows: Sequence[PendingRow], frame: PageSize) -> tuple[int, int]:
    reason = max(len(row.reason.value) for row in rows)
    shape = max(_asks_for(row).cell_len for row in rows)
    return min(shape, frame.width - _COUNT_INDENT - reason - _SPAN - 2 * _COUNT_GAP), reason


def _line(row: PendingRow, widths: tuple[int, int]) -> Text:
    asks_for = _asks_for(row)
    asks_for.truncate(widths[0], overflow="ellipsis", pad=True)
    style = WAITING if row.reason in SERVED else BAD
    return Text.assemble(
        f"{row.count:>{_COUNT_INDENT - _COUNT_GAP},}  ",
        asks_for,
        "  ",
        (f"{row.reason.value:<{widths[1]}}", style),
        (f"  {short_duration(row.for_s):>{_SPAN - 1}}", QUIET),
    )


def _asks_for(row: PendingRow) -> Text:
    names = {"gang": f"  gang {row.subject_id[:8]}", "constraint": "  request_resources"}
    return Text.assemble(row.shape or row.subject_id, (names.get(row.kind, ""), QUIET))


def _sentence(detail: str, frame: PageSize) -> Iterator[RenderableType]:
    if detail:
        text = Text(
            detail, style=QUIET, no_wrap=not frame.wrap, overflow="fold" if frame.wrap else "ellipsis"
        )
        yield Padding(text, (0, 0, 0, _COUNT_INDENT + _COUNT_GAP), expand=False)


BLOCKED_TYPES = frozenset({Reason.TYPE_BACKED_OFF, Reason.TYPE_NEEDS_USER_ACTION})
_STATE_STYLES = {"busy": GOOD, "idle": "", "running": GOOD, "draining": WAITING, "never came up": BAD}
_STATE_STYLES |= {"setup failed": BAD, "not gone yet": BAD, "stopped": BAD}
_QUIET_REASONS = frozenset({Reason.KEPT_BUSY, Reason.KEPT_HEAD, Reason.KEPT_PENDING, Reason.LEAVING})
_REASON_WORDS = {Reason.KEPT_NEEDED: "needed", Reason.KEPT_MIN_NODES: "kept: minimum"}
_SPARE = ("memory", "object_store_memory")  # shown when in use, or with -v


def status_page(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Yields the page, top to bottom; problems stand above everything else."""
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
    """Returns the number of machines by state, such as `1 head, 2 busy, 1 idle, 1 starting`."""
    counts = Counter("head" if row.is_head else row.state for row in report.nodes)
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or "none"


def _title(report: StatusReport, frame: PageSize) -> Text:
    title = Text.assemble((report.cluster, HEADING), (f"  {report.address}", QUIET))
    updated = f"updated {short_duration(report.age_s)} ago"
    room = frame.width - title.cell_len - len(updated)
    return title.append(f"{' ' * max(2, room)}{updated}", style=QUIET)


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
    """CPU and GPU come first; memory is shown when it is in use."""
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
            short_duration(row.for_s),
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
    """Types that cannot be bought now; with -v every type that was considered."""
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
    """Only the newest are shown."""
    grid = TableGrid("at", "")
    shown = report.events[: frame.others]
    for row in shown:
        grid.add(clock_time(row.at), Text(row.message, style=WAITING if row.level == "warning" else ""))
    return grid.section("Lately", frame, of=len(shown))


def _set_aside(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Inputs that could not be used."""
    grid = TableGrid("what", "why")
    for note in report.set_aside[: frame.others]:
        grid.add(note.source, note.message)
    return grid.section("Set aside", frame, of=len(report.set_aside))

"""Frame: how much of a cluster's status may be shown; Grid: a table whose last column takes what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.cli.console import BAD, HEADING, QUIET
from muster.cli.format import span
from muster.cli.status.report import PendingRow
from muster.cluster.plan import SERVED

WAITING = "yellow"
WIDE_ENOUGH = 76  # columns; below, tables leave out what `muster why` tells
_GAP = 2
_INDENT = 2
_LEAST = 8  # columns that the last cell gets in any case


class PageSize(Struct, frozen=True, kw_only=True):
    """The page's size."""

    width: int = 80
    machines: int = 20  # rows of each section
    requests: int = 20
    others: int = 5
    wrap: bool = True  # False: one line per row, for the watch
    verbose: bool = False


class TableGrid:
    """Rows under a quiet header. A column whose name starts with `>` stands right."""

    def __init__(self, *columns: str) -> None:
        self._names = [name.lstrip(">") for name in columns]
        self._right = [name.startswith(">") for name in columns]
        self._rows: list[list[Text]] = []

    def add(self, *cells: str | Text) -> None:
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append(texts[: len(self._names)])

    def section(self, title: str, frame: PageSize, *, of: int) -> Iterator[RenderableType]:
        """A heading, the table, and how many rows of all `of` are not shown; nothing when there are none."""
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
        """Columns used by all cells but the last, gaps included."""
        firsts = range(len(self._names) - 1)
        widest = [max(len(self._names[at]), *(row[at].cell_len for row in self._rows)) for at in firsts]
        return sum(widest) + _GAP * len(widest)


def more_line(hidden: int) -> Iterator[Text]:
    """Says that there is more than is shown."""
    if hidden > 0:
        yield Text(f"  ... and {hidden:,} more; --json has them all", style=QUIET)


_COUNT_INDENT = 9  # count and its gap
_COUNT_GAP = 2
_SPAN = 7  # "90 min" and room


def pending_section(title: str, pending: Sequence[PendingRow], frame: PageSize) -> Iterator[RenderableType]:
    """Blocked requests come first: they are what a person looks for."""
    rows = sorted(pending, key=lambda row: row.reason in SERVED)
    if not rows:
        return
    shown = rows[: frame.requests]
    count = sum(row.count for row in rows)
    yield Text(f"\n{title}: {count:,} request{'' if count == 1 else 's'}", style=HEADING)
    widths = _widths(shown, frame)
    beside = (
        _COUNT_INDENT + sum(widths) + _SPAN + 2 * _COUNT_GAP + max(len(row.told) for row in shown)
        <= frame.width
    )
    for row in shown:
        line = _line(row, widths)
        if beside:
            yield line.append(f"  {row.told}")
        else:
            yield line
            yield from _sentence(row.told, frame)
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
        (f"  {span(row.for_s):>{_SPAN - 1}}", QUIET),
    )


def _asks_for(row: PendingRow) -> Text:
    names = {"gang": f"  gang {row.subject_id[:8]}", "constraint": "  request_resources"}
    return Text.assemble(row.shape or row.subject_id, (names.get(row.kind, ""), QUIET))


def _sentence(told: str, frame: PageSize) -> Iterator[RenderableType]:
    if told:
        text = Text(told, style=QUIET, no_wrap=not frame.wrap, overflow="fold" if frame.wrap else "ellipsis")
        yield Padding(text, (0, 0, 0, _COUNT_INDENT + _COUNT_GAP), expand=False)

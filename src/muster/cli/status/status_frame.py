"""Frame: how much of a cluster's status may be shown; Grid: a table whose last column takes what is left."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.cli.plan.view import HEADING, QUIET

WAITING = "yellow"
WIDE_ENOUGH = 76  # columns; below, tables leave out what `muster why` tells
_GAP = 2
_INDENT = 2
_LEAST = 8  # columns that the last cell gets in any case


class Frame(Struct, frozen=True, kw_only=True):
    """The page's size."""

    width: int = 80
    machines: int = 20  # rows of each section
    requests: int = 20
    others: int = 5
    wrap: bool = True  # False: one line per row, for the watch
    verbose: bool = False


class Grid:
    """Rows under a quiet header. A column whose name starts with `>` stands right."""

    def __init__(self, *columns: str) -> None:
        self._names = [name.lstrip(">") for name in columns]
        self._right = [name.startswith(">") for name in columns]
        self._rows: list[list[Text]] = []

    def add(self, *cells: str | Text) -> None:
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append(texts[: len(self._names)])

    def section(self, title: str, frame: Frame, *, of: int) -> Iterator[RenderableType]:
        """A heading, the table, and how many rows of all `of` are not shown; nothing when there are none."""
        if not of:
            return
        yield Text(f"\n{title}", style=HEADING)
        yield Padding(self._table(frame), (0, 0, 0, _INDENT), expand=False)
        yield from more_line(of - len(self._rows))

    def _table(self, frame: Frame) -> Table:
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

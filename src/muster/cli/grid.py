"""Lay tables out for a page of limited width: folds cells, leaves columns out, and never cuts a name.

Used by the pages of clusters. The lines are made here and not by rich, which cuts every column when one is
too wide. Where there is no room, the last column's text stands below its row; numbers are left out first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from msgspec import Struct
from rich.console import RenderableType
from rich.text import Text

from muster.base.text import ELLIPSIS, shortened
from muster.cli.console import HEADING, QUIET, more_line

_GAP = 2  # columns between two cells
_INDENT = "  "
_LEAST = 10  # columns that a folded cell gets; below, columns are left out
_WORD = 18  # a longer word may be broken anywhere, so that others have room
_PIECES = re.compile(r"[^-_./:]*[-_./:]+|[^-_./:]+")  # where a long name may be broken

Cell = str | Text | tuple[str, ...]  # a tuple is a list whose parts stay whole


class PageSize(Struct, frozen=True, kw_only=True):
    """Limits the page: its width and the rows of each section."""

    width: int = 80
    machines: int = 20  # rows of each section
    requests: int = 20
    others: int = 5
    wrap: bool = True  # False: one line per row, for the watch
    verbose: bool = False


class TableGrid:
    """Rows under a dim header.

    A column whose name starts with `>` is right-aligned, with `~` it may be folded, or cut where a row has
    one line. The others hold names and numbers, which are of no use without their end.
    """

    def __init__(self, *columns: str) -> None:
        self._names = [name.lstrip(">~") for name in columns]
        self._right = [name.startswith(">") for name in columns]
        self._folds = [name.startswith("~") for name in columns]
        self._rows: list[list[Cell]] = []

    def add(self, *cells: Cell) -> None:
        """Add a row; cells beyond the columns are dropped."""
        self._rows.append(list(cells[: len(self._names)]))

    def section(self, title: str, frame: PageSize, *, of: int) -> Iterator[RenderableType]:
        """Yield a heading, the table and the number of hidden rows of all `of`; nothing without rows."""
        if not of:
            return
        yield Text(f"\n{title}", style=HEADING)
        yield from self._table(frame)
        yield from more_line(of - len(self._rows))

    def _table(self, frame: PageSize) -> Iterator[Text]:
        widths = self._widths(frame.width - len(_INDENT))
        header: list[Cell] = [Text(name, style=QUIET) for name in self._names]
        below = len(self._names) - 1  # a text that has no separate column stands below its row
        for row in (header, *self._rows):
            cells = [_lines(row[at], width, frame.wrap) for at, width in widths.items()]
            for parts in zip_longest(*cells, fillvalue=Text()):
                yield self._line(parts, widths)
            text = _plain(row[below])
            if below not in widths and self._folds[below] and text.plain and frame.wrap:
                lines = _lines(text, frame.width - 2 * len(_INDENT), frame.wrap)
                yield from (Text.assemble(2 * _INDENT, line) for line in lines)

    def _line(self, parts: Sequence[Text], widths: dict[int, int]) -> Text:
        line = Text(_INDENT)
        for part, (at, width) in zip(parts, widths.items(), strict=True):
            room = " " * max(0, width - part.cell_len)
            line.append_text(Text.assemble(room, part) if self._right[at] else Text.assemble(part, room))
            line.append(" " * _GAP)
        line.rstrip()
        return line

    def _widths(self, width: int) -> dict[int, int]:
        """Return the width of every column that is shown; an empty one is not."""
        columns = range(len(self._names))
        wide = {at: max((_plain(row[at]).cell_len for row in self._rows), default=0) for at in columns}
        shown = {at: max(size, len(self._names[at])) for at, size in wide.items() if size}
        while len(shown) > 1 and self._least(shown) > width:
            shown.pop(max(shown, key=lambda at: (at == columns[-1], self._right[at], at)))
        foldable = {at: size for at, size in shown.items() if self._folds[at]}
        rest = sum(size for at, size in shown.items() if at not in foldable) + _GAP * (len(shown) - 1)
        words = {at: max(_longest_word(row[at]) for row in self._rows) for at in foldable}
        return {**shown, **_shared(foldable, words, width - rest)}

    def _least(self, shown: dict[int, int]) -> int:
        sizes = (min(size, _LEAST) if self._folds[at] else size for at, size in shown.items())
        return sum(sizes) + _GAP * (len(shown) - 1)


def _shared(wanted: dict[int, int], words: dict[int, int], room: int) -> dict[int, int]:
    """Return widths that fill the room: whole words where they fit, the rest to the narrowest column."""
    widths = dict(words) if sum(words.values()) <= room else dict.fromkeys(wanted, 1)
    for _ in range(room - sum(widths.values())):
        narrow = [at for at in wanted if widths[at] < wanted[at]]
        if narrow:
            widths[min(narrow, key=lambda at: widths[at])] += 1
    return widths


def _words(cell: Cell) -> list[str]:
    if isinstance(cell, tuple):
        return [*(f"{part}," for part in cell[:-1]), *cell[-1:]]
    return _plain(cell).plain.split(" ")


def _longest_word(cell: Cell) -> int:
    """Return the width below which something ugly is broken; a name may be, behind a sign."""
    whole = _words(cell)
    pieces = whole if isinstance(cell, tuple) else [part for word in whole for part in _PIECES.findall(word)]
    return min(_WORD, max(map(len, pieces), default=0))


def _plain(cell: Cell) -> Text:
    if isinstance(cell, tuple):
        return Text(", ".join(cell))
    return cell if isinstance(cell, Text) else Text(cell)


def _lines(cell: Cell, width: int, wrap: bool) -> list[Text]:
    """Return the cell in lines of the width; in a single one that is cut, where there is no wrap."""
    whole = _plain(cell)
    if whole.cell_len <= width:
        return [whole]
    lines = folded(_words(cell), width)
    if not wrap:
        first = lines[0] if isinstance(cell, tuple) else whole.plain
        lines = [
            shortened(first, width) if " " not in first else f"{first[: width - 1].rstrip(', ')}{ELLIPSIS}"
        ]
    return [Text(line, style=whole.style) for line in lines]


def folded(words: Sequence[str], width: int) -> list[str]:
    """Return lines of words; a word that is too long is broken behind a sign, or anywhere as a last resort.

    Example:
        >>> folded(["worker-m6i-2xlarge-ondemand", "(head)"], 20)
        ['worker-m6i-2xlarge-', 'ondemand (head)']
    """
    lines = [""]
    for word in words:
        pieces = [word] if len(word) <= width else _PIECES.findall(word)
        for index, piece in enumerate(pieces):
            gap = " " if lines[-1] and not index else ""
            if len(lines[-1]) + len(gap) + len(piece) <= width:
                lines[-1] += gap + piece
                continue
            parts = [piece[at : at + width] for at in range(0, len(piece), width)]
            lines = [*lines, *parts] if lines[-1] else parts if len(lines) == 1 else [*lines[:-1], *parts]
    return lines

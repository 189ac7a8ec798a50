"""Tables as text: a frame of box lines, or of ASCII where the stream has none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

GAP = " " * 5


class Frame(NamedTuple):
    """The characters a frame is made of: corners, joints and lines."""

    top: str
    middle: str
    bottom: str
    side: str
    line: str


BOX = Frame("╭╮", "├┤", "╰╯", "│", "─")
ASCII = Frame("++", "++", "++", "|", "-")


def frame_for(encoding: str | None) -> Frame:
    """Box lines when the stream can show them."""
    try:
        "╭─│".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BOX


def framed(headers: Sequence[str], rows: Sequence[Sequence[str]], frame: Frame = BOX) -> str:
    """A table; columns of numbers stand right, the rest left. A header may have two lines."""
    widths = _widths([*(_lines(headers)), *rows])
    right = [_is_number_column([row[i] for row in rows]) for i in range(len(headers))]
    body = [_row(row, widths, right) for row in rows]
    head = [_row(row, widths, right) for row in _lines(headers)]
    return _boxed(head, body, sum(widths) + len(GAP) * (len(widths) - 1), frame)


def listed(title: Sequence[str], rows: Sequence[tuple[str, str]], frame: Frame = BOX) -> str:
    """Two columns, name and value, below a title of one or two cells."""
    head = tuple(title) if len(title) == 2 else (title[0], "")
    widths = _widths([head, *rows]) if len(title) == 2 else _widths(rows)
    total = max(sum(widths) + len(GAP), len(title[0]) if len(title) == 1 else 0)
    right = [False, False] if len(title) == 2 else [False, True]
    widths[1] = total - len(GAP) - widths[0]
    first = _row(head, widths, [False, False]) if len(title) == 2 else title[0].ljust(total)
    return _boxed([first], [_row(row, widths, right) for row in rows], total, frame)


def _boxed(head: Sequence[str], body: Sequence[str], width: int, frame: Frame) -> str:
    line = frame.line * (width + 2)
    shown = [f"{frame.top[0]}{line}{frame.top[1]}"]
    shown += [f"{frame.side} {row} {frame.side}" for row in head]
    shown.append(f"{frame.middle[0]}{line}{frame.middle[1]}")
    shown += [f"{frame.side} {row} {frame.side}" for row in body]
    shown.append(f"{frame.bottom[0]}{line}{frame.bottom[1]}")
    return "\n".join(shown)


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    return GAP.join(
        text.rjust(width) if is_right else text.ljust(width)
        for text, width, is_right in zip(cells, widths, right, strict=True)
    )


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else [0, 0]


def _lines(headers: Sequence[str]) -> list[list[str]]:
    """Headers of several lines as rows, standing on the last one."""
    split = [header.split("\n") for header in headers]
    height = max((len(parts) for parts in split), default=1)
    padded = [[""] * (height - len(parts)) + parts for parts in split]
    return [[parts[i] for parts in padded] for i in range(height)]


def _is_number_column(cells: Sequence[str]) -> bool:
    shown = [text for text in cells if text]
    return bool(shown) and all(_is_number(text) for text in shown)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""What waits, and why: one line per verdict with its sentence below, or beside it where there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from muster.cli.format import span
from muster.cli.plan.report import SERVED
from muster.cli.plan.view import BAD, HEADING, QUIET
from muster.cli.status.report import PendingRow
from muster.cli.status.status_frame import WAITING, Frame, more_line

_COUNT_INDENT = 9  # count and its gap
_COUNT_GAP = 2
_SPAN = 7  # "90 min" and room


def pending_section(title: str, pending: Sequence[PendingRow], frame: Frame) -> Iterator[RenderableType]:
    """Blocked requests come first: they are what a person looks for."""
    rows = sorted(pending, key=lambda row: row.reason in SERVED)
    if not rows:
        return
    shown = rows[: frame.requests]
    count = sum(row.count for row in rows)
    yield Text(f"\n{title}: {count:,} request{'' if count == 1 else 's'}", style=HEADING)
    widths = _widths(shown, frame)
    beside = _COUNT_INDENT + sum(widths) + _SPAN + 2 * _COUNT_GAP + max(len(row.told) for row in shown) <= frame.width
    for row in shown:
        line = _line(row, widths)
        if beside:
            yield line.append(f"  {row.told}")
        else:
            yield line
            yield from _sentence(row.told, frame)
    yield from more_line(len(rows) - len(shown))


def _widths(rows: Sequence[PendingRow], frame: Frame) -> tuple[int, int]:
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


def _sentence(told: str, frame: Frame) -> Iterator[RenderableType]:
    if told:
        text = Text(told, style=QUIET, no_wrap=not frame.wrap, overflow="fold" if frame.wrap else "ellipsis")
        yield Padding(text, (0, 0, 0, _COUNT_INDENT + _COUNT_GAP), expand=False)

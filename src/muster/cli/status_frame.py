"""Frame: how much of a cluster's status may be shown, and the few things every section of it shares."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from rich.text import Text

from muster.cli.render import QUIET

WAITING = "yellow"
WIDE_ENOUGH = 76  # columns; below, tables leave out what `muster why` tells


class Frame(Struct, frozen=True, kw_only=True):
    """The page's size."""

    width: int = 80
    rows: int = 20  # per section
    wrap: bool = True  # False: one line per row, for the watch
    verbose: bool = False


def more_line(hidden: int) -> Iterator[Text]:
    """Says that there is more than is shown."""
    if hidden > 0:
        yield Text(f"  ... and {hidden:,} more; --json has them all", style=QUIET)

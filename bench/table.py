"""Print tables for users, and one JSON object as the very last line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table: the first column is text, the others are figures."""
    table = Table(header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False)
    console.print(f"\n{title}", markup=False)  # not the table's own title: that wraps at the table's width
    console.print(table)


def note(text: str) -> None:
    """Print a sentence between the tables."""
    print(text, flush=True)


def progress(text: str) -> None:
    """Print the current step to stderr, so that stdout is only the result."""
    print(text, file=sys.stderr, flush=True)


def last_line(bench: str, figures: Mapping[str, float]) -> str:
    """Return the line that programs read, without numbers that JSON cannot express."""
    kept = {name: round(value, 6) for name, value in sorted(figures.items()) if math.isfinite(value)}
    return json.dumps({"bench": bench, "figures": kept})


def seconds(value: float | None, mark: str = "") -> str:
    """Format CPU seconds with three significant figures."""
    if value is None:
        return "-"
    return f"{mark}{value:.3g}" if value >= 0.001 else f"{mark}{value * 1e6:.0f}e-6"


def times(value: float | None, mark: str = "") -> str:
    """Format a ratio."""
    return "-" if value is None else f"{mark}{value:,.0f}x" if value >= 10 else f"{mark}{value:.2f}x"

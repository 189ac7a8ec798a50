"""Print to the terminal; no other module of the CLI does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType
from rich.text import Text

from muster.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN_WIDTH = 80  # when the output is not a terminal
GOOD, BAD, QUIET, HEADING = "green", "bold red", "dim", "bold"  # the styles of every page
MAX_WIDTH = 100  # longer lines do not read better
TABLE_WIDTH = 160  # rows of many columns do


def console(max_width: int = MAX_WIDTH) -> Console:
    """Return a console with colours and the terminal's width, or plain text of COLUMNS (80) elsewhere."""
    probe = Console(highlight=False, soft_wrap=False)
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and int(asked) else PLAIN_WIDTH
    if probe.is_terminal:
        width = min(probe.width, max_width)
    return Console(highlight=False, soft_wrap=False, width=width, emoji=False, markup=False)


def show(*parts: RenderableType) -> None:
    """Print renderables, one below the other."""
    page = console()
    for part in parts:
        page.print(part)


def more_line(hidden: int) -> Iterator[Text]:
    """Yield a line with the number of hidden rows, if there are any."""
    if hidden > 0:
        yield Text(f"  ... and {hidden:,} more; --json has them all", style=QUIET)


def emit(data: bytes) -> None:
    """Write machine-readable output as it is, with a final newline."""
    sys.stdout.write(data.decode("utf-8") + "\n")


def remark(message: str) -> None:
    """Print a note on the error stream, so that it does not end up in a file or a pipe."""
    sys.stderr.write(f"{message}\n")


class ProgressLine:
    """Shows on the error stream what long work does now.

    On a terminal it is one line that changes; elsewhere there is a line for each part of the work, which is
    the text before a colon.
    """

    def __init__(self) -> None:
        self._part = ""
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            sys.stderr.write(_CLEAR_LINE)

    def show(self, text: str) -> None:
        part = text.partition(":")[0]
        if self._is_terminal:
            sys.stderr.write(f"{_CLEAR_LINE}{text}")
            sys.stderr.flush()
        elif part != self._part:
            remark(text)
        self._part = part


_CLEAR_LINE = "\r\x1b[2K"


def has_colours() -> bool:
    """Return whether the output is a terminal that shows colours."""
    probe = Console()
    return probe.is_terminal and not probe.no_color


def complain(message: str) -> None:
    """Print one error on the error stream; lines are never wrapped, so that they can be searched."""
    page = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)
    page.print("error: ", style="bold red", end="")
    page.print(message)


def confirm(question: str, *, default: bool = True, err: bool = False) -> None:
    """Raise Abort when the user says no, and ClusterError when there is nobody to ask.

    With `err` the question goes to the error stream, for commands whose output is read by programs.
    """
    try:
        if click.confirm(question, default=default, err=err):
            return
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=err)  # the question has no end of line
        raise ClusterError("confirmation required, but stdin is not a terminal", fix="pass -y") from None
    raise click.Abort


output_option = partial(click.option, "-o", "--output", type=click.Path(path_type=Path))


def new_figure(width: float, height: float) -> Figure:
    """Return an empty picture, in inches. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'muster-ml[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a picture. Raises ConfigError where it cannot be written, or its name has no known ending."""
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be written ({error})", fix="try a name that ends in .png"
        ) from error

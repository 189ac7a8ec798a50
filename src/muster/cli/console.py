"""Where text reaches people: the only file that prints."""

from __future__ import annotations

import sys

from rich.console import Console, RenderableType

PLAIN_WIDTH = 80  # when nobody says how wide the page is
GOOD, BAD, QUIET, HEADING = "green", "bold red", "dim", "bold"  # the styles of every page
MAX_WIDTH = 100  # longer lines do not read better


def console() -> Console:
    """Colours and the terminal's width on a terminal; plain text, 80 columns, everywhere else."""
    probe = Console(highlight=False, soft_wrap=False)
    width = min(probe.width, MAX_WIDTH) if probe.is_terminal else PLAIN_WIDTH
    return Console(highlight=False, soft_wrap=False, width=width, emoji=False, markup=False)


def show(*parts: RenderableType) -> None:
    """Print renderables, one below the other."""
    page = console()
    for part in parts:
        page.print(part)


def emit(data: bytes) -> None:
    """Write machine-readable output as it is, with a final newline."""
    sys.stdout.write(data.decode("utf-8") + "\n")


def remark(message: str) -> None:
    """Something worth knowing, on the error stream, so that it does not end up in a file or a pipe."""
    sys.stderr.write(f"{message}\n")


def has_colours() -> bool:
    """A terminal that wants them."""
    probe = Console()
    return probe.is_terminal and not probe.no_color


def complain(message: str) -> None:
    """One error on the error stream; lines are never wrapped, so that they can be searched."""
    page = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)
    page.print("error: ", style="bold red", end="")
    page.print(message)

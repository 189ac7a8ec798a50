"""`muster status --watch`: the status page on the whole screen, redrawn twice a second until q or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from muster.autoscaler.known_clusters import KnownCluster, open_cluster
from muster.cli.cluster_report import StatusReport
from muster.cli.plan.view import QUIET
from muster.cli.status.command import report_of
from muster.cli.status.status_frame import Frame
from muster.cli.status.view import status_page
from muster.errors import MusterError

MAX_WIDTH = 120
PERIOD_S = 0.5
FOOTER = "q quits; `muster why MACHINE` tells its story"
_QUITS = frozenset({"q", "Q", "\x03", "\x04"})
# Rows for machines, requests and the rest: the most that fit. Machines are the last to be cut.
_ROWS: tuple[tuple[int, int, int], ...] = (
    *((50, 20, 5), (30, 12, 5), (20, 8, 3), (14, 6, 2), (10, 5, 1), (8, 4, 1), (7, 3, 1)),
    *((6, 2, 1), (5, 2, 1), (4, 2, 1), (4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 1)),
)


def watch(cluster: KnownCluster, *, verbose: bool) -> None:
    """Follow one cluster; also one that is going down or coming up."""
    page = Console(highlight=False, markup=False, emoji=False)
    screen = Live(console=page, screen=True, auto_refresh=False, vertical_overflow="crop")
    with contextlib.suppress(KeyboardInterrupt), _keys_at_once(), screen as live:
        while True:
            live.update(_picture(cluster, page, verbose=verbose), refresh=True)
            if _pressed(PERIOD_S) in _QUITS:
                return


def _picture(cluster: KnownCluster, page: Console, *, verbose: bool) -> RenderableType:
    try:
        report = report_of(open_cluster(cluster.home))
    except MusterError as problem:
        return Group(Text(str(problem)), Text(f"\n{FOOTER}", style=QUIET))
    return fitted(report, page, verbose=verbose)


def fitted(report: StatusReport, page: Console, *, verbose: bool) -> RenderableType:
    """The page with as many rows per section as the screen has room for, and the footer."""
    width, height = min(page.width, MAX_WIDTH), page.height
    options = page.options.update(width=width, height=None)
    for machines, requests, others in _ROWS:
        frame = Frame(
            width=width, machines=machines, requests=requests, others=others, wrap=False, verbose=verbose
        )
        lines = page.render_lines(Group(*status_page(report, frame)), options, pad=False)
        if len(lines) < height - 1:
            break
    shown = Text("\n").join(_line(segments) for segments in lines[: height - 2])
    return Group(shown, Text(f"\n{FOOTER}", style=QUIET))


def _line(segments: list[Segment]) -> Text:
    return Text.assemble(*((segment.text, segment.style or "") for segment in segments))


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys arrive without Enter and are not echoed; the terminal is put back as it was."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(wait_s: float) -> str:
    """A key pressed within the time; "" for none. Without a keyboard it only waits."""
    readable, _, _ = select.select([sys.stdin] if sys.stdin.isatty() else [], [], [], wait_s)
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if readable else ""

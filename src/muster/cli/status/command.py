"""Implement `muster status`: machines, waiting requests with their reasons, failures and spend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.known_clusters import (
    KnownCluster,
    clusters_root,
    find_cluster,
    is_launched,
    known_cluster,
)
from muster.autoscaler.status_files import read_record
from muster.base.clock import SystemClock
from muster.base.codec import encode_plain
from muster.base.text import money
from muster.base.untrusted import error_text
from muster.cli.console import QUIET, TABLE_WIDTH, console, emit
from muster.cli.grid import PageSize, TableGrid
from muster.cli.status.report import StatusReport, build_report
from muster.cli.status.view import status_page
from muster.cluster.model import NodeKind
from muster.errors import ClusterError, MusterError

_EPILOG = """\b
Examples:
  muster status                      the only cluster that is up
  muster status examples/laptop.yaml --watch
  muster status --all                every cluster known here, and what they cost together
  muster status laptop --json | jq '.pending[] | {shape, reason, detail}'

\b
Exit codes:
  0  shown
  2  no such cluster, or no status has been written yet
  3  shown, but out of date: the monitor is gone or does not answer
"""
OUT_OF_DATE = 3


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("cluster", required=False, metavar="[FILE|NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-w", "--watch", "live", is_flag=True, help="Refresh the view until q or Ctrl-C.")
@click.option(
    "-a", "--all", "is_all", is_flag=True, help="Show one line for each cluster known here, and sums."
)
@click.option("-v", "--verbose", is_flag=True, help="Show memory, every node type and all failures as well.")
@click.pass_context
def status(
    ctx: click.Context, cluster: str | None, as_json: bool, live: bool, is_all: bool, verbose: bool
) -> None:
    """Show the machines of a cluster, what waits and why, what failed, and what it costs.

    Without a name: the only cluster that is up.
    """
    if is_all:
        if cluster is not None or live:
            raise ClusterError("--all goes with no name and no --watch", fix="leave one of them out")
        ctx.exit(show_all(clusters_root(os.environ), as_json=as_json))
    from muster.cli.ray_cluster import manifest_of, show_ray_cluster

    manifest = manifest_of(cluster)
    if manifest is not None:
        show_ray_cluster(manifest, as_json=as_json)
        return
    if is_launched(cluster, clusters_root(os.environ)):
        from muster.cli.cluster.commands import ask_head

        flags = {"--json": as_json, "--watch": live, "--verbose": verbose}
        ctx.exit(ask_head(str(cluster), "status", [flag for flag, is_set in flags.items() if is_set]))
    known = find_cluster(cluster, clusters_root(os.environ))
    if live:
        if as_json or not sys.stdout.isatty():
            raise ClusterError(
                "--watch needs a terminal",
                fix="leave out --json, or use `muster status --json` without --watch",
            )
        watch(known, verbose=verbose)
        return
    report = report_of(known)
    if as_json:
        emit(encode_plain(report))
    else:
        page = console(TABLE_WIDTH)
        for part in status_page(
            report, PageSize(width=page.width, others=20 if verbose else 5, verbose=verbose)
        ):
            page.print(part)
    ctx.exit(OUT_OF_DATE if report.problem else 0)


def report_of(cluster: KnownCluster) -> StatusReport:
    """Return the newest report. Raises ClusterError before the monitor's first tick."""
    published = cluster.status()
    if published is None and cluster.record is None:
        raise ClusterError(
            f"{cluster.name} is down",
            fix=(f"`muster up FILE` starts it, `muster why TYPE {cluster.name}` shows its past"),
        )
    if published is None:
        raise ClusterError(
            f"{cluster.name}: the monitor has not written a status yet",
            fix=f"its log is {cluster.home.monitor_log}",
        )
    now = SystemClock().now()
    record = cluster.record
    return replace(
        build_report(published, now=now, problem=cluster.problem(published, now)),
        address=record.address if record else "",
        config=record.config if record else "",
        log=str(cluster.home.monitor_log),
    )


def show_all(root: Path, *, as_json: bool) -> int:
    """Show every cluster that has files here, heads elsewhere are asked; return the exit code."""
    homes = [ClusterHome(path) for path in sorted(root.glob("*")) if path.is_dir()]
    with ThreadPoolExecutor(max_workers=16) as pool:
        rows = list(pool.map(cluster_row, homes))
    sums = {key: sum((row[key] or 0.0 for row in rows), 0.0) for key in ("price_per_hour", "spent")}
    if as_json:
        emit(encode_plain({"clusters": rows, **sums}))
    else:
        detail = ["~detail"] if any(row["detail"] for row in rows) else []
        grid = TableGrid("cluster", "state", ">workers", ">waiting", ">per hour", ">spent", *detail)
        for row in (*rows, {**dict.fromkeys(ROW, ""), "cluster": "total", **sums}):
            cells = ("-" if row[key] is None else row[key] for key in ROW)
            grid.add(*(money(cell) if isinstance(cell, float) else str(cell) for cell in cells))
        page = console(TABLE_WIDTH)
        for part in grid.section(f"{len(rows)} clusters", PageSize(width=page.width), of=len(rows) + 1):
            page.print(part)
    return OUT_OF_DATE if any(row["state"] == "not known" for row in rows) else 0


ROW = ("cluster", "state", "workers", "waiting", "price_per_hour", "spent", "detail")


def cluster_row(home: ClusterHome) -> dict[str, Any]:
    """Return what is known of a cluster; what nothing tells is None, not 0."""
    from muster.cli.gc import ASK_S, head_status

    record, known, now = read_record(home), known_cluster(home), SystemClock().now()
    published = known.status()
    problem = "" if published is None else known.problem(published, now)
    try:
        if record is not None and record.is_elsewhere:
            found = asyncio.run(asyncio.wait_for(head_status(record.config), ASK_S))
            published = None if found is None else found[0]
            problem = "" if found and found[2] else "its monitor does not run"
    except (MusterError, TimeoutError, asyncio.TimeoutError) as error:
        problem = str(error) or f"its head did not answer within {ASK_S:g} s"
    except Exception as error:  # noqa: BLE001 - it must not hide the other clusters
        problem = error_text(error)
    state = "down" if record is None else "not known" if problem or published is None else "up"
    cells: tuple[Any, ...] = (None, None, None, None)
    if published is not None:
        report = build_report(published, now=now)
        waiting = sum(row.count for row in report.pending)
        cells = published.running(NodeKind.WORKER), waiting, report.price_per_hour, report.spent
    if state == "down":
        cells, problem = (0, 0, 0.0, cells[3]), ""
    return dict(zip(ROW, (home.path.name, state, *cells, problem), strict=True))


PERIOD_S = 0.5
FOOTER = "q quits; `muster why MACHINE` shows a machine's history"
_QUITS = frozenset({"q", "Q", "\x03", "\x04"})
# Rows for machines, requests and the rest: the most that fit. Machines are the last to be cut.
_ROWS: tuple[tuple[int, int, int], ...] = (
    *((50, 20, 5), (30, 12, 5), (20, 8, 3), (14, 6, 2), (10, 5, 1), (8, 4, 1), (7, 3, 1)),
    *((6, 2, 1), (5, 2, 1), (4, 2, 1), (4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 1)),
)


def watch(cluster: KnownCluster, *, verbose: bool) -> None:
    """Show one cluster until the user quits; also one that is starting or stopping."""
    page = Console(highlight=False, markup=False, emoji=False)
    screen = Live(console=page, screen=True, auto_refresh=False, vertical_overflow="crop")
    with contextlib.suppress(KeyboardInterrupt), _keys_at_once(), screen as live:
        while True:
            live.update(_page(cluster, page, verbose=verbose), refresh=True)
            readable, _, _ = select.select([sys.stdin] if sys.stdin.isatty() else [], [], [], PERIOD_S)
            key = os.read(sys.stdin.fileno(), 1).decode(errors="replace") if readable else ""
            if key in _QUITS:
                return


def _page(cluster: KnownCluster, page: Console, *, verbose: bool) -> RenderableType:
    try:
        report = report_of(known_cluster(cluster.home))
    except MusterError as problem:
        return Group(Text(str(problem)), Text(f"\n{FOOTER}", style=QUIET))
    return fitted(report, page, verbose=verbose)


def fitted(report: StatusReport, page: Console, *, verbose: bool) -> RenderableType:
    """Return the page with as many rows per section as the screen has room for, and the footer."""
    width, height = min(page.width, TABLE_WIDTH), page.height
    options = page.options.update(width=width, height=None)
    for machines, requests, others in _ROWS:
        frame = PageSize(
            width=width, machines=machines, requests=requests, others=others, wrap=False, verbose=verbose
        )
        lines = page.render_lines(Group(*status_page(report, frame)), options, pad=False)
        if len(lines) < height - 1:
            break
    shown = Text("\n").join(
        Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        for segments in lines[: height - 2]
    )
    return Group(shown, Text(f"\n{FOOTER}", style=QUIET))


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys arrive without Enter and are not echoed; the terminal's mode is restored at the end."""
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

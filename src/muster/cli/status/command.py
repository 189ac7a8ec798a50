"""`muster status`: machines, waiting requests with their verdicts, failures and spend of a cluster."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from muster.errors import ClusterError

if TYPE_CHECKING:
    from muster.autoscaler.known_clusters import KnownCluster
    from muster.cli.cluster_report import StatusReport

_EPILOG = """\b
Examples:
  muster status                      the only cluster that is up
  muster status examples/laptop.yaml --watch
  muster status laptop --json | jq '.pending[] | {shape, reason, told}'

\b
Exit codes:
  0  shown
  2  no such cluster, or it has not been looked at yet
  3  shown, but out of date: the monitor is gone or silent
"""
OUT_OF_DATE = 3


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("cluster", required=False, metavar="[FILE|NAME]")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")
@click.option("-w", "--watch", "live", is_flag=True, help="Stay and follow; q or Ctrl-C ends it.")
@click.option("-v", "--verbose", is_flag=True, help="Also memory, every node type, and all failures.")
@click.pass_context
def status(ctx: click.Context, cluster: str | None, as_json: bool, live: bool, verbose: bool) -> None:
    """Show the machines of a cluster, what waits and why, what failed, and what it costs.

    Without a name: the cluster that is up, when there is only one.
    """
    from muster.autoscaler.known_clusters import clusters_root, find_cluster

    known = find_cluster(cluster, clusters_root(os.environ))
    if live:
        if as_json or not sys.stdout.isatty():
            raise ClusterError("--watch needs a terminal and no --json; programs read `muster status --json`")
        from muster.cli.watch import watch

        watch(known, verbose=verbose)
        return
    report = report_of(known)
    if as_json:
        from muster.base.codec import encode_plain
        from muster.cli.console import emit

        emit(encode_plain(report))
    else:
        from muster.cli.console import console
        from muster.cli.status.status_frame import Frame
        from muster.cli.status.view import status_page

        page = console()
        for part in status_page(
            report, Frame(width=page.width, others=20 if verbose else 5, verbose=verbose)
        ):
            page.print(part)
    ctx.exit(OUT_OF_DATE if report.problem else 0)


def report_of(cluster: KnownCluster) -> StatusReport:
    """What is known now; ClusterError before the first look."""
    from msgspec.structs import replace

    from muster.base.clock import SystemClock
    from muster.cli.status.report import build_report

    published = cluster.status()
    if published is None and cluster.record is None:
        raise ClusterError(
            f"{cluster.name} is down; `muster up FILE` starts it, "
            f"`muster why TYPE {cluster.name}` tells its past"
        )
    if published is None:
        raise ClusterError(
            f"{cluster.name}: the monitor has not looked at it yet; see {cluster.home.monitor_log}"
        )
    now = SystemClock().now()
    record = cluster.record
    return replace(
        build_report(published, now=now, problem=cluster.problem(published, now)),
        address=record.address if record else "",
        config=record.config if record else "",
        log=str(cluster.home.monitor_log),
    )

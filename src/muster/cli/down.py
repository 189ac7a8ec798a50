"""`muster down`: ends a cluster on this computer: monitor, workers, head and their temporary files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from muster.autoscaler.launcher import Ended

_DOWN_EPILOG = """\b
Examples:
  muster down examples/laptop.yaml
  muster down laptop -y --purge

The ledger stays, so that `muster why` can still tell what happened; --purge removes it as well.
Exit codes: 0 nothing of it runs any more; 2 no such cluster; 3 some processes would not end.
"""
NOT_ENDED = 3


@click.command(epilog=_DOWN_EPILOG, context_settings={"max_content_width": 88})
@click.argument("cluster", metavar="FILE|NAME")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--purge", is_flag=True, help="Forget its history too: ledger, logs and timeline.")
@click.pass_context
def down(ctx: click.Context, cluster: str, yes: bool, purge: bool) -> None:
    """End a cluster: its monitor, its workers and its head. Running work is lost.

    Saying it again does nothing more.
    """
    from muster.autoscaler.known_clusters import clusters_root, find_cluster
    from muster.cli.console import complain
    from muster.cli.up_down import launching

    known = find_cluster(cluster, clusters_root(os.environ))
    if not yes:
        click.confirm(f"End cluster {known.name!r} and all that runs on it?", default=True, abort=True)
    with launching() as launcher:
        ended = launcher.down(known.home, purge=purge)
    if ended.left:
        pids = ", ".join(str(pid) for some in ended.left.values() for pid in some)
        complain(f"{known.name}: these processes do not end, though killed: {pids}")
        ctx.exit(NOT_ENDED)
    _show_ended(known.name, ended, purge=purge)


def _show_ended(name: str, ended: Ended, *, purge: bool) -> None:
    from rich.text import Text

    from muster.cli.console import show
    from muster.cli.format import money
    from muster.cli.plan.view import GOOD

    if ended.nothing:
        show(Text(f"{name} was down already"))
    else:
        monitor = "" if ended.monitor_pid is None else f"its monitor (process {ended.monitor_pid}) and "
        count = len(ended.nodes)
        show(Text(f"{name} is down: ended {monitor}{count} node{'s' if count != 1 else ''}", style=GOOD))
    if ended.spend is not None:
        show(Text(f"It cost {money(ended.spend.total)}"))
    if not purge and not ended.nothing:
        show(Text(f"Its history is kept: `muster why TYPE {name}`; `muster down {name} --purge` forgets it"))

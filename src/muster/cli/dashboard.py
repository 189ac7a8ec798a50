"""Implement `muster dashboard` and `muster dashboard export`; `muster.page` is the server and the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from muster.autoscaler.known_clusters import KnownCluster, clusters_root, find_cluster, known_clusters
from muster.base.clock import SystemClock
from muster.cli.console import remark
from muster.cli.why import answer, find_subject, known_of
from muster.errors import ClusterError, StoreError
from muster.host.processes import identify
from muster.page.catalog import Catalog, has_experiments
from muster.page.cluster_source import ClusterSource, LedgerSource
from muster.stores.experiment.reader import is_experiment
from muster.stores.history.past import HistoryFollower
from muster.tune.config import DEFAULT_STORAGE_PATH

_EPILOG = """\b
Examples:
  muster dashboard                                every experiment and cluster of this user
  muster dashboard ~/ray_results/my_experiment    one experiment, running or finished
  muster dashboard ~/ray_results                  every experiment below a directory
  muster dashboard s3://bucket/my_experiment      an experiment in remote storage
  muster dashboard --cluster laptop               a cluster, running or stopped
  muster dashboard export my_experiment -o report.html

The printed link works once; the browser then keeps a cookie. Scripts authenticate with the token in the
file that `muster dashboard --token-file` prints, as `Authorization: Bearer`.
"""


class _DashboardGroup(click.Group):
    """Group with one command, `export`; every other argument is something to open."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in ("export", "-h", "--help"):
            args = ["open", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DashboardGroup, epilog=_EPILOG, context_settings={"max_content_width": 88})
def dashboard() -> None:
    """Show trials, machines, costs and decisions in a browser, live or afterwards.

    `muster dashboard [PATH|URL]... [--cluster NAME]... [--port N]` serves on this computer until Ctrl-C.
    `muster dashboard open --help` lists all options. `muster dashboard export PATH -o FILE` writes one
    HTML file that you can send to others.
    """


@dashboard.command("open", epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("paths", nargs=-1, metavar="[PATH|URL]...")
@click.option("--cluster", "clusters", multiple=True, metavar="NAME", help="Show this cluster; repeatable.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 chooses a free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Other computers can reach any but the default.",
)
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="Accept requests for this host name too."
)
@click.option("--browser", is_flag=True, help="Open the dashboard in a browser.")
@click.option(
    "--token-file", "show_token_file", is_flag=True, help="Print the path of the token file and exit."
)
@click.option("--until", "until_pid", type=int, metavar="PID", help="Exit when this process exits.")
@click.option(
    "--allow-actions",
    "actions",
    is_flag=True,
    help="Allow the dashboard to stop trials and experiments, and to change their limits.",
)
def open_page(  # noqa: PLR0913, PLR0917 - one per option
    paths: tuple[str, ...],
    clusters: tuple[str, ...],
    port: int | None,
    host: str,
    names: tuple[str, ...],
    browser: bool,
    show_token_file: bool,
    until_pid: int | None,
    actions: bool,
) -> None:
    """Serve the dashboard until Ctrl-C."""
    _check_installed()
    from muster.page.serve import PageAddress, serve, token_file

    if show_token_file:
        click.echo(str(token_file()))
        return
    address = PageAddress(host=host, port=port, names=names)
    catalog = catalog_of(paths, clusters)
    if not address.is_private:
        remark(
            f"note: other computers can reach {host}, and the connection is not encrypted. The dashboard "
            "requires the link or the token; pass the host names that browsers use with --allow-host"
        )
    fragment = _fragment(catalog, paths, clusters)

    def opened(link: str) -> None:
        full = f"{link}&open={fragment}" if fragment else link
        click.echo(f"muster dashboard: {full}")
        sys.stdout.flush()
        if browser:
            click.launch(full)

    until = None if until_pid is None else identify(until_pid)
    serve(catalog, address, clock=SystemClock(), opened=opened, until=until, actions=actions)


@dashboard.command("export", epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("path")
@click.option("-o", "--output", required=True, metavar="FILE", help="File to write.")
@click.option("--cluster", metavar="NAME", help="Include this cluster.")
@click.option("--show-secrets", is_flag=True, help="Include values of parameters named like secrets.")
def export_page(path: str, output: str, cluster: str | None, show_secrets: bool) -> None:
    """Write an experiment to one HTML file that opens without a server."""
    _check_installed()
    from muster.page.export import write_report

    target = Path(output).expanduser()
    if not target.parent.is_dir():
        raise StoreError(f"-o {output}: the directory does not exist", fix=f"create {target.parent} first")
    catalog = catalog_of((path,), (cluster,) if cluster else ())
    size = write_report(catalog, target, masks=not show_secrets)
    click.echo(f"{target} ({size / 1e6:.1f} MB)")


def catalog_of(paths: Sequence[str], clusters: Sequence[str]) -> Catalog:
    """Return what the dashboard may show.

    Raises:
        MusterError: A named experiment or cluster does not exist.
    """
    experiments, roots = (
        [path for path in paths if _is_single(path)],
        [path for path in paths if not _is_single(path)],
    )
    roots = roots if paths or clusters else [DEFAULT_STORAGE_PATH]
    find = _clusters_of(clusters, is_all=not paths)
    return Catalog(clock=SystemClock(), experiments=experiments, roots=roots, clusters=find)


def _clusters_of(names: Sequence[str], *, is_all: bool) -> Callable[[], list[ClusterSource]]:
    root = clusters_root(os.environ)
    followers: dict[Path, HistoryFollower] = {}  # a history is read once
    if names:
        chosen = [find_cluster(name, root) for name in names]
        return lambda: [_source(cluster, followers) for cluster in chosen]
    return lambda: [_source(cluster, followers) for cluster in (known_clusters(root) if is_all else ())]


def _source(cluster: KnownCluster, followers: dict[Path, HistoryFollower]) -> ClusterSource:
    folder = cluster.home.history
    follower = followers.setdefault(folder, HistoryFollower(folder))

    def why(_: str, subject: str) -> object:
        known = known_of(cluster)
        return answer(find_subject(subject, known), known)

    return LedgerSource(cluster, clock=SystemClock(), why=why, follower=follower)


def _fragment(catalog: Catalog, paths: Sequence[str], clusters: Sequence[str]) -> str:
    """Return the part of the dashboard to open, as a query value."""
    if len(clusters) > 1 or (paths and len(catalog.experiments) != 1):
        return ""  # the list
    from urllib.parse import quote

    listed = catalog.keys()
    parts = ([f"e={listed[0]}"] if paths else []) + ([f"c={listed[-1]}"] if clusters else [])
    return quote("&".join(parts), safe="")


def _is_single(path: str) -> bool:
    """Return whether a path is one experiment or a URL, which the catalog looks at; False: it holds some."""
    place = os.path.expanduser(path.removeprefix("file://"))
    if "://" in place or is_experiment(place):
        return True
    if not has_experiments(place):
        from muster.cli.tune.experiment import not_an_experiment  # expensive import, rarely needed

        raise not_an_experiment(place)
    return False


def _check_installed() -> None:
    try:
        import starlette  # noqa: F401 - only looked for
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ClusterError(
            f"`muster dashboard` needs {error.name}: install it with pip install 'muster-ml[dashboard]'"
        ) from error

"""Implements `muster up` and `muster down` for clusters on this computer; others are `cli.cluster`'s."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.errors import ClusterError
from muster.host.machine import program

if TYPE_CHECKING:
    from muster.autoscaler.launcher import EndedCluster, LaunchedCluster, Launcher, StepReporter
    from muster.config.schema import ClusterConfig


NOT_ALL_WORKERS = 3
_UP_EPILOG = """\b
Examples:
  muster up examples/laptop.yaml
  muster up rack.yaml --dry-run              what would be started, and its price
  muster up rack.yaml -y                     without confirmation

A cluster that is up already, as FILE says, stays as it is; with `provider: {type: process}` edits of FILE
are applied by its monitor. A cluster whose monitor has died gets a new one. Exit codes: 0 it is up; 2 it
could not be started, and nothing of it is left; 3 it is up, but not all workers that were waited for.
"""


@click.command(epilog=_UP_EPILOG, context_settings={"max_content_width": 88})
@click.argument("config", metavar="FILE", type=click.Path(path_type=Path))
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the plan, its price and the pre-flight; start nothing.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="P",
    help="Port of a head on this computer. Default: a free one. On other machines FILE's commands say it.",
)
@click.option("--min-workers", type=click.IntRange(0), metavar="N", help="Replaces min_workers of FILE.")
@click.option("--max-workers", type=click.IntRange(0), metavar="N", help="Replaces max_workers of FILE.")
@click.option("--no-restart", is_flag=True, help="Do not restart Ray on a head that runs already.")
@click.option("--restart-only", is_flag=True, help="Restart Ray on the head; run no set-up commands.")
@click.option(
    "--no-check", is_flag=True, help="Skip the pre-flight: hosts, key, ports, clock, disk, versions."
)
@click.option("-n", "--cluster-name", metavar="NAME", help="Replaces cluster_name of FILE.")
@click.option("--no-config-cache", is_flag=True, help="Accepted, as for `ray up`: muster caches no files.")
@click.option("--redirect-command-output", is_flag=True, help="Do not show what commands on the head print.")
@click.option(
    "--use-login-shells/--use-normal-shells",
    "login_shells",
    default=True,
    help="Whether commands see what .profile and .bashrc set. Default: they do.",
)
@click.option(
    "--wait-for-workers",
    type=click.FloatRange(0),
    metavar="S",
    help="Wait up to S seconds until min_workers of FILE run; exit code 3 if they do not.",
)
@click.pass_context
def up(ctx: click.Context, /, config: Path, yes: bool, port: int | None, **given: Any) -> None:  # noqa: ANN401
    """Start the cluster of FILE: its head, and the monitor on it that adds and removes workers.

    FILE is a cluster's YAML file, as for `ray up`. With `provider: {type: process}` the cluster is on this
    computer; with `local` on hosts that are reached over SSH; with `external` on machines of your own class.
    A FILE that is a RayCluster of Kubernetes is applied there.
    """
    from muster.cli.ray_cluster import manifest_of, up_ray_cluster
    from muster.config.load import load_config
    from muster.config.node_launch import any_size

    manifest = manifest_of(config)
    if manifest is not None:
        up_ray_cluster(config, manifest, yes=yes, port=port, **given)
        return
    loaded = load_config(config, os.environ, any_size)
    if loaded.provider.type != "process":
        from muster.cli.cluster.up_down import up_elsewhere

        if port is not None:
            raise ClusterError(
                "--port is for a head on this computer; head_start_ray_commands has that of others"
            )
        if not up_elsewhere(config, yes=yes, **given):
            ctx.exit(NOT_ALL_WORKERS)
        return
    _up_here(config, loaded, yes=yes, port=port, **given)


def _up_here(config: Path, loaded: ClusterConfig, *, yes: bool, port: int | None, **given: Any) -> None:  # noqa: ANN401
    from muster.autoscaler.launcher import check_up

    check_up(loaded, config)
    unfit = [
        f"--{name.replace('_', '-')}" for name, value in given.items() if value and name not in _EVERYWHERE
    ]
    if unfit:
        raise ClusterError(f"{', '.join(unfit)}: not for provider type 'process'; edit {config} instead")
    if given["dry_run"]:
        from muster.cli.cluster.plan import show_plan

        show_plan(loaded)
        return
    if not yes:
        confirm(f"Start cluster {loaded.cluster_name!r} on this computer?")
    with launching() as launcher:
        launched = launcher.up(config, port=port)
    _show_launched(launched)


# Options of `up` that mean nothing wrong for a cluster on this computer.
_EVERYWHERE = (
    "dry_run",
    "no_check",
    "no_config_cache",
    "redirect_command_output",
    "login_shells",
    "no_restart",
)


def confirm(question: str) -> None:
    """Raises Abort when the user says no, and ClusterError when there is nobody to ask."""
    try:
        if click.confirm(question, default=True):
            return
    except click.Abort:
        if not sys.stdin.isatty():
            click.echo()  # the question has no end of line
            raise ClusterError(
                "nobody answered, and there is no terminal to ask on; -y confirms in advance"
            ) from None
        raise
    raise click.Abort


@contextmanager
def launching() -> Iterator[Launcher]:
    """Yields a launcher that shows its steps: one changing line on a terminal, one line each elsewhere."""
    from muster.autoscaler.known_clusters import clusters_root
    from muster.autoscaler.launcher import Launcher
    from muster.base.clock import SystemClock
    from muster.base.ids import RandomIds

    with _progress() as report:
        yield Launcher(
            clusters_root(os.environ), dict(os.environ), clock=SystemClock(), ids=RandomIds(), report=report
        )


@contextmanager
def _progress() -> Iterator[StepReporter]:
    from rich.console import Console

    page = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not page.is_terminal:
        yield lambda text: None
        return
    with page.status("reading the file") as line:
        yield line.update


def _show_launched(launched: LaunchedCluster) -> None:
    from rich.text import Text

    from muster.cli.console import GOOD, HEADING, emit, show

    record = launched.record
    if launched.already:
        done = f"{record.cluster_name} is up already; edits of {record.config} are applied by its monitor"
    elif not launched.head_started:
        done = f"{record.cluster_name} continues with a new monitor (process {record.monitor_pid})"
    else:
        done = (
            f"{record.cluster_name} is up: head at {record.address}, monitor is process {record.monitor_pid}"
        )
    show(Text(done, style=GOOD), Text("\nConnect", style=HEADING))
    for key, value in {"RAY_ADDRESS": record.address, **record.auth}.items():
        emit(f"  export {key}={value}".encode())  # to be copied: never wrapped
    show(Text("\nCommands", style=HEADING))
    commands = {
        f"{program()} status {record.cluster_name} --watch": "show machines, waiting requests and spend",
        f"{program()} why demand {record.cluster_name}": "show why requests wait",
        f"{program()} down {record.cluster_name}": "stop everything",
    }
    width = max(map(len, commands))
    show(*(Text(f"  {command:<{width}}   {does}") for command, does in commands.items()))
    emit(f"\nThe monitor's log: {launched.home.monitor_log}".encode())


_DOWN_EPILOG = """\b
Examples:
  muster down examples/laptop.yaml
  muster down laptop -y --purge

The ledger is kept, so that `muster why` can still show what happened; --purge deletes it as well.
Machines that a provider bought are terminated through it, and listed until none is left; a head that was
started by hand is left running. Exit codes: 0 nothing of it runs any more; 2 no such cluster, or its provider
cannot be used; 3 some processes or machines did not end, or nothing was found and hosts could not be asked.
"""
NOT_ENDED = 3


@click.command(epilog=_DOWN_EPILOG, context_settings={"max_content_width": 88})
@click.argument("cluster", metavar="FILE|NAME")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--purge", is_flag=True, help="Delete its history too: ledger, logs and timeline.")
@click.option("--workers-only", is_flag=True, help="End the workers, and leave the head and its monitor.")
@click.option(
    "--keep-min-workers", is_flag=True, help="As --workers-only, but leave min_workers of each type."
)
@click.pass_context
def down(ctx: click.Context, /, cluster: str, yes: bool, purge: bool, **given: bool) -> None:
    """Stop a cluster: its monitor, its workers and its head. Running work is lost.

    A second call does nothing.
    """
    from muster.cli.cluster.up_down import down_elsewhere, is_elsewhere
    from muster.cli.ray_cluster import down_ray_cluster, manifest_of

    manifest = manifest_of(cluster)
    if manifest is not None:
        down_ray_cluster(manifest, yes=yes)
        return
    if is_elsewhere(cluster):
        if not down_elsewhere(cluster, yes=yes, purge=purge, **given):
            ctx.exit(NOT_ENDED)
        return
    if any(given.values()):
        raise ClusterError(
            "--workers-only and --keep-min-workers are for clusters that `muster up` started elsewhere"
        )
    _down_here(ctx, cluster, yes=yes, purge=purge)


def _down_here(ctx: click.Context, cluster: str, *, yes: bool, purge: bool) -> None:
    from muster.autoscaler.known_clusters import cluster_file, clusters_root, find_cluster
    from muster.cli.console import complain

    known = find_cluster(cluster, clusters_root(os.environ))
    if not yes:
        confirm(f"Stop cluster {known.name!r} and everything that runs on it?")
    with launching() as launcher:
        ended = launcher.down(known.home, config_file=cluster_file(cluster), purge=purge)
    if ended.left:
        pids = ", ".join(str(pid) for some in ended.left.values() for pid in some)
        complain(f"{known.name}: these processes still run although they were killed: {pids}")
    if ended.machines.left:
        left = "; ".join(f"{machine} ({why})" for machine, why in ended.machines.left.items())
        complain(
            f"{known.name}: {len(ended.machines.ended)} machines were ended, these are left: {left}; "
            f"run `{program()} down {known.name}` again, or end them with your cloud's own tool"
        )
    if ended.left or ended.machines.left:
        ctx.exit(NOT_ENDED)
    _show_ended(known.name, ended, purge=purge)


def _show_ended(name: str, ended: EndedCluster, *, purge: bool) -> None:
    from rich.text import Text

    from muster.base.text import money
    from muster.cli.console import GOOD, show

    if ended.nothing:
        show(Text(f"{name} was down already"))
    else:
        monitor = "" if ended.monitor_pid is None else f"its monitor (process {ended.monitor_pid}) and "
        count, bought = len(ended.nodes), len(ended.machines.ended)
        what = f"{count} node{'s' if count != 1 else ''}" if count or not bought else ""
        machines = f"{bought} machine{'s' if bought != 1 else ''} of its provider" if bought else ""
        show(
            Text(
                f"{name} is down: stopped {monitor}{' and '.join(filter(None, (what, machines)))}", style=GOOD
            )
        )
    if ended.spend is not None:
        show(Text(f"It cost {money(ended.spend.total)}"))
    if not purge and not ended.nothing:
        muster = program()
        show(Text(f"Its history is kept: `{muster} why TYPE {name}`, until `{muster} down {name} --purge`"))

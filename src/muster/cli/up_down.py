"""Implement `muster up` and `muster down` for clusters of all kinds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from muster.autoscaler.known_clusters import clusters_root, find_cluster
from muster.autoscaler.lifecycle.down import ClusterDown, DownOptions, StoppedCluster
from muster.autoscaler.lifecycle.gc import not_asked
from muster.autoscaler.lifecycle.head_file import Overrides
from muster.autoscaler.lifecycle.here import HeadHere
from muster.autoscaler.lifecycle.open import (
    LaunchContext,
    OpenCluster,
    RunningCluster,
    check_elsewhere,
    open_cluster,
    open_to_stop,
)
from muster.autoscaler.lifecycle.preflight import preflight
from muster.autoscaler.lifecycle.up import ClusterUp, UpOptions, wanted_workers
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.base.text import counted, money
from muster.cli.cluster.plan import price_range, show_plan
from muster.cli.console import GOOD, HEADING, complain, confirm, emit, remark, show
from muster.cli.ray_cluster import down_ray_cluster, manifest_of, refuse_options, up_ray_cluster
from muster.config.load import any_size
from muster.config.prices import load_prices
from muster.errors import ClusterError
from muster.host.machine import program
from muster.providers.kind import HeadPolicy, asked_sizes

NOT_ALL_WORKERS = 3
_UP_EPILOG = """\b
Examples:
  muster up examples/laptop.yaml
  muster up rack.yaml --dry-run              show the plan and its price
  muster up aws.yaml -y                      do not ask for confirmation

`up` leaves a running cluster that matches FILE as it is, and restarts a dead monitor. Exit codes: 0 the
cluster is up; 2 it did not start, and nothing is left of it; 3 it is up, but not all workers that
--wait-for-workers waited for.
"""


@click.command(epilog=_UP_EPILOG, context_settings={"max_content_width": 88})
@click.argument("config", metavar="FILE", type=click.Path(path_type=Path))
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--dry-run", is_flag=True, help="Show the plan, its price and the preflight checks; start nothing."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="P",
    help="Port of a head on this computer. Default: a free port.",
)
@click.option("--min-workers", type=click.IntRange(0), metavar="N", help="Override min_workers.")
@click.option("--max-workers", type=click.IntRange(0), metavar="N", help="Override max_workers.")
@click.option("--no-restart", is_flag=True, help="Do not restart Ray on a running head.")
@click.option("--restart-only", is_flag=True, help="Restart Ray on the head without running setup commands.")
@click.option(
    "--no-check", is_flag=True, help="Skip the preflight checks: hosts, key, ports, clock, disk, versions."
)
@click.option("-n", "--cluster-name", metavar="NAME", help="Override cluster_name.")
@click.option(
    "--no-config-cache", is_flag=True, help="Accepted for compatibility with `ray up`; has no effect."
)
@click.option("--redirect-command-output", is_flag=True, help="Hide the output of commands on the head.")
@click.option(
    "--use-login-shells/--use-normal-shells",
    "login_shells",
    default=True,
    help="Run commands in login shells, which read .profile. Default: login.",
)
@click.option(
    "--wait-for-workers",
    type=click.FloatRange(0),
    metavar="S",
    help="Wait up to S seconds for min_workers; exit with 3 if they do not run.",
)
@click.pass_context
def up(ctx: click.Context, /, config: Path, yes: bool, port: int | None, **given: Any) -> None:  # noqa: ANN401
    """Create or update a cluster: start its head and the monitor that adds and removes workers.

    FILE is a cluster file, as for `ray up`. Its `provider: {type: ...}` decides where nodes run: `process`
    (this computer), `local` (hosts reached over SSH), `slurm` (Slurm jobs), `aws` (EC2), `external` (your
    NodeProvider class), or another cloud through the provider classes of your Ray. If FILE is a RayCluster
    manifest, `up` applies it to Kubernetes.
    """
    manifest = manifest_of(config)
    if manifest is not None:
        up_ray_cluster(config, manifest, yes=yes, port=port, **given)
        return
    overrides = Overrides(**{name: given[name] for name in ("cluster_name", "min_workers", "max_workers")})
    with opened_cluster(config, overrides, starts=True, is_of_any_kind=True) as cluster:
        is_here = cluster.kind.head is HeadPolicy.HERE
        _check_options(cluster, port, given)
        if not _is_wanted(cluster, yes=yes, dry_run=given["dry_run"], checks=not given["no_check"]):
            return
        if is_here:
            with _one_line(cluster):
                _show_running(cluster, HeadHere(cluster, port).up())
            return
        cluster.bootstrap()
        options = UpOptions(
            no_restart=given["no_restart"],
            restart_only=given["restart_only"],
            login_shells=given["login_shells"],
            show_output=None if given["redirect_command_output"] else _show_output,
        )
        work = ClusterUp(cluster, options)
        _show_running(cluster, asyncio.run(work.run()))
        if not _all_workers(work, given["wait_for_workers"]):
            ctx.exit(NOT_ALL_WORKERS)


def _check_options(cluster: OpenCluster, port: int | None, given: dict[str, Any]) -> None:
    """Raise ClusterError for options that mean nothing for this kind of provider."""
    if cluster.kind.head is not HeadPolicy.HERE:
        check_elsewhere(cluster)
        if port is not None:
            raise ClusterError(
                "--port is for a head on this computer", fix="head_start_ray_commands has that of others"
            )
        return
    refuse_options(given, f"provider type {cluster.kind.name!r}", cluster.file)


def _is_wanted(cluster: OpenCluster, *, yes: bool, dry_run: bool, checks: bool) -> bool:
    """Show what `up` would do, check it and ask; return whether it is to be done."""
    prices_of_file, kind = load_prices(cluster.config, cluster.file), cluster.kind
    if dry_run:
        show_plan(cluster.config, prices_of_file)
    for line in kind.made_by_prepare(cluster.config, lambda: cluster.port):
        show(Text(f"  {line}"))
    if dry_run:
        rights = kind.needed_rights(cluster.config)
        if rights:
            show(Text("\nLeast-privilege IAM policy for running `up`:", style=HEADING))
            emit(rights.encode())
    if checks and kind.has_machines:
        _check(cluster)
    if dry_run:
        return False
    if not yes:
        prices = price_range(cluster.config, prices_of_file)
        price = "" if prices is None else f" ({money(prices[0])}/h at first, at most {money(prices[1])}/h)"
        place = price if kind.has_machines else " on this computer"
        confirm(f"Start cluster {cluster.config.cluster_name!r}{place}?")
    return True


@contextmanager
def opened_cluster(
    cluster: str | Path,
    overrides: Overrides | None = None,
    *,
    is_quiet: bool = False,
    starts: bool = False,
    is_of_any_kind: bool = False,
) -> Iterator[OpenCluster]:
    """Open a cluster; each step of each node is a line on the error stream.

    A command that `starts` machines asks the cloud what they have; any other needs no account for that.
    """
    context = _context(is_quiet=is_quiet)
    sizes = asked_sizes(context.clock, lambda line: remark(f"note: {line}")) if starts else any_size
    with open_cluster(cluster, context, overrides or Overrides(), sizes) as session:
        if not is_of_any_kind:
            check_elsewhere(session)
        yield session


def _context(*, is_quiet: bool = False) -> LaunchContext:
    def report(node: str, step: str) -> None:
        remark(f"[{node}] {step}" if node else step)

    return LaunchContext(
        root=clusters_root(os.environ),
        environment=dict(os.environ),
        clock=SystemClock(),
        ids=RandomIds(),
        report=(lambda node, step: None) if is_quiet else report,
    )


@contextmanager
def _one_line(cluster: OpenCluster) -> Iterator[None]:
    """Show the steps on this computer in one changing line; without a terminal, nowhere."""
    page = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with page.status("reading the file") if page.is_terminal else contextlib.nullcontext() as line:
        report = (lambda node, step: None) if line is None else (lambda node, step: line.update(step))
        cluster.context = dataclasses.replace(cluster.context, report=report)
        yield


def _all_workers(work: ClusterUp, limit_s: float | None) -> bool:
    """Say how many workers are wanted, and waits for them where the user asked for it."""
    wanted, file = wanted_workers(work.session.config), work.session.file
    if not wanted:
        remark(f"no workers are wanted until work waits; `{program()} status {file}` shows them")
        return True
    if limit_s is None:
        remark(f"{counted(wanted, 'worker')} wanted; `{program()} status {file}` shows how they come up")
        return True
    running = asyncio.run(work.wait_for_workers(limit_s))
    if running < wanted:
        complain(
            f"{running} of {counted(wanted, 'worker')} running after {limit_s:g} s; "
            f"`{program()} logs {file}` says why"
        )
    return running >= wanted


def _check(session: OpenCluster) -> None:
    """Show what the pre-flight found; ClusterError, before anything is started, for what must fail."""
    found = asyncio.run(preflight(session))
    for finding in found:
        if not finding.is_fatal:
            remark(f"warning: {finding}")
    fatal = [finding for finding in found if finding.is_fatal]
    for finding in fatal[1:]:
        complain(str(finding))
    if fatal:
        raise ClusterError(f"{fatal[0]} (nothing was started; use --no-check to skip this check)")


def _show_output(text: bytes) -> None:
    sys.stderr.write(text.decode("utf-8", "replace"))


def _show_running(cluster: OpenCluster, running: RunningCluster) -> None:
    record, name, muster = running.record, cluster.config.cluster_name, program()
    is_here, pid = cluster.kind.head is HeadPolicy.HERE, record.monitor_pid
    if not running.is_changed:
        done = f"{name} is up already, as {record.config} says: head at {record.address}"
    elif is_here and not running.is_new:
        done = f"{name} continues with a new monitor (process {pid})"
    else:
        done = f"{name} is up: head at {record.address}" + (f", monitor is process {pid}" if is_here else "")
    show(Text(done, style=GOOD), Text("\nCommands", style=HEADING))
    word = name if is_here else record.config
    elsewhere = {
        f"{muster} submit {word} SCRIPT.py": "run a script on the head",
        f"{muster} attach {word}": "open a terminal on the head",
        f"{muster} logs {word} --follow": "follow the monitor",
    }
    commands = {
        f"{muster} status {word} --watch": "show machines, waiting requests and spend",
        **({f"{muster} why demand {word}": "show why requests wait"} if is_here else elsewhere),
        f"{muster} down {word}": "stop everything",
    }
    for command, does in commands.items():
        emit(f"  {command}   # {does}".encode())
    show(Text("\nConnect" if is_here else "\nOn the head", style=HEADING))
    for key, value in {"RAY_ADDRESS": record.address, **running.auth}.items():
        emit(f"  export {key}={value}".encode())  # to be copied: never wrapped
    if is_here:
        emit(f"\nThe monitor's log: {cluster.home.monitor_log}".encode())
    for note in running.notes:
        remark(f"note: {note}")


_DOWN_EPILOG = """\b
Examples:
  muster down examples/laptop.yaml
  muster down laptop -y --purge

`down` keeps the ledger for `muster why`; --purge deletes it. It terminates every machine that the provider
lists for the cluster, and leaves a head that you started by hand running. A second call does nothing.
Exit codes: 0 nothing that it found runs any more; 2 no such cluster, or its provider is not usable; 3 some
processes or machines did not stop, or it found nothing and some hosts did not answer.
"""
NOT_ENDED = 3


@click.command(epilog=_DOWN_EPILOG, context_settings={"max_content_width": 88})
@click.argument("cluster", metavar="FILE|NAME")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--purge", is_flag=True, help="Delete the ledger and the logs too.")
@click.option("--workers-only", is_flag=True, help="Terminate the workers; keep the head and its monitor.")
@click.option(
    "--keep-min-workers", is_flag=True, help="Like --workers-only, but keep min_workers of each type."
)
@click.pass_context
def down(ctx: click.Context, /, cluster: str, yes: bool, purge: bool, **given: bool) -> None:
    """Stop a cluster: its monitor, its workers and its head. Running work is lost."""
    manifest = manifest_of(cluster)
    if manifest is not None:
        down_ray_cluster(manifest, yes=yes)
        return
    options = DownOptions(purge=purge, **given)
    with open_to_stop(cluster, _context()) as opened:
        name = opened.config.cluster_name
        if options.keeps_head and not opened.kind.has_machines:
            raise ClusterError(
                "--workers-only and --keep-min-workers are for clusters that `muster up` started elsewhere"
            )
        if not opened.kind.has_machines:
            find_cluster(cluster, opened.context.root)  # raises where nothing of it is here
        what = "the workers of cluster" if options.keeps_head else "cluster"
        if not yes:
            confirm(f"Stop {what} {name!r} and everything that runs on it?")
        with contextlib.nullcontext() if opened.kind.has_machines else _one_line(opened):
            done = asyncio.run(ClusterDown(opened, options).run())
        if not _show_down(name, cluster, done, is_down=not options.keeps_head):
            ctx.exit(NOT_ENDED)
        if not purge and not done.nothing and opened.home.ledger.is_file():
            muster = program()
            show(
                Text(f"Its history is kept: `{muster} why TYPE {name}`, until `{muster} down {name} --purge`")
            )


def _show_down(name: str, cluster: str, done: StoppedCluster, *, is_down: bool) -> bool:
    """Return whether nothing is left."""
    for note in done.notes:
        remark(f"note: {note}")
    if done.left:
        left = "; ".join(f"{machine} ({why})" for machine, why in done.left.items())
        complain(
            f"{name}: {counted(len(done.workers), 'machine')} ended, these are left: {left}; run "
            f"`{program()} down {cluster}` again, or end them with your cloud's own tool"
        )
        return False
    if done.silent:
        remark(f"note: {not_asked(done.silent)}; run `{program()} down {cluster}` again when they answer")
    if done.nothing:
        show(Text(f"{name}: nothing was found to end" if done.silent else f"{name} was down already"))
    else:
        parts = [f"its monitor (process {done.monitor_pid})"] if done.monitor_pid is not None else []
        parts += [counted(len(done.nodes), "node")] if done.nodes else []
        parts += [counted(len(done.workers), "worker")] if done.workers else []
        parts += [f"the head at {done.head}"] if done.head else []
        state = "is down" if is_down else "has no workers any more"
        show(Text(f"{name} {state}: stopped {' and '.join(parts)}", style=GOOD))
    if done.spend is not None:
        show(Text(f"It cost {money(done.spend.total)}"))
    return not (done.nothing and done.silent)

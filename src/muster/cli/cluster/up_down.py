"""Implements `muster up` and `muster down` for clusters on other machines."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.text import Text

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.known_clusters import cluster_file, clusters_root
from muster.autoscaler.launch.down import ClusterDown, DownOptions, TakenDown
from muster.autoscaler.launch.head_file import Overrides
from muster.autoscaler.launch.preflight import preflight
from muster.autoscaler.launch.session import ClusterSession, LaunchContext, open_session, read_launch
from muster.autoscaler.launch.unowned import not_asked
from muster.autoscaler.launch.up import ClusterUp, RunningCluster, UpOptions, wanted_workers
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.base.text import counted, money
from muster.cli.cluster.plan import price_range, show_plan
from muster.cli.console import GOOD, HEADING, complain, emit, remark, show
from muster.cli.up_down import confirm
from muster.config.load import is_cluster_name, load_config
from muster.config.node_launch import any_size
from muster.config.prices import load_prices
from muster.errors import ClusterError, ConfigError
from muster.host.machine import program
from muster.providers.aws.sizes import InstanceSizes


def is_elsewhere(word: str) -> bool:
    """Returns whether a file or a name is that of a cluster whose head is another machine."""
    file = cluster_file(word)
    if file is not None:
        try:
            config = load_config(file, os.environ, any_size)
        except ConfigError:
            return False  # told where the file is needed
        if config.provider.type in ("aws", "local"):
            return True
        word = config.cluster_name
    return is_cluster_name(word) and read_launch(ClusterHome.of(word, clusters_root(os.environ))) is not None


@contextmanager
def cluster_session(
    cluster: str | Path, overrides: Overrides | None = None, *, is_quiet: bool = False, starts: bool = False
) -> Iterator[ClusterSession]:
    """Opens a cluster; each step of each node is a line on the error stream.

    A command that `starts` machines asks the cloud what they have; any other needs no account for that.
    """

    def report(node: str, step: str) -> None:
        remark(f"[{node}] {step}" if node else step)

    clock = SystemClock()
    context = LaunchContext(
        root=clusters_root(os.environ),
        environment=dict(os.environ),
        clock=clock,
        ids=RandomIds(),
        report=(lambda node, step: None) if is_quiet else report,
    )
    sizes = InstanceSizes(clock, lambda line: remark(f"note: {line}")) if starts else any_size
    with open_session(str(cluster), context, overrides or Overrides(), sizes) as session:
        yield session


def up_elsewhere(file: Path, *, yes: bool, dry_run: bool, no_check: bool, **given: Any) -> bool:  # noqa: ANN401
    """Returns whether all is there that was waited for."""
    names = ("cluster_name", "min_workers", "max_workers")
    overrides = Overrides(**{name: given[name] for name in names})
    with cluster_session(file, overrides, starts=True) as session:
        prices_of_file = load_prices(session.config, session.file)
        if dry_run:
            show_plan(session.config, prices_of_file)
            _show_made(session)
        if not no_check:
            _check(session)
        if dry_run:
            return True
        if not yes:
            prices = price_range(session.config, prices_of_file)
            price = (
                "" if prices is None else f" ({money(prices[0])}/h at first, at most {money(prices[1])}/h)"
            )
            confirm(f"Start cluster {session.config.cluster_name!r}{price}?")
        session.bootstrap()
        options = UpOptions(
            no_restart=given["no_restart"],
            restart_only=given["restart_only"],
            login_shells=given["login_shells"],
            show_output=None if given["redirect_command_output"] else _show_output,
        )
        work = ClusterUp(session, options)
        running = asyncio.run(work.run())
        _show_running(session, running)
        return _all_workers(work, given["wait_for_workers"])


def _all_workers(work: ClusterUp, limit_s: float | None) -> bool:
    """Says how many workers are wanted, and waits for them where the user asked for it."""
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


def _show_made(session: ClusterSession) -> None:
    """Shows what `up` makes beside machines, and the rights that it needs for that."""
    if session.config.provider.type != "aws":
        return
    from muster.providers.aws.account import made_beside, needed_policy

    for line in made_beside(session.config):
        show(Text(f"  {line}"))
    show(Text("\nThe least policy of who runs `up`:", style=HEADING))
    emit(needed_policy(session.config).encode())


def _check(session: ClusterSession) -> None:
    """Shows what the pre-flight found; ClusterError, before anything is started, for what must fail."""
    found = asyncio.run(preflight(session))
    for finding in found:
        if not finding.is_fatal:
            remark(f"warning: {finding}")
    fatal = [finding for finding in found if finding.is_fatal]
    for finding in fatal[1:]:
        complain(str(finding))
    if fatal:
        raise ClusterError(f"{fatal[0]} (nothing was started; --no-check tries nevertheless)")


def _show_output(text: bytes) -> None:
    sys.stderr.write(text.decode("utf-8", "replace"))


def _show_running(session: ClusterSession, running: RunningCluster) -> None:
    record, name, muster = running.record, session.config.cluster_name, program()
    if not running.is_changed:
        done = f"{name} is up already, as {record.config} says: head at {record.address}"
    else:
        done = f"{name} is up: head at {record.address}"
    show(Text(done, style=GOOD), Text("\nCommands", style=HEADING))
    file = record.config
    commands = {
        f"{muster} status {file}": "show machines, waiting requests and spend",
        f"{muster} submit {file} SCRIPT.py": "run a script on the head",
        f"{muster} attach {file}": "open a terminal on the head",
        f"{muster} logs {file} --follow": "follow the monitor",
        f"{muster} down {file}": "end everything",
    }
    for command, does in commands.items():
        emit(f"  {command}   # {does}".encode())
    show(Text("\nOn the head", style=HEADING))
    for key, value in {"RAY_ADDRESS": record.address, **running.auth}.items():
        emit(f"  export {key}={value}".encode())
    for note in running.notes:
        remark(f"note: {note}")


def down_elsewhere(cluster: str, *, yes: bool, purge: bool, **given: bool) -> bool:
    """Returns whether nothing is left."""
    with cluster_session(cluster) as session:
        name = session.config.cluster_name
        what = "the workers of" if given["workers_only"] or given["keep_min_workers"] else "everything of"
        if not yes:
            confirm(f"End {what} cluster {name!r}? What runs there is lost.")
        done = asyncio.run(ClusterDown(session, DownOptions(purge=purge, **given)).run())
        return _show_down(name, str(cluster), done)


def _show_down(name: str, cluster: str, done: TakenDown) -> bool:
    for note in done.notes:
        remark(f"note: {note}")
    if done.left:
        left = "; ".join(f"{machine} ({why})" for machine, why in done.left.items())
        complain(f"{name}: these machines are left: {left}; run `{program()} down {cluster}` again")
        return False
    if done.silent:
        remark(f"note: {not_asked(done.silent)}; run `{program()} down {cluster}` again when they answer")
    if done.nothing:
        show(Text(f"{name}: nothing was found to end" if done.silent else f"{name} was down already"))
        return not done.silent
    count = len(done.workers)
    parts = [f"{count} worker{'s' if count != 1 else ''}"] if count or not done.head else []
    parts += [f"the head at {done.head}"] if done.head else []
    state = "is down" if done.head else "has no workers any more"
    show(Text(f"{name} {state}: ended {' and '.join(parts)}", style=GOOD))
    if done.spend is not None and done.spend.total:
        show(Text(f"It cost {money(done.spend.total)}"))
    return True

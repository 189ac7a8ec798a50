"""Implement the commands for a cluster that runs elsewhere: exec, submit, attach, rsync, logs and so on."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from muster.autoscaler.lifecycle.down import ClusterDown
from muster.autoscaler.lifecycle.head import auth_of
from muster.autoscaler.lifecycle.head_work import (
    attach_line,
    command_line,
    forwarded,
    log_line,
    ray_environment,
    session_kind,
)
from muster.autoscaler.lifecycle.ledger_pull import keeping_ledger
from muster.autoscaler.lifecycle.open import OpenCluster
from muster.autoscaler.lifecycle.up import ClusterUp
from muster.cli.console import complain, confirm, emit, remark
from muster.cli.up_down import opened_cluster
from muster.errors import ClusterError, CommandFailed
from muster.providers.machines import Machine
from muster.providers.rack.host_lock import LockHolder, stop_line
from muster.providers.v1.tags import STATUS_UP_TO_DATE, TAG_RAY_NODE_STATUS
from muster.remote.runner import CommandRunner, RunWhere

_NOT_FOUND = 127  # of a shell: there is no such program
FOREVER_S = 10 * 365 * 86_400.0
F = TypeVar("F", bound=Callable[..., Any])
_WIDTH = {"max_content_width": 88}


def _cluster(command: F) -> F:
    return click.argument("cluster", metavar="FILE|NAME")(command)


def _session_options(command: F) -> F:
    """Add the options that exec, submit and attach share."""
    for option in (
        click.option("--tmux", is_flag=True, help="Run in a tmux session that survives disconnects."),
        click.option("--screen", is_flag=True, help="Run in a screen session that survives disconnects."),
        click.option("--start", is_flag=True, help="Start the cluster first if it is not up."),
        click.option(
            "-p",
            "--port-forward",
            "ports",
            multiple=True,
            metavar="PORT",
            help="Forward a local port: PORT, or LOCAL:REMOTE; repeatable.",
        ),
        click.option("--no-config-cache", is_flag=True, hidden=True),
    ):
        command = option(command)
    return command


@click.command("exec", context_settings=_WIDTH)
@_cluster
@click.argument("command", metavar="COMMAND")
@click.option("--stop", is_flag=True, help="Stop the cluster when the command ends.")
@click.option(
    "--run-env",
    type=click.Choice(["auto", "host", "docker"]),
    default="auto",
    help="Run on the host or in its container.",
)
@_session_options
@click.pass_context
def exec_(ctx: click.Context, /, cluster: str, command: str, **given: Any) -> None:  # noqa: ANN401
    """Run a bash COMMAND on the head and exit with its exit code.

    muster sets RAY_ADDRESS and Ray's token for it.

    \b
    Examples:
      muster exec rack.yaml 'nvidia-smi'
      muster exec rack.yaml 'python train.py' --tmux
    """
    with opened_cluster(cluster, is_quiet=not given["start"], starts=given["start"]) as session:
        ctx.exit(_execute(session, command, **given))


@click.command(context_settings={**_WIDTH, "ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--stop", is_flag=True, help="Stop the cluster when the script ends.")
@_session_options
@_cluster
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    cluster: str,
    script: Path,
    arguments: tuple[str, ...],
    **given: Any,  # noqa: ANN401 - the options above
) -> None:
    """Copy a Python SCRIPT to the head and run it there with ARGUMENTS.

    Put options of this command before FILE; everything after SCRIPT goes to the script.

    \b
    Examples:
      muster submit rack.yaml train.py --epochs 10
      muster submit --start --stop rack.yaml train.py
    """
    with opened_cluster(cluster, is_quiet=not given["start"], starts=given["start"]) as session:
        head = _started_head(session, is_started=given.pop("start"))
        target = f"~/{script.name}"
        asyncio.run(session.runner(head.node_id).sync_up(str(script), target))
        python = shlex.quote(session.head_record().python or "python3")
        words = " ".join(map(shlex.quote, arguments))
        line = f'{python} "$HOME"/{shlex.quote(script.name)} {words}'.rstrip()
        ctx.exit(_execute(session, line, start=False, **given))


@click.command(context_settings=_WIDTH)
@_cluster
@_session_options
@click.option("-N", "--new", "is_new", is_flag=True, help="Open a new tmux or screen session.")
@click.option("--node-ip", metavar="IP", help="Attach to this worker instead of the head.")
@click.pass_context
def attach(ctx: click.Context, /, cluster: str, is_new: bool, node_ip: str | None, **given: Any) -> None:  # noqa: ANN401
    """Open a shell on the head or on a worker.

    \b
    Examples:
      muster attach rack.yaml --tmux
      muster attach rack.yaml --node-ip 10.0.0.7
    """
    with opened_cluster(cluster, is_quiet=not given["start"], starts=given["start"]) as session:
        kind, _ = session_kind(tmux=given["tmux"], screen=given["screen"]), forwarded(given["ports"])
        if node_ip is None:
            machine, settings = _started_head(session, is_started=given["start"]), _environment(session)
        else:
            machine, settings = _worker(session, node_ip), {}
        line = attach_line(kind, is_new=is_new, environment=settings)
        runner = session.runner(machine.node_id, is_head=node_ip is None)
        with keeping_ledger(session, machine):
            code = _terminal(runner, line, given["ports"])
        ctx.exit(code)


def _sync(cluster: str, source: str | None, target: str | None, *, is_all: bool, is_up: bool) -> None:
    if (source is None) != (target is None):
        raise ClusterError("give both paths, or none of them to copy all file_mounts")
    with opened_cluster(cluster, is_quiet=True) as session:
        machines = [session.running_head(), *(session.workers() if is_all else ())]
        if source is not None and target is not None:
            pairs = [(source, target)]
        else:
            mounts = session.config.file_mounts.items()
            pairs = [(here, there) if is_up else (there, here) for there, here in mounts]
        with keeping_ledger(session, machines[0]):
            asyncio.run(_copy(session, machines, pairs, is_up=is_up))


async def _copy(
    session: OpenCluster, machines: list[Machine], pairs: list[tuple[str, str]], *, is_up: bool
) -> None:
    """Copy to or from all machines side by side; from several, each into its own directory."""

    async def one(machine: Machine) -> None:
        runner = session.runner(machine.node_id, is_head=machine is machines[0])
        for source, target in pairs:
            if is_up:
                rules = session.config.rsync_exclude, session.config.rsync_filter
                await runner.sync_up(source, target, exclude=rules[0], filters=rules[1])
            else:
                place = target if len(machines) == 1 else os.path.join(target, machine.ip, "")
                await runner.sync_down(source, place)

    done = await asyncio.gather(*map(one, machines), return_exceptions=True)
    problems = [
        f"{m.ip}: {error}" for m, error in zip(machines, done, strict=True) if isinstance(error, Exception)
    ]
    if problems:
        raise ClusterError(f"not everything was copied: {'; '.join(problems)}")


@click.command("rsync-up", context_settings=_WIDTH)
@_cluster
@click.argument("source", required=False)
@click.argument("target", required=False)
@click.option("-A", "--all-nodes", "is_all", is_flag=True, help="Copy to the workers too.")
def rsync_up(cluster: str, source: str | None, target: str | None, is_all: bool) -> None:
    """Copy the local SOURCE to TARGET on the head. Default: all file_mounts of the cluster file.

    \b
    Examples:
      muster rsync-up rack.yaml data/ ~/data/
    """
    _sync(cluster, source, target, is_all=is_all, is_up=True)


@click.command("rsync-down", context_settings=_WIDTH)
@_cluster
@click.argument("source", required=False)
@click.argument("target", required=False)
@click.option("-A", "--all-nodes", "is_all", is_flag=True, help="Copy from the workers too, into TARGET/IP/.")
def rsync_down(cluster: str, source: str | None, target: str | None, is_all: bool) -> None:
    """Copy SOURCE on the head to the local TARGET. Default: all file_mounts of the cluster file.

    \b
    Examples:
      muster rsync-down rack.yaml ~/results/ results/
    """
    _sync(cluster, source, target, is_all=is_all, is_up=False)


@click.command("get-head-ip", context_settings=_WIDTH)
@_cluster
def get_head_ip(cluster: str) -> None:
    """Print the address of the head.

    \b
    Examples:
      ssh "$(muster get-head-ip rack.yaml)"
    """
    with opened_cluster(cluster, is_quiet=True) as session:
        head = session.running_head()
        status = head.tags.get(TAG_RAY_NODE_STATUS, STATUS_UP_TO_DATE)
        if status != STATUS_UP_TO_DATE:
            raise ClusterError(f"the head at {head.ip} is not set up ({status}): `muster up {session.file}`")
        emit(head.ip.encode())


def _workers(session: OpenCluster) -> list[Machine]:
    """Return the workers, and warn about hosts that may have one and did not answer."""
    workers = session.workers()
    for ip, problem in session.port.silent_hosts().items():
        remark(f"warning: host {ip} may have a worker, but did not answer: {problem}")
    return workers


@click.command("get-worker-ips", context_settings=_WIDTH)
@_cluster
def get_worker_ips(cluster: str) -> None:
    """Print the addresses of the workers, one per line.

    \b
    Examples:
      muster get-worker-ips rack.yaml
    """
    with opened_cluster(cluster, is_quiet=True) as session:
        for machine in _workers(session):
            emit(machine.ip.encode())


@click.command("kill-random-node", context_settings=_WIDTH)
@_cluster
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--hard", is_flag=True, help="Terminate the machine instead of killing Ray.")
def kill_random_node(cluster: str, yes: bool, hard: bool) -> None:
    """Kill Ray on a random worker to test fault tolerance.

    \b
    Examples:
      muster kill-random-node rack.yaml -y
    """
    with opened_cluster(cluster, is_quiet=True) as session:
        workers = _workers(session)
        if not workers:
            raise ClusterError(f"cluster {session.config.cluster_name!r} has no workers now")
        chosen = secrets.choice(workers)
        if not yes:
            confirm(f"End {'machine' if hard else 'Ray on'} {chosen.ip} ({chosen.node_id})?")
        if hard:
            session.port.terminate_machines([chosen.node_id])
        else:
            holder = LockHolder(cluster="", cloud_id=chosen.node_id, launcher="", taken_at=0.0)
            runner = session.runner(chosen.node_id, is_head=False)
            asyncio.run(runner.run(stop_line("/tmp", holder)))
        emit(chosen.ip.encode())


@click.command(context_settings=_WIDTH)
@_cluster
@click.argument("node", required=False, default="")
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Print new lines as they arrive.")
@click.option("-l", "--lines", type=click.IntRange(1), default=100, help="Number of lines. Default: 100.")
@click.pass_context
def logs(ctx: click.Context, /, cluster: str, node: str, is_followed: bool, lines: int) -> None:
    """Show the monitor log, or the setup log of the worker at address NODE.

    \b
    Examples:
      muster logs rack.yaml -f
      muster logs rack.yaml 10.0.0.7
    """
    with opened_cluster(cluster, is_quiet=True) as session:
        head = session.running_head()
        line = log_line(_head_home(session), node, lines=lines, is_followed=is_followed)
        with keeping_ledger(session, head):
            code = _run(session.runner(head.node_id), line, RunWhere.AUTO, {})
        ctx.exit(code)


def ask_head(cluster: str, command: str, words: list[str]) -> int:
    """Run a command of muster on the head, about the cluster itself; for `status` and `why`."""
    with opened_cluster(cluster, is_quiet=True) as session:
        head = session.running_head()
        python = session.head_record().python or "python3"
        line = shlex.join([python, "-m", "muster", command, *words, session.config.cluster_name])
        width = {"COLUMNS": str(shutil.get_terminal_size().columns)}
        with keeping_ledger(session, head):
            return _run(session.runner(head.node_id), line, RunWhere.AUTO, width)


# -- parts -----------------------------------------------------------------------------------------


def _execute(session: OpenCluster, command: str, *, stop: bool, start: bool, **given: Any) -> int:  # noqa: ANN401
    kind, _ = session_kind(tmux=given["tmux"], screen=given["screen"]), forwarded(given["ports"])
    head = _started_head(session, is_started=start)
    python = session.head_record().python or "python3"
    line = command_line(
        command,
        inside=kind,
        stop_with=python if stop and kind else "",
        environment=_environment(session) if kind else {},
    )
    runner, where = session.runner(head.node_id), RunWhere(given.get("run_env", "auto"))
    with keeping_ledger(session, head):
        if given["ports"]:
            code = _terminal(runner, command_line(line, environment=_environment(session)), given["ports"])
        else:
            code = _run(runner, line, where, _environment(session))
    if kind and code == _NOT_FOUND:
        complain(f"the head has no {kind}: `sudo apt install {kind}` there, or leave --{kind} out")
    elif kind and not code:
        remark(f"it runs in {kind} on the head: `muster attach {session.file} --{kind}` shows it")
    if stop and not kind:
        done = asyncio.run(ClusterDown(session).run())
        if done.left:
            complain(f"these machines are left: {', '.join(done.left)}; run `muster down {session.file}`")
            return code or 3
    return code


def _started_head(session: OpenCluster, *, is_started: bool) -> Machine:
    head = session.head()
    if head is None and is_started:
        session.bootstrap()
        asyncio.run(ClusterUp(session).run())
    return session.running_head()


def _worker(session: OpenCluster, ip: str) -> Machine:
    workers = session.workers()
    for machine in workers:
        if ip in (machine.ip, machine.node_id):
            return machine
    there = ", ".join(machine.ip for machine in workers) or "none"
    raise ClusterError(f"no worker has the address {ip}", fix=f"there are {there}")


def _head_home(session: OpenCluster) -> str:
    """Return the cluster's directory on the head; asked from there where it was launched from elsewhere."""
    known = session.head_record().home
    if known:
        return known
    head = session.running_head()
    home = asyncio.run(session.runner(head.node_id).run('echo "$HOME"')).strip().splitlines()[-1]
    return f"{home}/.muster/clusters/{session.config.cluster_name}"


def _environment(session: OpenCluster) -> dict[str, str]:
    return ray_environment(session.address(session.running_head()), auth_of(_head_home(session)))


def _run(runner: CommandRunner, line: str, where: RunWhere, environment: dict[str, str]) -> int:
    """Run a line and show what it prints; on a terminal the user can type."""
    if sys.stdin.isatty() and where is RunWhere.AUTO:
        return _terminal(runner, command_line(line, environment=environment), ())

    def show_output(text: bytes) -> None:
        sys.stdout.write(text.decode("utf-8", "replace"))
        sys.stdout.flush()

    try:
        asyncio.run(
            runner.run(line, timeout_s=FOREVER_S, where=where, environment=environment, on_output=show_output)
        )
    except CommandFailed as error:
        return error.exit_code
    return 0


def _terminal(runner: CommandRunner, line: str, ports: tuple[str, ...]) -> int:
    """Give this terminal to a process there, and returns its exit code."""
    return subprocess.run(runner.shell(line, forward=forwarded(ports)), check=False).returncode

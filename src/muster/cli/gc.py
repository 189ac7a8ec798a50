"""Implement `muster gc`: list the orphaned machines of a cluster, and terminate them on request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.base.text import counted
from muster.errors import ClusterError, ConfigError, MusterError
from muster.host.machine import program

if TYPE_CHECKING:
    from muster.autoscaler.home import ClusterHome
    from muster.autoscaler.lifecycle.gc import HeadAnswer, UnownedMachine, UnownedMachines
    from muster.autoscaler.status_files import PublishedStatus
    from muster.config.schema import ClusterConfig
    from muster.providers.machines import Machine, ManagedProvider

NOT_ENDED = 3
ASK_S = 20.0
_EPILOG = """\b
Examples:
  muster gc rack.yaml                 list orphaned machines
  muster gc rack.yaml --end           terminate them, after confirmation
  muster gc rack.yaml --end --force   also while a head runs or does not answer

The cluster name in its tags decides which cluster a machine belongs to. While a head runs, `gc` lists the
machines without a record; the head adopts or terminates them at its next tick. If the head does not answer,
`gc` lists all machines. In both cases it terminates nothing without --force, which always asks for
confirmation. Exit codes: 0 listed or terminated; 2 no such cluster, or its provider is not usable; 3 some
machines did not terminate, or some hosts did not answer.
"""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("cluster", metavar="[FILE|NAME]", required=False)
@click.option("--end", "is_ending", is_flag=True, help="Terminate the listed machines.")
@click.option("--force", is_flag=True, help="Terminate them although a head runs or does not answer.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation; ignored with --force.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def gc(
    ctx: click.Context, cluster: str | None, is_ending: bool, force: bool, yes: bool, as_json: bool
) -> None:
    """List the orphaned machines of a cluster; with --end, terminate them.

    A lost head or an interrupted `up` can leave machines behind, which cost money until you terminate them.
    """
    from muster.autoscaler.lifecycle.gc import HeadState, MachineEnder, not_asked
    from muster.base.clock import SystemClock
    from muster.base.ids import RandomIds
    from muster.cli.console import complain, confirm, remark

    if force and not is_ending:
        raise ClusterError("--force goes with --end: alone it changes nothing")
    home, config = _cluster(cluster)
    with _provider(home, config) as provider:
        found = _look(home, config, provider)
        _show(found, cluster or found.cluster_name, as_json=as_json, is_ending=is_ending)
        if not is_ending or not found.machines:
            if found.silent:
                complain(f"{found.cluster_name}: {not_asked(found.silent)}")
                ctx.exit(NOT_ENDED)
            return
        if found.head.state is not HeadState.NONE and not force:
            raise ClusterError(
                f"terminated nothing: {found.head.detail}", fix="--force asks, and terminates them anyway"
            )
        if force or not yes:
            names = ", ".join(one.cloud_id for one in found.machines)
            confirm(f"{_price(found)}. Terminate {names}?")
        ender = MachineEnder(provider, home, SystemClock(), RandomIds(), is_forced=force)
        ended = ender.run(found.machines, remark)
        settled = provider.settle(is_last=found.head.state is not HeadState.RUNS)
        remaining = {**ended.left, **settled, **found.silent}
    if remaining:
        left = "; ".join(f"{machine} ({why})" for machine, why in remaining.items())
        done = f"terminated {counted(len(ended.ended), 'machine')}"
        complain(f"{found.cluster_name}: {done}; remaining: {left}")
        ctx.exit(NOT_ENDED)
    remark(f"terminated {counted(len(found.machines), 'machine')}")


def _cluster(word: str | None) -> tuple[ClusterHome, ClusterConfig]:
    """Return the home and the config of a cluster; a file is enough, also when nothing of it is here."""
    from muster.autoscaler.home import ClusterHome
    from muster.autoscaler.known_clusters import cluster_file, clusters_root, find_cluster
    from muster.autoscaler.status_files import read_record
    from muster.config.load import any_size, is_cluster_name
    from muster.providers.kind import load_config

    root, file = clusters_root(os.environ), None if word is None else cluster_file(word)
    if file is not None:
        config = load_config(file, os.environ, any_size)
        return ClusterHome.of(config.cluster_name, root), config
    home = ClusterHome.of(word, root) if word is not None and is_cluster_name(word) else None
    if home is None or read_record(home) is None:
        home = find_cluster(word, root).home
    record = read_record(home)
    try:
        if record is None:
            raise ConfigError("the cluster is down, and its file is not known here")
        return home, load_config(Path(record.config), os.environ, any_size)
    except ConfigError as error:
        raise ClusterError(
            f"{home.path.name}: {error}", fix=f"name its file: `{program()} gc FILE`"
        ) from error


@contextmanager
def _provider(home: ClusterHome, config: ClusterConfig) -> Iterator[ManagedProvider]:
    from muster.base.clock import SystemClock
    from muster.base.ids import RandomIds
    from muster.config.to_spec import node_launches
    from muster.providers.kind import HeadPolicy, ProviderContext, build_provider, kind_of

    if kind_of(config).head is HeadPolicy.NONE:
        raise ClusterError(
            f"provider type {kind_of(config).name} launches no machines: none can be left behind"
        )
    context = ProviderContext(
        cluster_name=config.cluster_name,
        home=home.path,
        address="",
        clock=SystemClock(),
        ids=RandomIds(),
        environment=dict(os.environ),
    )
    made = build_provider(config, lambda: node_launches(config), context)
    try:
        yield made
    finally:
        made.close()


def _look(home: ClusterHome, config: ClusterConfig, provider: ManagedProvider) -> UnownedMachines:
    from msgspec.structs import replace

    from muster.autoscaler.lifecycle.gc import UnownedMachine, listed_machines, unowned, without_record
    from muster.base.clock import SystemClock
    from muster.base.ids import CloudId
    from muster.base.untrusted import error_text

    try:
        listed = listed_machines(provider, SystemClock())
    except Exception as error:
        raise ClusterError(
            f"the provider could not list the machines of {config.cluster_name!r}: {error_text(error)}"
        ) from error
    found = unowned(config, listed, _asked(home, config) or without_record(listed))
    kept = [
        UnownedMachine(cloud_id=CloudId(ip), node_type="", kind=what, ip=ip)
        for ip, what in provider.left_behind().items()
    ]
    return replace(found, machines=(*found.machines, *kept), silent=provider.silent_hosts())


def _asked(home: ClusterHome, config: ClusterConfig) -> HeadAnswer | None:
    """Ask the head that was started from here; None when none was, or the cluster is down."""
    from muster.autoscaler.lifecycle.gc import HeadAnswer, HeadState, answer_of
    from muster.autoscaler.status_files import read_record, read_status
    from muster.host.processes import is_alive

    record = read_record(home)
    if record is None:
        return None
    if not record.is_elsewhere:
        return answer_of(read_status(home), is_alive=is_alive(record.monitor), where="on this computer")
    head = record.head
    if head is None or not head.node_id:
        return None
    try:
        return asyncio.run(asyncio.wait_for(_ask_head(record.config), ASK_S))
    except (MusterError, TimeoutError, asyncio.TimeoutError) as error:
        why = str(error) or f"no answer within {ASK_S:g} s"
        return HeadAnswer(state=HeadState.SILENT, detail=f"the head at {head.ip} cannot be asked ({why})")


async def _ask_head(file: str) -> HeadAnswer:
    from muster.autoscaler.lifecycle.gc import HeadAnswer, HeadState, answer_of

    found = await head_status(file)
    if found is None:
        return HeadAnswer(state=HeadState.NONE, detail="the head's machine is gone")
    status, head, is_alive = found
    return answer_of(status, is_alive=is_alive, where=f"on the head {head.ip}", head_id=head.node_id)


async def head_status(file: str) -> tuple[PublishedStatus | None, Machine, bool] | None:
    """Read the status of the monitor on the head's machine, and whether it runs; None: the head is gone."""
    import shlex

    import msgspec

    from muster.autoscaler.status_files import PublishedStatus
    from muster.base import codec
    from muster.cli.up_down import opened_cluster

    with opened_cluster(file, is_quiet=True) as session:
        head = await asyncio.to_thread(session.head)
        if head is None:
            return None
        path = shlex.quote(f"{session.head_record().home}/status.json")
        runner = session.runner(head.node_id)
        text = await runner.run(f"cat {path} 2>/dev/null || true", timeout_s=ASK_S)
        lines = [line for line in text.splitlines() if line.startswith("{")]  # a profile may print, too
        status = codec.convert(msgspec.json.decode(lines[-1]), PublishedStatus) if lines else None
        pid = 0 if status is None else status.monitor_pid
        alive = await runner.run(f"kill -0 {int(pid)} 2>/dev/null && echo alive || true") if pid else ""
        return status, head, "alive" in alive


def _show(found: UnownedMachines, word: str, *, as_json: bool, is_ending: bool) -> None:
    from rich.text import Text

    from muster.base import codec
    from muster.cli.console import HEADING, emit, show

    if as_json:
        emit(codec.encode_plain({**codec.to_builtins(found), "price_per_hour": found.price_per_hour}))
        return
    if not found.machines:
        nothing = "nothing was found" if found.silent else "nothing is left behind"
        show(Text(f"{found.cluster_name}: {nothing}; {found.head.detail}"))
        return
    title = f"{found.cluster_name}: {counted(len(found.machines), 'orphaned machine')}"
    show(Text(title, style=HEADING), Text(found.head.detail))
    for line in _lines(found.machines):
        emit(f"  {line}".rstrip().encode())
    if not is_ending:
        end = f"`{program()} gc {word} --end` terminates them"
        emit(f"{_price(found)}; {end}".encode())


def _lines(machines: tuple[UnownedMachine, ...]) -> Iterator[str]:
    rows = [
        (
            one.cloud_id,
            one.kind,
            one.node_type or "-",
            one.ip or "-",
            "price not known" if one.price_per_hour is None else f"${one.price_per_hour:g}/h",
        )
        for one in machines
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))


def _price(found: UnownedMachines) -> str:
    price = found.price_per_hour
    return "Their price is not known" if price is None else f"Together they cost ${price:g} per hour"

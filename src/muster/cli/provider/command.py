"""Implements `muster provider check` and `muster provider end`."""

from __future__ import annotations

import logging
import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from muster.errors import ConfigError
from muster.host.machine import program

if TYPE_CHECKING:
    from muster.providers.contract.live import LiveProvider
    from muster.providers.contract.subject import Check

BROKEN = 1
_FILE = click.Path(path_type=Path)


@click.group()
def provider() -> None:
    """Check that a provider keeps what it promises, before it costs money."""


_CHECK_EPILOG = """\b
Examples:
  muster provider check rack_provider.RackProvider --config rack.yaml
  muster provider check --config aws.yaml --type small --several 1 --threads 2
  muster provider check my.Provider --config my.yaml -y --json > report.json

The machines belong to clusters with names of their own, and are ended line by line; Ctrl-C and SIGTERM end
them, too. Exit codes: 0 every line that applies is kept; 1 a line is broken, the check was interrupted, or
machines are left; 2 bad input, nothing was created.
"""


@provider.command(epilog=_CHECK_EPILOG, context_settings={"max_content_width": 88})
@click.argument("module", metavar="[MODULE.CLASS]", required=False)
@click.option("--config", required=True, type=_FILE, metavar="FILE", help="The cluster file to make it from.")
@click.option(
    "--type", "node_type", metavar="NAME", help="The node type to create. Default: the first worker."
)
@click.option(
    "--several", type=click.IntRange(1, 50), default=3, show_default=True, help="Machines of a line."
)
@click.option(
    "--threads", type=click.IntRange(2, 50), default=8, show_default=True, help="Callers at a time."
)
@click.option(
    "--starts-within",
    type=click.FloatRange(min=0.01),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds until a created machine must be running.",
)
@click.option(
    "--call-limit",
    type=click.FloatRange(min=0.01),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds that one call may take; a line may take 5 times as long, and ending its machines twice.",
)
@click.option(
    "--errors",
    type=_FILE,
    metavar="FILE",
    help="How to provoke refusals: kind to keys of provider or node_config.",
)
@click.option("--line", "lines", multiple=True, metavar="TEXT", help="Only lines with this text. Repeatable.")
@click.option("--list", "only_list", is_flag=True, help="Show the lines and the cost, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before machines are created.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def check(ctx: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click passes them by name
    """Run every line of the provider contract against MODULE.CLASS, live, and report what it saw.

    MODULE.CLASS may be left out when FILE names it (provider: {type: external, module: ...}).
    """
    from muster.base.clock import SystemClock
    from muster.base.ids import RandomIds
    from muster.cli.console import confirm
    from muster.cli.provider import report
    from muster.providers.contract.live import RefusalFile, load_refusals, run_name
    from muster.providers.contract.run import ContractRun, cost_bound
    from muster.providers.contract.subject import CheckSizes

    live, checks = _live(options), _chosen_lines(options["lines"])
    refusals = load_refusals(options["errors"]) if options["errors"] else RefusalFile()
    sizes = CheckSizes(
        options["several"], options["threads"], options["starts_within"], options["call_limit"]
    )
    bound, run = cost_bound(checks, sizes, live.price_per_hour), run_name(RandomIds())
    page = report.Page(live.class_name, run, len(checks), as_json=options["as_json"])
    page.show_plan(live.node_type, bound, checks if options["only_list"] else ())
    if options["only_list"]:
        return
    if not options["yes"]:
        confirm(f"Create them, in clusters named {run}-*?", default=False, err=True)
    logging.getLogger("muster").addHandler(logging.NullHandler())  # the report has what the adapter logs
    clock = SystemClock()
    with _signals_interrupt(), page:
        with _named_in(options["config"]):
            live = live.completed(run, sizes, clock)
        subjects = live.subjects(run, sizes, refusals, clock)
        found = ContractRun(subjects, begin=page.begin, done=page.done, ending=page.ending).run(checks)
    page.show_end(found, bound, _how_to_end(live.class_name, options["config"]))
    ctx.exit(0 if found.kept else BROKEN)


def _live(options: Mapping[str, Any]) -> LiveProvider:
    from muster.config.load import any_size
    from muster.providers.contract.live import live_provider
    from muster.providers.kind import load_config

    config = load_config(options["config"], os.environ, any_size)
    with _named_in(options["config"]):
        return live_provider(config, options["module"], options.get("node_type"))


@contextmanager
def _named_in(file: Path) -> Iterator[None]:
    """Adds the file to errors about what stands in it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message, path=error.path, file=str(file), fix=error.fix) from error


def _chosen_lines(words: Sequence[str]) -> tuple[Check, ...]:
    from muster.providers.contract.run import CHECKS

    chosen = tuple(
        check
        for check in CHECKS
        if not words or any(word.lower() in (check.line, check.name) or word in check.line for word in words)
    )
    if not chosen:
        raise ConfigError(
            f"--line: no line of the contract has {' or '.join(map(repr, words))}", fix="see --list"
        )
    return chosen


def _how_to_end(module: str, file: Path) -> str:
    return f"{program()} provider end {module} --config {shlex.quote(str(file))}"


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Lets SIGTERM and a closed terminal do what Ctrl-C does: machines are ended first."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_END_EPILOG = """\b
Example:
  muster provider end rack_provider.RackProvider muster-check-0a1b2c3d4e5f --config rack.yaml

The report of `muster provider check` names the run and its clusters. Exit codes: 0 nothing of them is listed
any more; 1 machines are left; 2 bad input.
"""


@provider.command(epilog=_END_EPILOG, context_settings={"max_content_width": 88})
@click.argument("words", metavar="[MODULE.CLASS] RUN|CLUSTER...", nargs=-1, required=True)
@click.option("--config", required=True, type=_FILE, metavar="FILE", help="The cluster file of that check.")
@click.pass_context
def end(ctx: click.Context, words: Sequence[str], config: Path) -> None:
    """End the machines that a check has left: one that was killed, or whose provider did not answer."""
    from muster.base.clock import SystemClock
    from muster.cli.provider import report
    from muster.providers.contract.live import RUN_PREFIX, RefusalFile, clusters_of
    from muster.providers.contract.run import end_clusters
    from muster.providers.contract.subject import CheckSizes

    module = words[0] if not words[0].startswith(RUN_PREFIX) else None
    names = [name for word in words[int(module is not None) :] for name in clusters_of(word)]
    if not names:
        raise ConfigError("names no run", fix=f"add it, for example {RUN_PREFIX}-0a1b2c3d4e5f")
    live, clock, sizes = _live({"config": config, "module": module}), SystemClock(), CheckSizes()
    with _named_in(config):
        live = live.completed(names[0], sizes, clock)
    subject = live.subjects("", sizes, RefusalFile(), clock)()
    with _signals_interrupt():
        left = end_clusters(subject, names)
    report.show_left(left, _how_to_end(live.class_name, config))
    ctx.exit(BROKEN if left else 0)


@provider.command(context_settings={"max_content_width": 88})
@click.option("--config", required=True, type=_FILE, metavar="FILE", help="A cluster file of provider aws.")
def prices(config: Path) -> None:
    """Print a price file for the machine types of FILE, from AWS's own lists.

    Put it beside FILE and name it under `muster: {prices: ...}`; each zone and market with a price is an
    offer then. Needs the rights pricing:GetProducts and ec2:DescribeSpotPriceHistory.
    """
    from muster.base.clock import SystemClock
    from muster.cli.console import emit
    from muster.config.load import any_size
    from muster.providers.kind import kind_of, load_config

    loaded = load_config(config, os.environ, any_size)
    with _named_in(config):
        emit(kind_of(loaded).price_list(loaded, SystemClock()).rstrip("\n").encode())

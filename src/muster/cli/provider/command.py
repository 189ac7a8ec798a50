"""Implement `muster provider check` and `muster provider end`."""

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


@click.group(epilog="\b\nExamples:\n  muster provider check --config rack.yaml rack_provider.RackProvider")
def provider() -> None:
    """Check a node provider against the contract before you use it."""


_CHECK_EPILOG = """\b
Examples:
  muster provider check rack_provider.RackProvider --config rack.yaml
  muster provider check --config aws.yaml --type small --several 1 --threads 2
  muster provider check my.Provider --config my.yaml -y --json > report.json

Each check runs in a separate cluster and terminates its machines, also after Ctrl-C and SIGTERM.
Exit codes: 0 all applicable checks passed; 1 a check failed, or machines are left;
2 bad input, nothing was created; 130 interrupted.
"""


@provider.command(
    short_help="Run the contract on real machines.",
    epilog=_CHECK_EPILOG,
    context_settings={"max_content_width": 88},
)
@click.argument("module", metavar="[MODULE.CLASS]", required=False)
@click.option(
    "--config", required=True, type=_FILE, metavar="FILE", help="Cluster file that configures the provider."
)
@click.option(
    "--type", "node_type", metavar="NAME", help="Node type to launch. Default: the first worker type."
)
@click.option(
    "--several", type=click.IntRange(1, 50), default=3, show_default=True, help="Machines per check."
)
@click.option(
    "--threads", type=click.IntRange(2, 50), default=8, show_default=True, help="Concurrent callers."
)
@click.option(
    "--starts-within",
    type=click.FloatRange(min=0.01),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds within which a new machine must run.",
)
@click.option(
    "--call-limit",
    type=click.FloatRange(min=0.01),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Time limit per call; a check has 5 times as long, its cleanup twice.",
)
@click.option(
    "--errors",
    type=_FILE,
    metavar="FILE",
    help="Maps each refusal to the provider or node_config keys that provoke it.",
)
@click.option(
    "--line",
    "lines",
    multiple=True,
    metavar="TEXT",
    help="Run only checks that contain this text; repeatable.",
)
@click.option("--list", "only_list", is_flag=True, help="List the checks and the cost, and exit.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def check(ctx: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click passes them by name
    """Run the provider contract against MODULE.CLASS on real machines.

    You can omit MODULE.CLASS when FILE names it (provider: {type: external, module: ...}).
    """
    from muster.base.clock import SystemClock
    from muster.base.ids import RandomIds
    from muster.cli.console import confirm
    from muster.cli.main import INTERRUPTED
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
    ctx.exit(INTERRUPTED if found.interrupted else 0 if found.kept else BROKEN)


def _live(options: Mapping[str, Any]) -> LiveProvider:
    from muster.config.load import any_size
    from muster.providers.contract.live import live_provider
    from muster.providers.kind import load_config

    config = load_config(options["config"], os.environ, any_size)
    with _named_in(options["config"]):
        return live_provider(config, options["module"], options.get("node_type"))


@contextmanager
def _named_in(file: Path) -> Iterator[None]:
    """Add the file to errors about what stands in it."""
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
    """Let SIGTERM and a closed terminal do what Ctrl-C does: machines are ended first."""

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
Examples:
  muster provider end rack_provider.RackProvider muster-check-0a1b2c3d4e5f --config rack.yaml

The report of `muster provider check` names the run and its clusters. Exit codes: 0 no machine is left;
1 machines are left; 2 bad input.
"""


@provider.command(
    short_help="Terminate machines that a check left.",
    epilog=_END_EPILOG,
    context_settings={"max_content_width": 88},
)
@click.argument("words", metavar="[MODULE.CLASS] RUN|CLUSTER...", nargs=-1, required=True)
@click.option("--config", required=True, type=_FILE, metavar="FILE", help="Cluster file of the check.")
@click.pass_context
def end(ctx: click.Context, words: Sequence[str], config: Path) -> None:
    """Terminate the machines that an interrupted check left behind."""
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


@provider.command(short_help="Print an AWS price file.", context_settings={"max_content_width": 88})
@click.option("--config", required=True, type=_FILE, metavar="FILE", help="Cluster file with provider aws.")
def prices(config: Path) -> None:
    """Print a price file for the machine types of FILE, from AWS price lists.

    Save it next to FILE and name it under `muster: {prices: ...}`. Each zone and market with a price becomes
    an offer. Requires pricing:GetProducts and ec2:DescribeSpotPriceHistory.

    \b
    Examples:
      muster provider prices --config aws.yaml > prices.csv
    """
    from muster.base.clock import SystemClock
    from muster.cli.console import emit
    from muster.config.load import any_size
    from muster.providers.kind import kind_of, load_config

    loaded = load_config(config, os.environ, any_size)
    with _named_in(config):
        emit(kind_of(loaded).price_list(loaded, SystemClock()).rstrip("\n").encode())

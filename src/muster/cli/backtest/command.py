"""Implements `muster backtest`: reads the options, replays the history, shows what it came to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.base.codec import encode_plain
from muster.cli.console import TABLE_WIDTH, console, emit, remark
from muster.cluster.model import MARKETS, Objective
from muster.errors import StoreError

if TYPE_CHECKING:
    from muster.sim.backtest.compare import BacktestReport

_EPILOG = """\b
Examples:
  muster backtest laptop                         the history of the cluster "laptop"
  muster backtest ~/.muster/clusters/laptop/history --cluster other.yaml
  muster backtest laptop --objective cost --objective utilization --idle-timeout 1
  muster backtest laptop --prices prices.csv --market spot --spot spot.json --plot costs.png

\b
Exit codes:
  0  shown
  2  not a history, or a file that cannot be used
"""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("trace", metavar="TRACE")
@click.option(
    "--cluster",
    "clusters",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A cluster file to compare with; repeat it for more.",
)
@click.option(
    "--prices", type=click.Path(path_type=Path), help="A price file (CSV) instead of the prices then."
)
@click.option(
    "--spot",
    type=click.Path(path_type=Path),
    help="Series (JSON) of how many spot machines there are; each pool gets one of them.",
)
@click.option(
    "--objective",
    "objectives",
    type=click.Choice([each.value for each in Objective]),
    multiple=True,
    help="What the planner optimises; repeat it for more.",
)
@click.option(
    "--market",
    "markets",
    type=click.Choice(MARKETS),
    multiple=True,
    help="Buy only there; repeat it for more.",
)
@click.option(
    "--idle-timeout",
    "idle_minutes",
    type=click.FloatRange(min=0),
    multiple=True,
    metavar="MINUTES",
    help="How long machines stay without work; repeat it for more.",
)
@click.option(
    "--starts",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="How many shifted starts each variant is replayed from.",
)
@click.option(
    "--tick", "tick_s", type=click.FloatRange(min=0.2, max=600), help="Least seconds between two ticks."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes. Default: one per CPU.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write a picture (PNG) of costs and waiting times."
)
def backtest(trace: str, as_json: bool, plot: Path | None, **given: Any) -> None:  # noqa: ANN401 - see above
    """Replay the history of a cluster in virtual time: what would it have cost otherwise?

    TRACE is the name of a cluster, its directory `history`, or a file in it. The same controller runs against
    the demand of then, under the recorded settings and under every combination of those given here.
    """
    from muster.cli.backtest.report import backtest_page, draw, need_matplotlib

    if plot is not None:
        need_matplotlib()
    report = _report(history_place(trace), ReplayOptions(**given))
    if plot is not None:
        draw(report, plot)
        remark(f"written: {plot}")
    if as_json:
        emit(encode_plain(report))
        return
    page = console(TABLE_WIDTH)
    for part in backtest_page(report, page.width):
        page.print(part)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """ReplayOptions are the options of the command that say what is replayed, as given."""

    clusters: tuple[Path, ...]
    prices: Path | None
    spot: Path | None
    objectives: tuple[str, ...]
    markets: tuple[str, ...]
    idle_minutes: tuple[float, ...]
    starts: int
    tick_s: float | None
    jobs: int | None


def _report(place: Path, given: ReplayOptions) -> BacktestReport:
    from muster.sim.backtest.compare import backtest as replayed
    from muster.sim.backtest.recording import read_recording
    from muster.sim.backtest.variants import VariantOptions, variants_of

    options = VariantOptions(
        clusters=given.clusters,
        prices=given.prices,
        spot=given.spot,
        objectives=tuple(map(Objective, given.objectives)),
        markets=given.markets,
        idle_timeouts_s=tuple(60.0 * minutes for minutes in given.idle_minutes),
    )
    variants = variants_of(read_recording(place).specs, options)
    jobs = given.jobs or os.cpu_count() or 1
    return replayed(place, variants, starts=given.starts, jobs=jobs, tick_s=given.tick_s)


def history_place(trace: str) -> Path:
    """Returns the files of a history: those at the path, else those of the cluster with this name."""
    path = Path(trace).expanduser()
    if path.exists():
        return path
    if os.sep in trace:
        raise StoreError(f"{trace}: no such file or directory", fix="name a cluster, or the history of one")
    from muster.autoscaler.known_clusters import clusters_root, find_cluster

    found = find_cluster(trace, clusters_root(os.environ))
    if not found.home.history.is_dir():
        raise StoreError(
            f"{found.home.history}: cluster {found.name} has no history yet", fix="let its monitor run"
        )
    return found.home.history

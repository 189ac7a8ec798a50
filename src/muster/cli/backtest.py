"""Implement `muster backtest`: reads the options, replays the history, shows what it came to."""

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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from muster.base.text import counted, duration, moment, money, short_duration
from muster.cli.console import HEADING, QUIET, new_figure, output_option, save_figure
from muster.cli.grid import PageSize, TableGrid
from muster.sim.backtest.compare import BacktestReport, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EPILOG = """\b
Examples:
  muster backtest laptop                         the history of the cluster "laptop"
  muster backtest ~/.muster/clusters/laptop/history --cluster-file other.yaml
  muster backtest laptop --objective cost --objective utilization --idle-timeout 1
  muster backtest laptop --prices prices.csv --market spot --spot spot.json -o costs.png

\b
Exit codes:
  0  shown
  2  not a history, or a file that cannot be used
"""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("trace", metavar="TRACE")
@click.option(
    "--cluster-file",
    "clusters",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Cluster file to compare with; repeatable.",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    help="Price file (CSV) to use instead of the recorded prices.",
)
@click.option(
    "--spot",
    type=click.Path(path_type=Path),
    help="Series (JSON) of spot capacity; each pool gets one of them.",
)
@click.option(
    "--objective",
    "objectives",
    type=click.Choice([each.value for each in Objective]),
    multiple=True,
    help="Planner objective; repeatable.",
)
@click.option(
    "--market",
    "markets",
    type=click.Choice(MARKETS),
    multiple=True,
    help="Launch only in this market; repeatable.",
)
@click.option(
    "--idle-timeout",
    "idle_minutes",
    type=click.FloatRange(min=0),
    multiple=True,
    metavar="MINUTES",
    help="Idle timeout; repeatable.",
)
@click.option(
    "--starts",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Replays per variant, from shifted starts.",
)
@click.option(
    "--tick", "tick_s", type=click.FloatRange(min=0.2, max=600), help="Minimum seconds between ticks."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes. Default: one per CPU.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@output_option(help="Write a plot (PNG) of costs and waiting times.")
def backtest(trace: str, as_json: bool, output: Path | None, **given: Any) -> None:  # noqa: ANN401 - see above
    """Replay the history of a cluster with other settings, and compare costs.

    TRACE is the name of a cluster, its directory `history`, or a file in it. The same controller runs against
    the recorded demand, with the recorded settings and with every combination of the options below.
    """
    figure = None if output is None else new_figure(11, 4.6)  # fails before anything is replayed
    report = _report(history_place(trace), ReplayOptions(**given))
    if output is not None and figure is not None:
        left, right = figure.subplots(1, 2)
        _draw_costs(left, report)
        _draw_spend(right, report)
        figure.suptitle(f"{duration(report.until - report.since)} of {report.cluster}, replayed")
        save_figure(figure, output)
        remark(f"written: {output}")
    if as_json:
        emit(encode_plain(report))
        return
    page = console(TABLE_WIDTH)
    for part in backtest_page(report, page.width):
        page.print(part)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The options of the command that say what is replayed, as given."""

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
    """Return the files of a history: those at the path, else those of the cluster with this name."""
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


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def backtest_page(report: BacktestReport, width: int) -> Iterator[RenderableType]:
    """Yield the page, top to bottom."""
    length = duration(report.until - report.since)
    yield Text.assemble((f"{length} of {report.cluster}", HEADING), (f"  from {moment(report.since)}", QUIET))
    frame = PageSize(width=width, others=100)
    rows = len(report.variants) + 1
    starts = counted(max(each.starts for each in report.variants), "start")
    yield from _costs(report).section(f"Cost, replayed from {starts}", frame, of=rows)
    yield from _service(report).section("Waiting", frame, of=rows)
    yield Text(f"\n{_EXPLAINED}", style=QUIET)
    known = TableGrid("", "~")
    for kind, what in report.provenance:
        known.add(kind, what)
    yield from known.section("What the recording knows", frame, of=len(report.provenance))


_EXPLAINED = (
    "Medians, in brackets the spread over the starts. cost: within the recorded time, and in % of what was "
    "recorded; late: to finish the rest afterwards; done: requests done by then; again: requests that "
    "had to start again; launched: machines."
)


def _costs(report: BacktestReport) -> TableGrid:
    grid, recorded = TableGrid("~variant", ">cost", ">", ">late", ">done", ">node-h"), report.recorded
    grid.add("recorded", money(round(recorded.cost, 2)), "", "", "", f"{recorded.node_hours:.1f}")
    for each in report.variants:
        late = "" if each.late_cost.median < 0.005 else money(round(each.late_cost.median, 2))
        hours = _spread(each.node_hours, lambda value: f"{value:.1f}")
        done = f"{100 * each.done.median:.0f} %"
        cost = money(round(each.cost.median, 2))
        grid.add(each.name, cost, _percent(each.cost, recorded.cost), late, done, hours)
    return grid


def _service(report: BacktestReport) -> TableGrid:
    grid, recorded = TableGrid("~variant", ">p50", ">p95", ">again", ">launched"), report.recorded
    waits = short_duration(recorded.wait_p50_s), short_duration(recorded.wait_p95_s)
    grid.add("recorded", *waits, str(recorded.interruptions), str(recorded.machines))
    for each in report.variants:
        again, launched = _spread(each.interruptions, _whole), _spread(each.machines, _whole)
        waits = _spread(each.wait_p50_s, short_duration), _spread(each.wait_p95_s, short_duration)
        grid.add(each.name, *waits, again, launched)
    return grid


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _spread(spread: Spread, shown: Callable[[float], str]) -> str:
    low, high, middle = shown(spread.low), shown(spread.high), shown(spread.median)
    return middle if low == high else f"{middle} ({low}-{high})"


def _percent(cost: Spread, recorded: float) -> str:
    if not recorded:
        return ""
    low, high = (f"{100 * value / recorded:.0f}" for value in (cost.low, cost.high))
    return f"{100 * cost.median / recorded:.0f} %" + (f" ({low}-{high})" if low != high else "")


def _draw_costs(axes: Axes, report: BacktestReport) -> None:
    """One point per variant: to the left is cheaper, lower is served sooner."""
    axes.scatter(
        [report.recorded.cost], [report.recorded.wait_p95_s], marker="x", color="black", label="recorded"
    )
    for position, each in enumerate(report.variants):
        cost, wait = each.cost, each.wait_p95_s
        axes.errorbar(
            [cost.median],
            [wait.median],
            xerr=[[cost.median - cost.low], [cost.high - cost.median]],
            yerr=[[wait.median - wait.low], [wait.high - wait.median]],
            fmt="o",
            capsize=3,
            color=_COLOURS[position % len(_COLOURS)],
            label=each.name,
        )
    axes.set(xlabel="cost within the recorded time, $", ylabel="waiting time, 95th percentile, s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_spend(axes: Axes, report: BacktestReport) -> None:
    for position, each in enumerate(report.variants):
        hours = [at / 3600.0 for at, _ in each.spend]
        axes.plot(hours, [spent for _, spent in each.spend], color=_COLOURS[position % len(_COLOURS)])
    axes.axvline((report.until - report.since) / 3600.0, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="hours from the start of the recording", ylabel="spent, $")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)

"""Shows a backtest as a table and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from muster.base.text import counted, duration, moment, money, short_duration
from muster.cli.console import HEADING, QUIET, save_figure
from muster.cli.grid import PageSize, TableGrid
from muster.errors import StoreError
from muster.sim.backtest.compare import BacktestReport, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def backtest_page(report: BacktestReport, width: int) -> Iterator[RenderableType]:
    """Yields the page, top to bottom."""
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
    "had to start again; bought: machines."
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
    grid, recorded = TableGrid("~variant", ">p50", ">p95", ">again", ">bought"), report.recorded
    waits = short_duration(recorded.wait_p50_s), short_duration(recorded.wait_p95_s)
    grid.add("recorded", *waits, str(recorded.interruptions), str(recorded.machines))
    for each in report.variants:
        again, bought = _spread(each.interruptions, _whole), _spread(each.machines, _whole)
        waits = _spread(each.wait_p50_s, short_duration), _spread(each.wait_p95_s, short_duration)
        grid.add(each.name, *waits, again, bought)
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


def need_matplotlib() -> None:
    """Raises before anything is replayed when no picture can be drawn."""
    if find_spec("matplotlib") is None:
        raise StoreError("--plot needs matplotlib, which is not installed", fix="pip install matplotlib")


def draw(report: BacktestReport, path: Path) -> None:
    """Writes the picture: cost against waiting time, and spend over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_costs(left, report)
    _draw_spend(right, report)
    figure.suptitle(f"{duration(report.until - report.since)} of {report.cluster}, replayed")
    save_figure(figure, path)


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

"""Implement `muster estimate`: cost and duration of a script's experiment on a cluster, before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from muster.base.text import counted
from muster.cli.backtest import history_place
from muster.cli.console import QUIET, ProgressLine, emit, new_figure, output_option, remark, save_figure, show
from muster.cli.sim.tune_command import launch_of

if TYPE_CHECKING:
    from muster.sim.quote.quote import Quote


@click.command()
@click.argument("script", type=click.Path(path_type=Path))
@click.option(
    "--cluster-file", required=True, type=click.Path(path_type=Path), help="Cluster file with prices."
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.01, max=120),
    default=3.0,
    show_default=True,
    help="Minutes to run trials on this computer to measure step times.",
)
@click.option(
    "--step-s", type=click.FloatRange(min=0, min_open=True), help="Seconds per step; no trial runs."
)
@click.option(
    "--starts", type=click.IntRange(min=1), default=10, show_default=True, help="Simulated runs per variant."
)
@click.option(
    "--boot-s",
    type=click.FloatRange(min=0),
    help="Seconds from launch to a ready node. Default: 90 to boot, 60 to set up.",
)
@click.option(
    "--start-s",
    type=click.FloatRange(min=0),
    help="Seconds from placing a trial to its first step. Default: 5.",
)
@click.option(
    "--history",
    metavar="TRACE",
    help="Use the boot times recorded for this cluster, or in this `history` directory.",
)
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    help="Use the start times of this experiment, which ran on the cluster.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@output_option(help="Write a plot of cost against time to this file.")
def estimate(script: Path, cluster_file: Path, **given: Any) -> None:  # noqa: ANN401 - the options
    """Estimate the cost and duration of the experiment in SCRIPT, for several variants of the cluster.

    Runs its trials on this computer for a few minutes, then simulates the whole run: scheduler, searcher,
    autoscaler, and the machines of the cluster file at their prices.

    \b
    Examples:
      muster estimate train.py --cluster-file cluster.yaml
      muster estimate train.py --cluster-file cluster.yaml --step-s 40 -o cost.png
      muster estimate train.py --cluster-file cluster.yaml --history laptop --like results/search

    Exit codes: 0 success; 2 bad input.
    """
    from muster.providers.kind import load_spec
    from muster.sim.quote.quote import assumptions_of, quote

    asked, spec = launch_of(script), load_spec(cluster_file)
    assumed = assumptions_of(
        starts=given["starts"],
        boot_s=given["boot_s"],
        start_s=given["start_s"],
        history=None if given["history"] is None else history_place(given["history"]),
        like=given["like"],
    )
    with ProgressLine() as progress:
        found = quote(
            asked,
            spec,
            minutes=given["minutes"],
            step_s=given["step_s"],
            assumed=assumed,
            progress=progress.show,
        )
    if given["as_json"]:
        emit(msgspec.json.encode(found))
    else:
        show(*_page(found))
    if given["output"] is not None:
        draw(found, given["output"])
        remark(f"plot: {given['output']}")


def _page(found: Quote) -> Iterator[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("variant", "cost", "nine of ten", "time", "best", "to get it"):
        is_number = name not in ("variant", "to get it")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    first = found.lines[0]
    digits = ".2f" if first.cost >= 0.1 else ".4f"
    for line in found.lines:
        if line.best is None:
            best = ""
        elif line is first or not first.best:
            best = f"{line.best:.4g}"
        else:
            best = f"{(line.best - first.best) / abs(first.best):+.1%}"
        table.add_row(
            line.name,
            f"${line.cost:{digits}}",
            f"${line.cost_low:{digits}} to {line.cost_high:{digits}}",
            f"{line.hours:.1f} h" if line.hours >= 1.0 else f"{60 * line.hours:.0f} min",
            best,
            line.change,
        )
    yield table
    source = (
        f"a step takes {found.step_s:.3g} s, measured on {counted(found.measured_on, 'trial')}"
        + (f" ({found.failed} failed, and so does their share of the simulated ones)" if found.failed else "")
        if found.measured_on
        else f"a step takes {found.step_s:.3g} s, as given; curves are made up"
    )
    yield Text(
        f"{source}; {counted(found.trials, 'trial')}; each line is {found.starts} simulated runs", style=QUIET
    )


def draw(found: Quote, path: Path) -> None:
    """Draw cost against time to a file, a point with its interval for each variant."""
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    for line in found.lines:
        axes.errorbar(
            line.hours,
            line.cost,
            xerr=[[line.hours - line.hours_low], [line.hours_high - line.hours]],
            yerr=[[max(0.0, line.cost - line.cost_low)], [max(0.0, line.cost_high - line.cost)]],
            fmt="o",
            capsize=3,
            label=line.name,
        )
    axes.set(xlabel="hours", ylabel="$", title="Cost and time; the bars hold nine of ten runs")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)

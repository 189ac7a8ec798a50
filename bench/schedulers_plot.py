"""Draw the scheduler benchmark: a row per problem, best value over hours and over node-hours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.schedulers_run import SchedulerRun

POINTS = 80
_DASHES = ("-", "--", ":")
AXES = {"hours": "simulated hours", "node_hours": "node-hours"}


def quantiles(runs: Sequence[SchedulerRun], axis: str, moment: float) -> tuple[float, float, float]:
    """Return the quartiles and the median of the value at a moment; NaN while a run has none."""
    values = sorted(run.at(axis, moment) for run in runs)
    if any(math.isnan(value) for value in values):
        return (math.nan,) * 3
    return tuple(values[round(share * (len(values) - 1))] for share in (0.25, 0.5, 0.75))  # type: ignore[return-value]


def span(runs: Sequence[SchedulerRun], axis: str) -> float:
    return max(run.end_h if axis == "hours" else run.used_node_h for run in runs)


def draw(
    board: Mapping[str, Mapping[str, Sequence[SchedulerRun]]], optima: Mapping[str, float], path: Path
) -> None:
    """Draw regret (value less optimum) on a log scale: medians as lines, quartiles as bands."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(len(board), 2, figsize=(14, 4.2 * len(board)), squeeze=False)
    for row, (problem, entries) in zip(grid, board.items(), strict=True):
        for axis, cell in zip(AXES, row, strict=True):
            for number, (name, runs) in enumerate(entries.items()):
                style = {"color": f"C{number % 10}", "linestyle": _DASHES[number // 10 % 3]}
                _line(cell, runs, axis, optima[problem], {**style, "label": name})
            cell.set(
                title=problem, xlabel=AXES[axis], ylabel="regret of the incumbent", yscale="log", xscale="log"
            )
            cell.grid(alpha=0.3)
        row[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    pyplot.close(figure)


def _line(cell, runs: Sequence[SchedulerRun], axis: str, optimum: float, style: Mapping[str, str]) -> None:
    end = span(runs, axis)
    moments = [end * 10 ** (-2.5 + 2.5 * k / (POINTS - 1)) for k in range(POINTS)]
    bands = [quantiles(runs, axis, moment) for moment in moments]
    regret = [[max(value - optimum, 1e-6) for value in band] for band in zip(*bands, strict=True)]
    cell.plot(moments, regret[1], linewidth=1.3, **style)
    cell.fill_between(moments, regret[0], regret[2], color=style["color"], alpha=0.08)

"""Draw the best value so far of several experiments over each other, as an SVG or PNG file."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from muster.trials.metrics import flatten
from muster.tune.analysis.tables import number
from muster.tune.pareto import violations
from muster.tune.plots.axes import number_ticks, scaled

if TYPE_CHECKING:
    from muster.tune.analysis import ExperimentAnalysis

X_AXES = {"results": "results of all trials", "time": "seconds since the first trial ended"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 72, 24, 20, 52
MOST_POINTS = 2_000  # of one line; more cannot be seen


@dataclass(frozen=True)
class ProgressCurve:
    """The best last value of a trial, after each trial of an experiment."""

    name: str
    seconds: np.ndarray
    best: np.ndarray
    results: np.ndarray

    def along(self, x: str) -> np.ndarray:
        return self.seconds if x == "time" else self.results


def progress_of(analysis: ExperimentAnalysis, name: str, metric: str, mode: str) -> ProgressCurve:
    """Read the last result of each trial, by time, if it is finite and violates no constraint."""
    found = []
    for trial in analysis.trials:
        rows = trial.rows_if_any()
        last = flatten(rows[-1]) if rows else {}
        value = number(last.get(metric))
        if value is not None and math.isfinite(value) and not any(violations(last, analysis.constraints)):
            stamp = number(last.get("timestamp")) or 0.0
            fine = (trial.start_time or 0.0) + (number(last.get("time_total_s")) or 0.0)
            # Rows have whole seconds; the run time gives the fraction, unless the trial was paused.
            found.append((min(max(fine, stamp), stamp + 0.999), value, len(rows)))
    times, values, counts = np.array(sorted(found) or np.empty((0, 3))).T
    better = np.maximum if mode == "max" else np.minimum
    return ProgressCurve(name, times - times[:1].sum(), better.accumulate(values), np.cumsum(counts))


def save_overlay(curves: Sequence[ProgressCurve], metric: str, x: str, target: Path) -> None:
    """Write the picture; the ending of the name says which kind."""
    drawn = [curve for curve in curves if len(curve.best)]
    if target.suffix.lower() == ".png":
        _save_png(drawn, metric, x, target)
        return
    target.write_text(_svg(drawn, metric, x), encoding="utf-8")


def _colours(curves: Sequence[ProgressCurve]) -> list[str]:
    return [COLOURS[at % len(COLOURS)] for at in range(len(curves))]


def _svg(curves: Sequence[ProgressCurve], metric: str, x: str) -> str:
    xs = np.concatenate([curve.along(x) for curve in curves] or [np.zeros(1)])
    # The first random values may be far off: from where they would flatten the rest they are cut.
    ys = np.concatenate([curve.best[len(curve.best) // 10 :] for curve in curves] or [np.zeros(1)])
    across, up = (xs.min(), xs.max(), LEFT, WIDTH - RIGHT), (ys.min(), ys.max(), HEIGHT - BOTTOM, TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for at, label in _ticks(*up):
        end = WIDTH - RIGHT
        parts.append(
            f'<line class="grid" stroke="#e4e7eb" x1="{LEFT}" x2="{end}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(_text(LEFT - 8, at + 4, label, "end"))
    parts += [_text(at, HEIGHT - BOTTOM + 18, label) for at, label in _ticks(*across)]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, X_AXES[x]))
    parts.append(_text(LEFT, TOP - 6, f"best {metric} so far", "start"))
    for place, (curve, colour) in enumerate(zip(curves, _colours(curves), strict=True)):
        xs, heights = _place(curve.along(x), *across), _place(np.clip(curve.best, *up[:2]), *up)
        # A best value holds until there is a better one: only the points where it changes are drawn.
        keep = np.flatnonzero(np.r_[True, np.diff(heights) != 0])[-MOST_POINTS:]
        steps = "".join(f"H{xs[at]:.1f}V{heights[at]:.1f}" for at in keep[1:])
        points = f"M{xs[keep[0]]:.1f} {heights[keep[0]]:.1f}{steps}H{xs[-1]:.1f}"
        parts.append(
            f'<path class="line" fill="none" stroke-width="2" stroke="{colour}" d="{points}">'
            f"<title>{html.escape(curve.name)}</title></path>"
        )
        parts.append(_text(WIDTH - RIGHT, TOP + 16 * (place + 1), curve.name, "end", colour))
    return "".join((*parts, "</svg>"))


def _text(x: float, y: float, text: str, anchor: str = "middle", colour: str = "") -> str:
    fill = f' fill="{colour}"' if colour else ""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="12"{fill}>{html.escape(text)}</text>'


def _place(values: np.ndarray, low: float, high: float, first: float, last: float) -> np.ndarray:
    return first + scaled(values, low, high, is_log=False) * (last - first)


def _ticks(low: float, high: float, first: float, last: float) -> list[tuple[float, str]]:
    ticks = number_ticks(float(low), float(high), is_log=False)
    return [(first + share * (last - first), label) for share, label in ticks]


def _save_png(curves: Sequence[ProgressCurve], metric: str, x: str, target: Path) -> None:
    from muster.tune.plots.png import need_matplotlib

    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for curve, colour in zip(curves, _colours(curves), strict=True):
        axes.step(curve.along(x), curve.best, where="post", color=colour, label=curve.name)
    axes.set(xlabel=X_AXES[x], ylabel=f"best {metric} so far")
    axes.grid(axis="y", alpha=0.3)
    if curves:
        axes.legend(frameon=False)
    figure.savefig(target, dpi=120)

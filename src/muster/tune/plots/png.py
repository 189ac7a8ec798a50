"""Draw a plot as a PNG by matplotlib; pyplot and its settings are not used, so the user's figures stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.base.text import shortened
from muster.tune.plots.axes import Axis, metric_range, short_number
from muster.tune.plots.data import Dot, PlotData, headline, shown_axes, subtitle, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK = "#1f2933"
SOFT = "#616e7c"  # text that explains
FAINT = "#cbd2d9"  # lines that only guide the eye
BEST = "#d55e00"
FULL = "#0072b2"  # trials that ran as long as the longest
EARLY = "#8fa3b8"  # trials that ended before
FAILED = "#000000"
BAR = "#0072b2"
BAR_BY_CHANCE = "#b8c4d0"
RAMP_NAME = "viridis"  # dark: good
RAMP_END = 0.93  # its last bit is too light on white

TEXT_SIZE = 9.0
SMALL = 8.0
TITLE_SIZE = 11.0
HEAD_SIZE = 14.0
DPI = 130


def style_axes(axes: Axes) -> None:
    """Remove the lines that do not help reading."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(which="both", colors=SOFT, labelsize=SMALL, length=3)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=TITLE_SIZE, fontweight="bold", color=INK, pad=10)


def draw_empty(axes: Axes, why: str) -> None:
    """Draw an empty panel that says why."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=SOFT, wrap=True)


def draw_parallel(axes: Axes, plot: PlotData) -> None:
    title(axes, "Parameters of the trials")
    columns = shown_axes(plot)
    if len(columns) < 2 or not plot.lines:
        why = "no parameter differs between the trials" if plot.lines else "no trial has a result yet"
        draw_empty(axes, why)
        return
    places = table(plot, columns)
    _draw_parallel_lines(axes, plot, places)
    for at, column in enumerate(columns):
        _draw_axis(axes, at, column, len(columns), plot.mode)
    hidden = len(plot.parameters) - (len(columns) - 1)
    if hidden > 0:
        text = f"{hidden} less important parameter{'' if hidden == 1 else 's'} left out"
        axes.text(0.0, -0.02, text, transform=axes.transAxes, fontsize=SMALL, color=SOFT, va="top")
    axes.set_xlim(-0.45, len(columns) - 1 + 0.6)
    axes.set_ylim(-0.16, 1.16)
    axes.set_axis_off()


def ramp() -> Any:  # noqa: ANN401 - a matplotlib colormap
    from matplotlib import colormaps

    return colormaps[RAMP_NAME]


def _draw_parallel_lines(axes: Axes, plot: PlotData, places: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    steps = np.arange(places.shape[1])
    shades = np.array([plot.dots[n].shade for n in plot.lines])
    lines = [np.column_stack((steps, row)) for row in places]
    alpha = float(np.clip(30.0 / len(lines), 0.22, 0.85))
    # The good ones are the ones to read: they lie on top and are a little stronger.
    colours = ramp()(shades * RAMP_END)
    colours[:, 3] = np.clip(alpha * (1.6 - shades), 0.0, 1.0)
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=1.0, zorder=2))
    if plot.best is not None:
        axes.plot(steps, lines[-1][:, 1], color=BEST, linewidth=2.4, zorder=3)
        axes.annotate(
            "best",
            (steps[-1], lines[-1][-1, 1]),
            xytext=(13, 0),
            textcoords="offset points",
            color=BEST,
            fontweight="bold",
            va="center",
        )


def _draw_axis(axes: Axes, at: int, column: Axis, count: int, mode: str) -> None:
    import matplotlib.patheffects as effects

    halo: list[effects.AbstractPathEffect] = [
        effects.withStroke(linewidth=2.6, foreground="white", alpha=0.9)
    ]
    if at == count - 1:
        _draw_gradient(axes, at, mode)
    else:
        axes.plot([at, at], [0, 1], color=INK, linewidth=1.0, zorder=4, solid_capstyle="butt")
    for place, label in column.ticks:
        axes.plot([at - 0.012 * count / 8, at], [place, place], color=INK, linewidth=0.8, zorder=4)
        made = axes.annotate(
            shortened(label, 14),
            (at, place),
            xytext=(-7, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=SMALL,
            color=INK,
            zorder=5,
        )
        made.set_path_effects(halo)
    name = axes.text(
        at,
        1.07,
        shortened(column.name, max(9, 118 // count)),
        ha="center",
        va="bottom",
        fontsize=TEXT_SIZE,
        fontweight="bold",
        color=INK,
        zorder=5,
    )
    name.set_path_effects(halo)
    if column.is_log:
        axes.text(at, 1.035, "log", ha="center", va="center", fontsize=SMALL - 1, color=SOFT)


def _draw_gradient(axes: Axes, at: int, mode: str) -> None:
    """Draw the metric's own axis as the legend of the colours."""
    shades = np.linspace(0, 1, 64) if mode == "min" else np.linspace(1, 0, 64)
    colours = ramp()(shades * RAMP_END)[:, None, :]
    axes.imshow(
        colours,
        extent=(at - 0.02, at + 0.02, 0.0, 1.0),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        zorder=4,
    )


MOST_BARS = 14


def draw_importance(axes: Axes, plot: PlotData) -> None:
    title(axes, "Parameter importance")
    ranking = plot.ranking
    if ranking.problem:
        draw_empty(axes, ranking.problem)
        return
    style_axes(axes)
    entries = ranking.entries[:MOST_BARS]
    places = range(len(entries))
    colours = [BAR if entry.share > ranking.chance else BAR_BY_CHANCE for entry in entries]
    axes.barh(places, [entry.share for entry in entries], color=colours, height=0.62, zorder=2)
    axes.set_yticks(places, [shortened(entry.name, 24) for entry in entries], color=INK)
    longest = max(entries[0].share, ranking.chance, 0.05)
    axes.set_xlim(0, longest * 1.42)
    axes.set_ylim(max(len(entries), 4) - 0.4, -0.6)
    for place, entry in zip(places, entries, strict=True):
        # The text of a bar that ends near the dashed line covers it.
        detail = f"  {entry.direction}" if entry.direction and entry.share > ranking.chance else ""
        axes.text(
            entry.share + longest * 0.015,
            place,
            f"{entry.share:.0%}{detail}",
            va="center",
            fontsize=SMALL,
            color=INK if entry.share > ranking.chance else SOFT,
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axes.axvline(ranking.chance, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        "chance",
        (ranking.chance, 0.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize=SMALL,
        color=SOFT,
        va="bottom",
    )
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    hidden = len(ranking.entries) - len(entries)
    more = f"; {hidden} more below these" if hidden else ""
    axes.set_xlabel(f"variation of {shortened(plot.metric, 24)} explained by the parameter alone{more}")


def draw_curves(axes: Axes, plot: PlotData) -> None:
    metric = shortened(plot.metric, 44)
    if not plot.curves:
        title(axes, "Learning curves")
        draw_empty(axes, f"no trial has reported {metric} yet")
        return
    style_axes(axes)
    axes.set_ylabel(metric)
    if plot.has_progress:
        title(axes, "Learning curves")
        axes.set_xlabel("training iteration")
        _draw_lines(axes, plot)
        values = np.concatenate([dot.curve.values for dot in plot.curves if dot.curve is not None])
    else:
        title(axes, "Results in the order of the trials")
        axes.set_xlabel("trial")
        values = _draw_history(axes, plot)
    _fit_height(axes, values, plot)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 0.995),
        ncols=4,
        frameon=False,
        fontsize=SMALL,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.2,
    )


def _draw_lines(axes: Axes, plot: PlotData) -> None:
    longest = plot.longest
    best = None if plot.best is None else plot.dots[plot.best]
    others = [dot for dot in plot.curves if dot is not best]
    early = [dot for dot in others if dot.curve is not None and dot.curve.iterations[-1] < longest]
    full = [dot for dot in others if dot.curve is not None and dot.curve.iterations[-1] >= longest]
    crowd = float(np.clip(14.0 / max(len(others), 1), 0.12, 0.8))
    _add_lines(axes, early, EARLY, crowd * 0.8, "ended earlier")
    _add_lines(axes, full, FULL, crowd, "ran to the end")
    _mark_failed(axes, plot)
    if best is not None and best.curve is not None:
        curve = best.curve
        axes.plot(curve.iterations, curve.values, color=BEST, linewidth=2.2, zorder=5, label="best trial")
        _label_best(axes, float(curve.iterations[-1]), best.value, plot.mode)
    axes.margins(x=0.02)


def _add_lines(axes: Axes, dots: list[Dot], colour: str, alpha: float, label: str) -> None:
    if not dots:
        return
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    lines = [np.column_stack((d.curve.iterations, d.curve.values)) for d in dots if d.curve is not None]
    axes.add_collection(LineCollection(lines, colors=colour, linewidths=0.9, alpha=alpha), autolim=True)
    ends = np.array([line[-1] for line in lines])
    axes.scatter(ends[:, 0], ends[:, 1], s=7, color=colour, alpha=min(1.0, alpha * 2), linewidths=0)
    axes.add_line(Line2D([], [], color=colour, linewidth=1.4, label=label))


def _mark_failed(axes: Axes, plot: PlotData) -> None:
    ends = [
        (dot.curve.iterations[-1], dot.curve.values[-1])
        for dot in plot.curves
        if dot.status == "ERROR" and dot.curve is not None
    ]
    if ends:
        places = np.array(ends)
        axes.scatter(
            places[:, 0], places[:, 1], marker="x", s=22, color=FAILED, linewidths=1.0, label="failed"
        )


def _draw_history(axes: Axes, plot: PlotData) -> np.ndarray:
    dots = [dot for dot in plot.dots if np.isfinite(dot.value)]
    numbers, values = np.array([d.number for d in dots]), np.array([d.value for d in dots])
    if not dots:
        return values
    crowd = float(np.clip(120.0 / len(dots), 0.25, 0.8))
    axes.scatter(numbers, values, s=18, color=FULL, alpha=crowd, linewidths=0, label="trials", gid="trials")
    running = np.maximum.accumulate(values) if plot.mode == "max" else np.minimum.accumulate(values)
    axes.step(numbers, running, where="post", color=BEST, linewidth=1.6, label="best so far")
    if plot.best is not None:
        best = plot.dots[plot.best]
        axes.scatter([best.number], [best.value], s=60, color=BEST, zorder=5, linewidths=0)
        _label_best(axes, best.number, best.value, plot.mode)
    axes.locator_params(axis="x", integer=True)
    return values


def _label_best(axes: Axes, at: float, value: float, mode: str) -> None:
    """Write the label on the side where no other trial can be."""
    import matplotlib.patheffects as effects

    side = 1 if mode == "max" else -1
    made = axes.annotate(
        short_number(value),
        (at, value),
        xytext=(2, 7 * side),
        textcoords="offset points",
        ha="right",
        va="bottom" if mode == "max" else "top",
        color=BEST,
        fontweight="bold",
        zorder=6,
    )
    made.set_path_effects([effects.withStroke(linewidth=3, foreground="white")])


def _only_when_few(low: float, high: float) -> Callable[[float, float], str]:
    """Return a formatter that labels the steps of 2 and 5 when hardly any powers of ten are visible."""
    is_short = high / low < 50

    def text(value: float, _: float) -> str:
        return short_number(value) if is_short and f"{value:.0e}"[0] in "25" else ""

    return text


def _fit_height(axes: Axes, values: np.ndarray, plot: PlotData) -> None:
    """Choose the scale and range of the metric; outliers leave the plot rather than dominate it."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    low, high, is_log = metric_range(finite, plot.mode)
    if plot.best is not None:
        low, high = min(low, plot.dots[plot.best].value), max(high, plot.dots[plot.best].value)
    if is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.yaxis.set_minor_formatter(_only_when_few(low, high))
        margin = (high / low) ** 0.09 if high > low else 1.5
        axes.set_ylim(low / margin, high * margin)
    else:
        margin = (high - low) * 0.09 or abs(high) * 0.1 or 1.0
        axes.set_ylim(low - margin, high + margin)
    outside = int(((finite < low) | (finite > high)).sum())
    if outside:
        text = f"{outside:,} value{'' if outside == 1 else 's'} beyond the edge"
        axes.text(
            0.995, 0.985, text, transform=axes.transAxes, ha="right", va="top", fontsize=SMALL, color=SOFT
        )


SIZES_INCH = {"all": (13.0, 9.6), "curves": (9.5, 5.6), "parallel": (12.0, 5.4), "importance": (8.5, 5.0)}
HEAD_INCH = 0.68  # for the title and the line below it


def need_matplotlib() -> None:
    """Raise an ImportError that says what to install when matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'plot() draws PNG files with matplotlib, which is not installed: pip install "muster-ml[plot]". '
            "Or give a path that ends in .html, which needs nothing more"
        ) from error


def save_png(plot: PlotData, kind: str, path: str) -> None:
    """Write the PNG; OSError when the file cannot be written."""
    need_matplotlib()
    from matplotlib import rc_context, rcParamsDefault

    # A user's style sheet is for the user's figures; ours must be readable whatever it says.
    plain = {name: rcParamsDefault[name] for name in rcParamsDefault if not name.startswith("backend")}
    plain.update({"font.size": TEXT_SIZE, "axes.linewidth": 0.8, "text.parse_math": False})
    with rc_context(plain):
        figure = draw(plot, kind)
        figure.savefig(path, dpi=DPI, facecolor="white")


def draw(plot: PlotData, kind: str) -> Figure:
    """Draw the panels of `kind`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width, height = SIZES_INCH[kind]
    below_head = 1 - HEAD_INCH / height
    layout = ConstrainedLayoutEngine(
        w_pad=0.12, h_pad=0.1, hspace=0.05, wspace=0.04, rect=(0.0, 0.0, 1.0, below_head)
    )
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    if kind == "all":
        grid = figure.add_gridspec(2, 2, width_ratios=(1.55, 1.0), height_ratios=(1.0, 1.0))
        draw_curves(figure.add_subplot(grid[0, 0]), plot)
        draw_importance(figure.add_subplot(grid[0, 1]), plot)
        draw_parallel(figure.add_subplot(grid[1, :]), plot)
    else:
        panel = {"curves": draw_curves, "parallel": draw_parallel, "importance": draw_importance}[kind]
        panel(figure.add_subplot(), plot)
    _write_head(figure, plot)
    return figure


def _write_head(figure: Figure, plot: PlotData) -> None:
    """Write title and summary in the margin that the layout leaves at the top."""
    width, height = figure.get_size_inches()
    left = 0.16 / width
    figure.text(
        left, 1 - 0.16 / height, headline(plot), va="top", fontsize=HEAD_SIZE, fontweight="bold", color=INK
    )
    room = int(width * 15)  # characters of small text in one line
    figure.text(
        left, 1 - 0.46 / height, shortened(subtitle(plot), room), va="top", fontsize=SMALL + 0.5, color=SOFT
    )

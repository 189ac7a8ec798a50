"""The picture as a PNG, by matplotlib. Touches neither pyplot nor its settings: the user's figures stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from muster.tune.plots import png_panel as style
from muster.tune.plots.axes import metric_range
from muster.tune.plots.data import Dot, Scene
from muster.tune.plots.headline import headline, subtitle
from muster.tune.plots.labels import short_number, shortened
from muster.tune.plots.png_panel import say_nothing_to_show, tidy, title
from muster.tune.plots.png_panels import draw_importance, draw_parallel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_curves(axes: Axes, scene: Scene) -> None:
    metric = shortened(scene.metric, 44)
    if not scene.curves:
        title(axes, "Learning curves")
        say_nothing_to_show(axes, f"no trial has reported {metric} yet")
        return
    tidy(axes)
    axes.set_ylabel(metric)
    if scene.has_progress:
        title(axes, "Learning curves")
        axes.set_xlabel("training iteration")
        _draw_lines(axes, scene)
        values = np.concatenate([dot.curve.values for dot in scene.curves if dot.curve is not None])
    else:
        title(axes, "Results in the order of the trials")
        axes.set_xlabel("trial")
        values = _draw_history(axes, scene)
    _fit_height(axes, values, scene)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 0.995),
        ncols=4,
        frameon=False,
        fontsize=style.SMALL,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.2,
    )


def _draw_lines(axes: Axes, scene: Scene) -> None:
    longest = scene.longest
    best = None if scene.best is None else scene.dots[scene.best]
    others = [dot for dot in scene.curves if dot is not best]
    early = [dot for dot in others if dot.curve is not None and dot.curve.iterations[-1] < longest]
    full = [dot for dot in others if dot.curve is not None and dot.curve.iterations[-1] >= longest]
    crowd = float(np.clip(14.0 / max(len(others), 1), 0.12, 0.8))
    _add_lines(axes, early, style.EARLY, crowd * 0.8, "ended earlier")
    _add_lines(axes, full, style.FULL, crowd, "ran to the end")
    _mark_failed(axes, scene)
    if best is not None and best.curve is not None:
        curve = best.curve
        axes.plot(
            curve.iterations, curve.values, color=style.BEST, linewidth=2.2, zorder=5, label="best trial"
        )
        _label_best(axes, float(curve.iterations[-1]), best.value, scene.mode)
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


def _mark_failed(axes: Axes, scene: Scene) -> None:
    ends = [
        (dot.curve.iterations[-1], dot.curve.values[-1])
        for dot in scene.curves
        if dot.status == "ERROR" and dot.curve is not None
    ]
    if ends:
        places = np.array(ends)
        axes.scatter(
            places[:, 0], places[:, 1], marker="x", s=22, color=style.FAILED, linewidths=1.0, label="failed"
        )


def _draw_history(axes: Axes, scene: Scene) -> np.ndarray:
    dots = [dot for dot in scene.dots if np.isfinite(dot.value)]
    numbers, values = np.array([d.number for d in dots]), np.array([d.value for d in dots])
    if not dots:
        return values
    crowd = float(np.clip(120.0 / len(dots), 0.25, 0.8))
    axes.scatter(
        numbers, values, s=18, color=style.FULL, alpha=crowd, linewidths=0, label="trials", gid="trials"
    )
    running = np.maximum.accumulate(values) if scene.mode == "max" else np.minimum.accumulate(values)
    axes.step(numbers, running, where="post", color=style.BEST, linewidth=1.6, label="best so far")
    if scene.best is not None:
        best = scene.dots[scene.best]
        axes.scatter([best.number], [best.value], s=60, color=style.BEST, zorder=5, linewidths=0)
        _label_best(axes, best.number, best.value, scene.mode)
    axes.locator_params(axis="x", integer=True)
    return values


def _label_best(axes: Axes, at: float, value: float, mode: str) -> None:
    """On the side where no other trial can be."""
    import matplotlib.patheffects as effects

    side = 1 if mode == "max" else -1
    made = axes.annotate(
        short_number(value),
        (at, value),
        xytext=(2, 7 * side),
        textcoords="offset points",
        ha="right",
        va="bottom" if mode == "max" else "top",
        color=style.BEST,
        fontweight="bold",
        zorder=6,
    )
    made.set_path_effects([effects.withStroke(linewidth=3, foreground="white")])


def _only_when_few(low: float, high: float) -> Callable[[float, float], str]:
    """Between two powers of ten the steps of 2 and 5 are named, when there are hardly any powers in sight."""
    is_short = high / low < 50

    def text(value: float, _: float) -> str:
        return short_number(value) if is_short and f"{value:.0e}"[0] in "25" else ""

    return text


def _fit_height(axes: Axes, values: np.ndarray, scene: Scene) -> None:
    """Orders of magnitude where they are what differs; outliers leave the picture rather than rule it."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    low, high, is_log = metric_range(finite)
    if scene.best is not None:
        low, high = min(low, scene.dots[scene.best].value), max(high, scene.dots[scene.best].value)
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
            0.995,
            0.985,
            text,
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=style.SMALL,
            color=style.SOFT,
        )


SIZES_INCH = {"all": (13.0, 9.6), "curves": (9.5, 5.6), "parallel": (12.0, 5.4), "importance": (8.5, 5.0)}
HEAD_INCH = 0.68  # for the title and the line below it


def need_matplotlib() -> None:
    """ImportError that says what to install."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'plot() draws PNG files with matplotlib, which is not installed: pip install "muster[plot]". '
            "Or give a path that ends in .html, which needs nothing more"
        ) from error


def save_png(scene: Scene, kind: str, path: str) -> None:
    """OSError when the file cannot be written."""
    need_matplotlib()
    from matplotlib import rc_context, rcParamsDefault

    # A user's style sheet is for the user's figures; ours must be readable whatever it says.
    plain = {name: rcParamsDefault[name] for name in rcParamsDefault if not name.startswith("backend")}
    plain.update({"font.size": style.TEXT_SIZE, "axes.linewidth": 0.8, "text.parse_math": False})
    with rc_context(plain):
        figure = draw(scene, kind)
        figure.savefig(path, dpi=style.DPI, facecolor="white")


def draw(scene: Scene, kind: str) -> Figure:
    """The panels that were asked for."""
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
        draw_curves(figure.add_subplot(grid[0, 0]), scene)
        draw_importance(figure.add_subplot(grid[0, 1]), scene)
        draw_parallel(figure.add_subplot(grid[1, :]), scene)
    else:
        panel = {"curves": draw_curves, "parallel": draw_parallel, "importance": draw_importance}[kind]
        panel(figure.add_subplot(), scene)
    _write_head(figure, scene)
    return figure


def _write_head(figure: Figure, scene: Scene) -> None:
    """Title and summary, in the margin that the layout leaves at the top."""
    width, height = figure.get_size_inches()
    left = 0.16 / width
    figure.text(
        left,
        1 - 0.16 / height,
        headline(scene),
        va="top",
        fontsize=style.HEAD_SIZE,
        fontweight="bold",
        color=style.INK,
    )
    room = int(width * 15)  # characters of small text in one line
    figure.text(
        left,
        1 - 0.46 / height,
        shortened(subtitle(scene), room),
        va="top",
        fontsize=style.SMALL + 0.5,
        color=style.SOFT,
    )

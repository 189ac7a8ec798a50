"""Parallel coordinates: one line per trial through its parameters to its metric, coloured by the metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from muster.tune.plots import png_panel as style
from muster.tune.plots.axes import Axis
from muster.tune.plots.data import Scene
from muster.tune.plots.labels import shortened
from muster.tune.plots.parallel import shown_axes, table
from muster.tune.plots.png_panel import say_nothing_to_show, tidy, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_parallel(axes: Axes, scene: Scene) -> None:
    title(axes, "Parameters of the trials")
    columns = shown_axes(scene)
    if len(columns) < 2 or not scene.lines:
        why = "no parameter differs between the trials" if scene.lines else "no trial has a result yet"
        say_nothing_to_show(axes, why)
        return
    places = table(scene, columns)
    _draw_parallel_lines(axes, scene, places)
    for at, column in enumerate(columns):
        _draw_axis(axes, at, column, len(columns), scene.mode)
    hidden = len(scene.parameters) - (len(columns) - 1)
    if hidden > 0:
        text = f"{hidden} less important parameter{'' if hidden == 1 else 's'} left out"
        axes.text(
            0.0, -0.02, text, transform=axes.transAxes, fontsize=style.SMALL, color=style.SOFT, va="top"
        )
    axes.set_xlim(-0.45, len(columns) - 1 + 0.6)
    axes.set_ylim(-0.16, 1.16)
    axes.set_axis_off()


def ramp() -> Any:  # noqa: ANN401 - a matplotlib colormap
    from matplotlib import colormaps

    return colormaps[style.RAMP_NAME]


def _draw_parallel_lines(axes: Axes, scene: Scene, places: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    steps = np.arange(places.shape[1])
    shades = np.array([scene.dots[n].shade for n in scene.lines])
    lines = [np.column_stack((steps, row)) for row in places]
    alpha = float(np.clip(30.0 / len(lines), 0.22, 0.85))
    # The good ones are the ones to read: they lie on top and are a little stronger.
    colours = ramp()(shades * style.RAMP_END)
    colours[:, 3] = np.clip(alpha * (1.6 - shades), 0.0, 1.0)
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=1.0, zorder=2))
    if scene.best is not None:
        axes.plot(steps, lines[-1][:, 1], color=style.BEST, linewidth=2.4, zorder=3)
        axes.annotate(
            "best",
            (steps[-1], lines[-1][-1, 1]),
            xytext=(13, 0),
            textcoords="offset points",
            color=style.BEST,
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
        axes.plot([at, at], [0, 1], color=style.INK, linewidth=1.0, zorder=4, solid_capstyle="butt")
    for place, label in column.ticks:
        axes.plot([at - 0.012 * count / 8, at], [place, place], color=style.INK, linewidth=0.8, zorder=4)
        made = axes.annotate(
            shortened(label, 14),
            (at, place),
            xytext=(-7, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=style.SMALL,
            color=style.INK,
            zorder=5,
        )
        made.set_path_effects(halo)
    name = axes.text(
        at,
        1.07,
        shortened(column.name, max(9, 118 // count)),
        ha="center",
        va="bottom",
        fontsize=style.TEXT_SIZE,
        fontweight="bold",
        color=style.INK,
        zorder=5,
    )
    name.set_path_effects(halo)
    if column.is_log:
        axes.text(at, 1.035, "log", ha="center", va="center", fontsize=style.SMALL - 1, color=style.SOFT)


def _draw_gradient(axes: Axes, at: int, mode: str) -> None:
    """The metric's own axis is the legend of the colours."""
    shades = np.linspace(0, 1, 64) if mode == "min" else np.linspace(1, 0, 64)
    colours = ramp()(shades * style.RAMP_END)[:, None, :]
    axes.imshow(
        colours,
        extent=(at - 0.02, at + 0.02, 0.0, 1.0),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        zorder=4,
    )


MOST_BARS = 14


def draw_importance(axes: Axes, scene: Scene) -> None:
    title(axes, "Parameter importance")
    ranking = scene.ranking
    if ranking.problem:
        say_nothing_to_show(axes, ranking.problem)
        return
    tidy(axes)
    entries = ranking.entries[:MOST_BARS]
    places = range(len(entries))
    colours = [style.BAR if entry.share > ranking.chance else style.BAR_BY_CHANCE for entry in entries]
    axes.barh(places, [entry.share for entry in entries], color=colours, height=0.62, zorder=2)
    axes.set_yticks(places, [shortened(entry.name, 24) for entry in entries], color=style.INK)
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
            fontsize=style.SMALL,
            color=style.INK if entry.share > ranking.chance else style.SOFT,
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axes.axvline(ranking.chance, color=style.SOFT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        "chance",
        (ranking.chance, 0.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize=style.SMALL,
        color=style.SOFT,
        va="bottom",
    )
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    hidden = len(ranking.entries) - len(entries)
    more = f"; {hidden} more below these" if hidden else ""
    axes.set_xlabel(f"variation of {shortened(scene.metric, 24)} explained by the parameter alone{more}")

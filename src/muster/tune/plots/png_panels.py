"""Parallel coordinates: one line per trial through its parameters to its metric, coloured by the metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from muster.tune.plots import style
from muster.tune.plots.axes import Axis
from muster.tune.plots.data import Scene
from muster.tune.plots.labels import shortened
from muster.tune.plots.parallel import shown_axes, table
from muster.tune.plots.png_panel import say_nothing_to_show, title

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
    _draw_lines(axes, scene, places)
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


def _draw_lines(axes: Axes, scene: Scene, places: np.ndarray) -> None:
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

"""Bars of parameter importance, with what chance can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.tune.plots import style
from muster.tune.plots.data import Scene
from muster.tune.plots.labels import shortened
from muster.tune.plots.png_panel import say_nothing_to_show, tidy, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

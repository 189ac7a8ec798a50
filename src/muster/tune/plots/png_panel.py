"""What all panels of the PNG have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.tune.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def tidy(axes: Axes) -> None:
    """Only the lines that help reading."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(style.FAINT)
    axes.tick_params(which="both", colors=style.SOFT, labelsize=style.SMALL, length=3)
    axes.xaxis.label.set_color(style.INK)
    axes.yaxis.label.set_color(style.INK)
    axes.grid(axis="y", color=style.FAINT, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=style.TITLE_SIZE, fontweight="bold", color=style.INK, pad=10)


def say_nothing_to_show(axes: Axes, why: str) -> None:
    """An empty panel that says why."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=style.SOFT, wrap=True)

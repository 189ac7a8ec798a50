"""What all panels of the PNG have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def tidy(axes: Axes) -> None:
    """Only the lines that help reading."""
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


def say_nothing_to_show(axes: Axes, why: str) -> None:
    """An empty panel that says why."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=SOFT, wrap=True)

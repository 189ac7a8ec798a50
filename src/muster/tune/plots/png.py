"""The picture as a PNG, by matplotlib. Touches neither pyplot nor its settings: the user's figures stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.tune.plots import style
from muster.tune.plots.data import Scene
from muster.tune.plots.headline import headline, subtitle
from muster.tune.plots.labels import shortened
from muster.tune.plots.png_curves import draw_curves
from muster.tune.plots.png_panels import draw_importance, draw_parallel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

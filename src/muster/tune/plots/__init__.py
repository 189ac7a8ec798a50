"""Draw plots of an experiment, as a PNG or an HTML file; `ResultGrid.plot` calls `save_plot`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.tune.analysis import ExperimentAnalysis

__all__ = ["KINDS", "PlotFile", "save_plot"]

KINDS = ("all", "curves", "parallel", "importance")
DEFAULT_FILE = "results.png"
_PNG, _HTML = (".png",), (".html", ".htm")


class PlotFile(str):
    """The path of a plot; as the last value of a notebook's cell it shows the plot itself."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        import base64
        import html

        content = Path(self).read_bytes()
        if self.lower().endswith(_PNG):
            data = base64.b64encode(content).decode()
            return f'<img style="max-width:100%" src="data:image/png;base64,{data}">'
        page = html.escape(content.decode("utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:760px;border:0"></iframe>'


def save_plot(
    analysis: ExperimentAnalysis,
    path: str | os.PathLike[str] | None = None,
    *,
    metric: str | None = None,
    mode: str | None = None,
    kind: str = "all",
) -> PlotFile:
    """Draw and write a plot, and return the file's path; see ResultGrid.plot."""
    if kind not in KINDS:
        raise ValueError(f"plot(kind={kind!r}): must be one of {', '.join(KINDS)}")
    target = _target(analysis, path)
    metric, mode = _goal(analysis, metric, mode)
    if target.suffix.lower() in _PNG:
        from muster.tune.plots.png import need_matplotlib

        need_matplotlib()  # before reading results, which may take a while
    from muster.tune.plots.data import collect

    name = analysis.experiment_path.rstrip("/").rpartition("/")[2] or "experiment"
    plot = collect(analysis.trials, name=name, metric=metric, mode=mode)
    if target.suffix.lower() in _PNG:
        from muster.tune.plots.png import save_png

        save_png(plot, kind, str(target))
    else:
        from muster.page.plot_report import PlottedExperiment, plot_page

        curves = {dot.trial_id: (dot.curve.iterations, dot.curve.values) for dot in plot.dots if dot.curve}
        bounds = analysis.constraints
        shown = PlottedExperiment(
            name=name, metric=metric, mode=mode, trials=analysis.trials, curves=curves, constraints=bounds
        )
        page = plot_page([shown], f"#e=0{'' if kind == 'all' else f'&only={kind}'}")
        target.write_text(page, encoding="utf-8", errors="replace")
    return PlotFile(target)


def _target(analysis: ExperimentAnalysis, path: str | os.PathLike[str] | None) -> Path:
    if path is None:
        place = Path(analysis.experiment_path)
        if not place.is_dir():
            raise ValueError(f"plot: {place} is not a directory on this machine: pass path='results.png'")
        return place / (DEFAULT_FILE if find_spec("matplotlib") else Path(DEFAULT_FILE).with_suffix(".html"))
    target = Path(os.path.expanduser(os.fspath(path)))
    if target.suffix.lower() not in (*_PNG, *_HTML):
        raise ValueError(f"plot(path={str(path)!r}): must end in .png or .html")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"plot(path={str(path)!r}): there is no directory {target.parent}: make it first"
        )
    return target


def _goal(analysis: ExperimentAnalysis, metric: str | None, mode: str | None) -> tuple[str, str]:
    from muster.tune.analysis.tables import check_mode
    from muster.tune.plots.data import known_metrics

    analysis.need_one_objective("plot", metric, "or name the one to draw with metric and mode")
    metric, mode = metric or analysis.default_metric, mode or analysis.default_mode
    if not metric:
        known = known_metrics(analysis.trials)
        hint = f"; the trials reported {', '.join(known)}" if known else ""
        raise ValueError(f"plot: which metric? Pass metric='...', or set it in the TuneConfig{hint}")
    if not mode:
        raise ValueError(f"plot: is a low or a high {metric} good? Pass mode='min' or mode='max'")
    check_mode(mode, "plot")
    return metric, mode

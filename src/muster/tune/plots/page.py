"""Writes a plot as one HTML file with data, style and script in it; nothing is fetched from anywhere."""

from __future__ import annotations

import html
import json
import math
from importlib import resources
from typing import Any

import numpy as np

from muster.tune.plots.data import Dot, PlotData, explanation, headline, shown_axes, subtitle, table

SCRIPTS = ("tools.js", "curves.js", "parallel.js", "importance.js", "main.js")


def html_page(plot: PlotData, kind: str) -> str:
    """Returns the text of the whole file."""
    # In a script element only "</" and "<!--" mean something: without "<" neither can occur.
    data = json.dumps(page_data(plot, kind), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(headline(plot)),
        "SUBTITLE": html.escape(subtitle(plot)),
        "STYLE": _text("page.css"),
        "DATA": data,
        "SCRIPT": "\n".join(_text(name) for name in SCRIPTS),
    }
    before = _text("page.html").split("@@")
    return "".join(parts.get(piece, piece) for piece in before)


def page_data(plot: PlotData, kind: str) -> dict[str, Any]:
    """Returns what the script draws, as plain data."""
    columns = shown_axes(plot)
    rows = table(plot, columns) if plot.lines else np.empty((0, len(columns)))
    return {
        "metric": plot.metric,
        "mode": plot.mode,
        "kind": kind,
        "hasProgress": plot.has_progress,
        "longest": plot.longest,
        "best": plot.best,
        "explanation": explanation(plot),
        "axes": [{"name": axis.name, "ticks": axis.ticks, "log": axis.is_log} for axis in columns],
        "leftOut": max(0, len(plot.parameters) - len(columns) + 1),
        "lines": list(plot.lines),
        "rows": [_numbers(row) for row in rows],
        "trials": [_trial(dot) for dot in plot.dots],
        "importance": {
            "problem": plot.ranking.problem,
            "chance": plot.ranking.chance,
            "entries": [
                {"name": entry.name, "share": entry.share, "direction": entry.direction}
                for entry in plot.ranking.entries
            ],
        },
    }


def _trial(dot: Dot) -> dict[str, Any]:
    return {
        "id": dot.trial_id,
        "status": dot.status,
        "n": dot.number,
        "value": None if math.isnan(dot.value) else dot.value,
        "shade": round(dot.shade, 4),
        "parameters": dict(dot.parameters),
        "curve": None
        if dot.curve is None
        else {
            "iterations": _numbers(dot.curve.iterations),
            "seconds": _numbers(dot.curve.seconds),
            "values": _numbers(dot.curve.values),
        },
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Returns numbers with five digits, which draw as well as seventeen and make a third of the file."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]


def _text(name: str) -> str:
    return (resources.files("muster.tune.plots") / "web" / name).read_text(encoding="utf-8")

"""The words over and under a picture."""

from __future__ import annotations

from muster.base.text import shortened
from muster.tune.plots.data import PlotData
from muster.tune.plots.labels import short_number


def headline(scene: PlotData) -> str:
    """Name of the experiment and what was found."""
    name = shortened(scene.name, 60)
    if scene.best is None:
        return name
    best = scene.dots[scene.best]
    return f"{name}: best {shortened(scene.metric, 40)} {short_number(best.value)}"


def subtitle(scene: PlotData) -> str:
    """How many trials there are and how they ended; what is not shown."""
    dots = scene.dots
    parts = [f"{len(dots):,} trial{'' if len(dots) == 1 else 's'}"]
    failed = sum(dot.status == "ERROR" for dot in dots)
    if failed:
        parts.append(f"{failed:,} failed")
    silent = sum(not dot.has_value for dot in dots)
    if silent:
        parts.append(f"{silent:,} without {shortened(scene.metric, 30)}")
    strange = sum(dot.has_value and dot.value != dot.value for dot in dots)
    if strange:
        parts.append(f"{strange:,} with NaN or infinity")
    if scene.best is not None:
        parts.append(f"best: trial {scene.dots[scene.best].trial_id}")
    shown = len(scene.curves)
    if shown < len(dots) - silent:
        parts.append(f"{shown:,} curves are shown, from bad to good in equal steps")
    parts.append("lower is better" if scene.mode == "min" else "higher is better")
    return "  ·  ".join(parts)


def explanation(scene: PlotData) -> str:
    """What the importance means, in a sentence."""
    return (
        "Share of the metric's variation (by rank) that a parameter explains on its own, less what chance "
        "explains. Beyond the dashed line: unlikely to be chance. Effects of combinations are not seen."
    )

"""Which axes parallel coordinates show, in which order, and where each trial crosses them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.tune.plots.axes import Axis
from muster.tune.plots.data import PlotData

MOST_AXES = 9
_SPREAD = 0.045  # lines through the same category lie side by side


def shown_axes(scene: PlotData) -> list[Axis]:
    """The most important parameters, the most important of all beside the metric, which is last."""
    return [*reversed(scene.parameters[:MOST_AXES]), scene.metric_axis]


def table(scene: PlotData, columns: Sequence[Axis]) -> np.ndarray:
    """One row for each of `scene.lines`, one column per axis."""
    chosen = np.array(scene.lines, dtype=int)
    places = np.column_stack([column.positions[chosen] for column in columns])
    for at, column in enumerate(columns):
        if column.is_category:
            places[:, at] += _side_by_side(places[:, at])
    return places


def _side_by_side(places: np.ndarray) -> np.ndarray:
    """Small steps apart within each category, in the order of the lines, which go from bad to good."""
    moved = np.zeros(places.shape)
    for place in np.unique(places):
        same = np.flatnonzero(places == place)
        if same.size > 1:
            moved[same] = np.linspace(-_SPREAD / 2, _SPREAD / 2, same.size)
    return moved

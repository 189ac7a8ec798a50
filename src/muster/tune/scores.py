"""Comparing by a metric: which mode is one, which value counts, which checkpoint is the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from muster.trials.results import flatten

MODES = ("min", "max")
SCOPES = ("all", "last", "avg", "last-5-avg", "last-10-avg")

_Thing = TypeVar("_Thing")


def check_mode(mode: str | None, where: str) -> None:
    """ValueError that names the place."""
    if mode not in MODES:
        raise ValueError(f"{where}: mode={mode!r} must be 'min' or 'max'")


def number(value: Any) -> float | None:  # noqa: ANN401 - a user's value
    """None when it is no number; numpy's scalars are."""
    if isinstance(value, str | bytes) or getattr(value, "ndim", 0) != 0 or not hasattr(value, "__float__"):
        return None
    return float(value)


def is_better(value: float, than: float, mode: str) -> bool:
    return value > than if mode == "max" else value < than


def best_scored(
    candidates: Sequence[tuple[_Thing, Mapping[str, Any]]], metric: str, mode: str
) -> _Thing | None:
    """The one with the best value of a flat metric, the first of equal ones; NaN and absent do not count."""
    best: tuple[float, _Thing] | None = None
    for thing, metrics in candidates:
        value = number(metrics[metric] if metric in metrics else flatten(metrics).get(metric))
        if value is None or math.isnan(value):
            continue
        if best is None or is_better(value, best[0], mode):
            best = (value, thing)
    return None if best is None else best[1]

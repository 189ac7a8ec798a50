"""What a result means: flat keys, metric statistics, and whether the metrics people asked for are there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from muster.trials.model import DEBUG_METRICS, DEFAULT_METRIC, TRAINING_ITERATION, Trial

_WINDOWS = (5, 10)


def flatten(result: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Nested dicts joined by `/`; lists are left as they are. A flat result is copied and costs little."""
    flat: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, dict) and value:
            for inner, leaf in flatten(value, delimiter).items():
                flat[f"{key}{delimiter}{inner}"] = leaf
        else:
            flat[key] = value
    return flat


def missing_metric(flat: Mapping[str, Any], wanted: Iterable[tuple[str, Any]]) -> str:
    """Why this result cannot be judged, naming metric and component; "" when it can.

    A result with at most one own key is let through: the first report of many trainables says nothing yet.
    """
    own = [key for key in flat if key not in DEBUG_METRICS and key != "done"]
    if len(own) <= 1:
        return ""
    for component, metric in wanted:
        for name in metric if isinstance(metric, (list, tuple)) else (metric,):
            if name and name != DEFAULT_METRIC and name not in flat:
                shown = ", ".join(sorted(str(key) for key in own))
                return (
                    f"the trial reported no {name!r}, which the {component} needs. It reported: {shown}. "
                    f"Report it with every result, or name another metric. "
                    f"TUNE_DISABLE_STRICT_METRIC_CHECKING=1 turns this check off."
                )
    return ""


def note_result(trial: Trial, result: dict[str, Any], flat: Mapping[str, Any], at: float) -> None:
    """Make this the trial's last result and bring its metric statistics up to date."""
    trial.last_result = result
    trial.last_result_time = at
    step = flat.get(TRAINING_ITERATION) or 1
    for metric, value in flat.items():
        if metric in DEBUG_METRICS or isinstance(value, (str, bytes)) or not _is_number(value):
            continue
        _note_metric(trial, metric, float(value), step)


def _is_number(value: object) -> bool:
    if isinstance(value, (int, float)):
        return True
    return hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0


def _note_metric(trial: Trial, metric: str, value: float, step: int) -> None:
    known = trial.metric_analysis.get(metric)
    if known is None:
        windows = {str(n): deque((value,), maxlen=n) for n in _WINDOWS}
        trial.metric_n_steps[metric] = windows
        known = {"max": value, "min": value, "avg": value, "last": value}
        trial.metric_analysis[metric] = known
    else:
        windows = trial.metric_n_steps[metric]
        for window in windows.values():
            window.append(value)
        # NaN is no best value: the next number takes its place.
        known["max"] = value if math.isnan(known["max"]) else max(known["max"], value)
        known["min"] = value if math.isnan(known["min"]) else min(known["min"], value)
        known["avg"] = ((step - 1) * known["avg"] + value) / step
        known["last"] = value
    for size in _WINDOWS:
        window = windows[str(size)]
        known[f"last-{size}-avg"] = sum(window) / len(window)

"""What a result means: flat keys, metric statistics, and whether the metrics people asked for are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from muster.trials.model import DEBUG_METRICS, DEFAULT_METRIC, Trial

# Added to every result, hence no news about what a trial reports.
_FILLED_IN = frozenset(
    {
        "checkpoint_dir_name",
        "iterations_since_restore",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "training_iteration",
    }
)


def flatten(result: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Nested dicts joined by `/`, after the flat keys; lists and empty dicts are left as they are. A copy."""
    flat = dict(result)
    for key in [key for key, value in flat.items() if isinstance(value, dict) and value]:
        for inner, leaf in flatten(flat.pop(key), delimiter).items():
            flat[f"{key}{delimiter}{inner}"] = leaf
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
                shown = ", ".join(sorted(str(key) for key in own if key not in _FILLED_IN))
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
    trial.statistics.note(flat)

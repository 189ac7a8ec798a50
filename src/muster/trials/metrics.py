"""Flattens results, checks them for the metrics that plug-ins need, and keeps statistics of each metric.

Noting a result costs one append; results are added to the statistics together, column by column, when the
statistics are read or many results wait.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

DEBUG_METRICS = frozenset(
    {"trial_id", "experiment_id", "date", "timestamp", "pid", "hostname", "node_ip", "config"}
)
TRAINING_ITERATION = "training_iteration"
DEFAULT_METRIC = "_metric"
# Added to every result, hence not part of what a trial reports itself.
_AUTO_FILLED = frozenset(
    {
        "checkpoint_dir_name",
        "iterations_since_restore",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "training_iteration",
    }
)
_WINDOWS = (5, 10)
_LONGEST = max(_WINDOWS)
_MOST_WAITING = 64
_FLOAT = frozenset({float})
_SMALL = frozenset({int, bool})
_EXACT = 2**53  # integers beyond it are looked at one by one
_LIGHT = frozenset({float, int, bool, str, type(None), dict})  # a dict in a flat result is empty
Flat = Mapping[str, Any]
# What is kept of a metric: its only value so far, or [max, min, avg, the last ten values].
Kept = float | list[Any]


def flatten(result: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Returns a copy with nested dicts joined by `/`, after the flat keys; lists and empty dicts are kept."""
    flat = dict(result)
    for key in [key for key, value in flat.items() if isinstance(value, dict) and value]:
        flat.update(_leaves(key, flat.pop(key), delimiter))
    return flat


def _leaves(prefix: str, nested: Mapping[str, Any], delimiter: str) -> Iterator[tuple[str, Any]]:
    """Yields the leaves in the order in which they are written, whatever their depth."""
    for key, value in nested.items():
        name = f"{prefix}{delimiter}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(name, value, delimiter)
        else:
            yield name, value


def missing_metric(flat: Mapping[str, Any], wanted: Iterable[tuple[str, Any]]) -> str:
    """Returns why plug-ins cannot use this result, naming metric and component; "" when they can.

    A result with at most one own key is accepted: the first report of many trainables has no metrics yet.
    """
    own = [key for key in flat if key not in DEBUG_METRICS and key != "done"]
    if len(own) <= 1:
        return ""
    for component, metric in wanted:
        for name in metric if isinstance(metric, (list, tuple)) else (metric,):
            if name and name != DEFAULT_METRIC and name not in flat:
                shown = ", ".join(sorted(str(key) for key in own if key not in _AUTO_FILLED))
                return (
                    f"the trial reported no {name!r}, which the {component} needs. It reported: {shown}. "
                    f"Report it with every result, or name another metric. "
                    f"TUNE_DISABLE_STRICT_METRIC_CHECKING=1 turns this check off."
                )
    return ""


class Statistics:
    """Statistics of one trial do not depend on when results are added to them."""

    __slots__ = ("_kept", "_waiting")

    def __init__(self, saved: Mapping[str, Kept] | None = None) -> None:
        """Takes over `saved`, which `saved()` returned."""
        self._kept: dict[str, Kept] = dict(saved or {})
        self._waiting: list[Flat] = []

    def note(self, flat: Flat) -> None:
        """Adds one result; it must not be changed afterwards."""
        # An array or a tensor in a result must not be kept alive: only its number, if it is one, waits.
        self._waiting.append(flat if _LIGHT.issuperset(map(type, flat.values())) else _numbers_of(flat))
        if len(self._waiting) >= _MOST_WAITING:
            self._fold()

    def saved(self) -> dict[str, Kept]:
        """Returns everything as plain data."""
        self._fold()
        return dict(self._kept)  # lists in it are replaced when a value is added, never changed

    def analysis(self) -> dict[str, dict[str, float]]:
        """Returns `max, min, avg, last, last-5-avg, last-10-avg` of each metric."""
        self._fold()
        return {name: _analysed(kept) for name, kept in self._kept.items()}

    def windows(self) -> dict[str, dict[str, deque[float]]]:
        """Returns the last five and the last ten values of each metric."""
        self._fold()
        found = {}
        for name, kept in self._kept.items():
            values = [kept] if isinstance(kept, float) else kept[3]
            found[name] = {str(size): deque(values, maxlen=size) for size in _WINDOWS}
        return found

    def _fold(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        if len(rows) == 1 and not self._kept:  # most trials report once
            self._kept = {
                name: value for name, value in _numbers_of(rows[0]).items() if name not in DEBUG_METRICS
            }
        elif any(rows[0].keys() != row.keys() for row in rows):
            for row in rows:
                self._fold_alike([row])
        else:
            self._fold_alike(rows)

    def _fold_alike(self, rows: Sequence[Flat]) -> None:
        """Adds results with the same keys."""
        steps = [row.get(TRAINING_ITERATION) or 1 for row in rows]
        for name in rows[0]:
            if name not in DEBUG_METRICS:
                column = [row[name] for row in rows]
                if _FLOAT.issuperset(map(type, column)):
                    self._add(name, column, steps)
                elif _SMALL.issuperset(map(type, column)) and min(column) > -_EXACT and max(column) < _EXACT:
                    self._add(name, list(map(float, column)), steps)
                else:
                    found = [(number_of(value), step) for value, step in zip(column, steps, strict=True)]
                    usable = [(number, step) for number, step in found if number is not None]
                    self._add(name, [number for number, _ in usable], [step for _, step in usable])

    def _add(self, name: str, values: list[float], steps: Sequence[int]) -> None:
        if not values:
            return
        kept = self._kept.get(name)
        if kept is None:
            kept, values, steps = values[0], values[1:], steps[1:]
        if values:
            self._kept[name] = _extended(kept, values, steps)
        else:
            self._kept[name] = kept


def number_of(value: Any) -> float | None:  # noqa: ANN401 - a user's
    """Returns a value as a number, including those of numpy and torch; None when it is not a number."""
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]  # mypy does not follow `kind`
    if kind is str or value is None or not hasattr(kind, "__float__") or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return None


def _numbers_of(flat: Flat) -> dict[str, float]:
    found = {name: number_of(value) for name, value in flat.items()}
    return {name: number for name, number in found.items() if number is not None}


def _extended(kept: Kept, values: Sequence[float], steps: Iterable[int]) -> list[Any]:
    """Returns the statistics with more values, exactly as if they had been added one by one."""
    highest, lowest, average, last = (kept, kept, kept, [kept]) if isinstance(kept, float) else kept
    if math.isnan(sum(values)) or math.isnan(highest) or math.isnan(lowest):
        for value in values:  # NaN is no best value: the next number takes its place
            highest = value if math.isnan(highest) else max(highest, value)
            lowest = value if math.isnan(lowest) else min(lowest, value)
    else:
        highest, lowest = max(highest, *values), min(lowest, *values)
    for value, step in zip(values, steps, strict=True):
        average = ((step - 1) * average + value) / step
    return [highest, lowest, average, [*last, *values][-_LONGEST:]]


def _analysed(kept: Kept) -> dict[str, float]:
    if isinstance(kept, float):
        highest = lowest = average = kept
        last = [kept]
    else:
        highest, lowest, average, last = kept
    found = {"max": highest, "min": lowest, "avg": average, "last": last[-1]}
    for size in _WINDOWS:
        window = last[-size:]
        found[f"last-{size}-avg"] = sum(window) / len(window)
    return found

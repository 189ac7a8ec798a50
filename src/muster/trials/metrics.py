"""Flatten results, check them for the metrics that plug-ins need, and keeps statistics of each metric.

Noting a result costs one append; results are added to the statistics together, column by column, when the
statistics are read or many results wait.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from muster.base.text import did_you_mean
from muster.base.untrusted import describe, type_text

DEBUG_METRICS = frozenset(
    {"trial_id", "experiment_id", "date", "timestamp", "pid", "hostname", "node_ip", "config"}
)
TRAINING_ITERATION = "training_iteration"
DEFAULT_METRIC = "_metric"
# Added to every result, hence not part of what a trial reports itself.
_AUTO_FILLED = frozenset(
    {
        "checkpoint_dir_name",
        "cost_usd",
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
_NO_NUMBERS = frozenset({str, type(None)})
_EXACT = 2**53  # integers beyond it are looked at one by one
_FLAT = frozenset({float, int, bool, str, type(None)})
_LIGHT = _FLAT | {dict}  # a dict in a flat result is empty
Flat = Mapping[str, Any]
# What is kept of a metric: its only value so far, or [max, min, avg, the last ten values].
Kept = float | list[Any]


def in_words(value: object) -> str:
    """Return a value of a metric for a sentence.

    Example:
        >>> in_words(0.123456789), in_words(12), in_words(float("nan"))
        ('0.12346', '12', 'NaN')
    """
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.5g}"
    try:
        return str(value)[:80]
    except Exception:  # noqa: BLE001 - of a user's object
        return type_text(value)


def flatten(result: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Return a copy with nested dicts joined by `/`, after the flat keys; lists and empty dicts are kept."""
    flat = dict(result)
    for key in [key for key, value in flat.items() if isinstance(value, dict) and value]:
        flat.update(_leaves(key, flat.pop(key), delimiter))
    return flat


# A config, its leaves by flat name (None: it has none), and whether these are all light.
ConfigLeaves = tuple[object, dict[str, Any] | None, bool]
NO_LEAVES: ConfigLeaves = (None, None, True)


def flatten_result(
    result: dict[str, Any], known: ConfigLeaves = NO_LEAVES
) -> tuple[dict[str, Any], bool, ConfigLeaves]:
    """Return `flatten(result)`, whether nothing in it is an array or the like, and leaves for the next call.

    A config changes as a whole, never in place: the results of one process share it, and so its leaves.
    """
    config = result.get("config")
    if config is not known[0]:
        leaves = dict(_leaves("config", config, "/")) if type(config) is dict and config else None
        known = (config, leaves, _LIGHT.issuperset(map(type, (leaves or {}).values())))
    if known[1] is not None:
        flat = result.copy()
        del flat["config"]
        if _FLAT.issuperset(map(type, flat.values())):  # nothing else is nested
            flat.update(known[1])
            return flat, known[2], known
    flat = flatten(result)
    return flat, _LIGHT.issuperset(map(type, flat.values())), known


def _leaves(prefix: str, nested: Mapping[str, Any], delimiter: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves in the order in which they are written, whatever their depth."""
    for key, value in nested.items():
        name = f"{prefix}{delimiter}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(name, value, delimiter)
        else:
            yield name, value


def tried_config(result: Mapping[str, Any], first: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config that made the last result: a scheduler may have changed the trial's first one."""
    config = result.get("config")
    return config if isinstance(config, Mapping) and config else first


def missing_metric(
    flat: Mapping[str, Any], wanted: Iterable[tuple[str, Any]], *, is_first: bool = False
) -> str:
    """Return why plug-ins cannot use this result, naming metric and component; "" when they can.

    A trial whose first value is not a number will report more of them, which cannot be compared. A result
    with one own key at most is else accepted: the first report of many trainables has no metrics yet.
    """
    own = [key for key in flat if key not in DEBUG_METRICS and key != "done"]
    for component, metric in wanted:
        for name in metric if isinstance(metric, (list, tuple)) else (metric,):
            if is_first and name in flat and number_of(flat[name]) is None:
                return (
                    f"the trial reported {name!r}, by which the {component} compares trials, as "
                    f"{describe(flat[name])}, which is not a number: report float(...), or NaN while it is "
                    "unknown, or leave the key out"
                )
            if len(own) > 1 and name and name != DEFAULT_METRIC and name not in flat:
                known = sorted(str(key) for key in own if key not in _AUTO_FILLED)
                listed, near = ", ".join(known), did_you_mean(str(name), known)
                return (
                    f"the trial reported no {name!r}, which the {component} needs. It reported: {listed}"
                    f"{near and f' ({near})'}. "
                    f"Report it with every result, or name another metric. "
                    f"TUNE_DISABLE_STRICT_METRIC_CHECKING=1 turns this check off."
                )
    return ""


class Statistics:
    """Statistics of one trial do not depend on when results are added to them."""

    __slots__ = ("_kept", "_waiting")

    def __init__(self, saved: Mapping[str, Kept] | None = None) -> None:
        """Take over `saved`, which `saved()` returned."""
        self._kept: dict[str, Kept] = dict(saved or {})
        self._waiting: list[Flat] = []

    def note(self, flat: Flat, *, is_light: bool = False) -> None:
        """Add one result; it must not be changed afterwards. `is_light`: as `flatten_result` says."""
        # An array or a tensor in a result must not be kept alive: only its number, if it is one, waits.
        is_light = is_light or _LIGHT.issuperset(map(type, flat.values()))
        self._waiting.append(flat if is_light else _numbers_of(flat))
        if len(self._waiting) >= _MOST_WAITING:
            self._fold()

    def saved(self) -> dict[str, Kept]:
        """Return everything as plain data."""
        self._fold()
        return dict(self._kept)  # lists in it are replaced when a value is added, never changed

    def analysis(self) -> dict[str, dict[str, float]]:
        """Return `max, min, avg, last, last-5-avg, last-10-avg` of each metric."""
        self._fold()
        return {name: _analysed(kept) for name, kept in self._kept.items()}

    def windows(self) -> dict[str, dict[str, deque[float]]]:
        """Return the last five and the last ten values of each metric."""
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
            known = {name: value for name, value in rows[0].items() if _is_metric(name)}
            self._kept = dict(_numbers_of(known))
            return
        names = list(rows[0])
        if all(list(row) == names for row in rows):
            columns = zip(*[row.values() for row in rows])  # noqa: B905 - equally long, see above
            self._fold_alike(dict(zip(names, columns, strict=True)))
        else:
            for row in rows:
                self._fold_alike({name: (value,) for name, value in row.items()})

    def _fold_alike(self, columns: Mapping[str, tuple[Any, ...]]) -> None:
        """Add results with the same keys in the same order, given by key."""
        count = len(next(iter(columns.values()), ()))
        steps = [step or 1 for step in columns.get(TRAINING_ITERATION, (1,) * count)]
        for name, column in columns.items():
            if not _is_metric(name):
                continue
            kinds = set(map(type, column))
            if kinds <= _NO_NUMBERS:
                continue
            if kinds <= _FLOAT:
                self._add(name, column, steps)
            elif kinds <= _SMALL and min(column) > -_EXACT and max(column) < _EXACT:
                self._add(name, tuple(map(float, column)), steps)
            else:
                found = [(number_of(value), step) for value, step in zip(column, steps, strict=True)]
                usable = [(number, step) for number, step in found if number is not None]
                self._add(name, tuple(number for number, _ in usable), [step for _, step in usable])

    def _add(self, name: str, values: tuple[float, ...], steps: Sequence[int]) -> None:
        if not values:
            return
        kept = self._kept.get(name)
        if kept is None:
            kept, values, steps = values[0], values[1:], steps[1:]
        if values:
            self._kept[name] = _extended(kept, values, steps)
        else:
            self._kept[name] = kept


def _is_metric(name: object) -> bool:
    return name not in DEBUG_METRICS and not (type(name) is str and name.startswith("config/"))


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite int or float; a flag is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number_of(value: Any) -> float | None:  # noqa: ANN401 - a user's
    """Return a value as a number, including those of numpy and torch; None when it is not a number."""
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]  # mypy does not follow `kind`
    if kind is str or value is None or not hasattr(kind, "__float__") or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return None


def rank_key(value: Any, mode: str | None) -> float | None:  # noqa: ANN401 - a user's value
    """Return the key that ranks trials everywhere, the smallest and of equal ones the first is best.

    Ray Tune's rule: a failed trial counts too; one without a finite number (None) is never the best.
    """
    found = number_of(value)
    if found is None or not math.isfinite(found):
        return None
    return -found if mode == "max" else found


def _numbers_of(flat: Flat) -> dict[str, float]:
    if _FLAT.issuperset(map(type, flat.values())):  # nearly always, and huge integers are rare
        try:
            return {n: float(v) for n, v in flat.items() if type(v) is not str and v is not None}
        except OverflowError:
            pass
    found = {name: number_of(value) for name, value in flat.items()}
    return {name: number for name, number in found.items() if number is not None}


def _extended(kept: Kept, values: Sequence[float], steps: Sequence[int]) -> list[Any]:
    """Return the statistics with more values, exactly as if they had been added one by one."""
    highest, lowest, average, last = (kept, kept, kept, [kept]) if isinstance(kept, float) else kept
    if math.isnan(sum(values)) or math.isnan(highest) or math.isnan(lowest):
        for value in values:  # NaN is never the best value: the next number takes its place
            highest = value if math.isnan(highest) else max(highest, value)
            lowest = value if math.isnan(lowest) else min(lowest, value)
    else:
        highest, lowest = max(highest, *values), min(lowest, *values)
    if not _is_whole_constant(average, values, steps):
        for value, step in zip(values, steps):  # noqa: B905 - `strict` takes half as long again
            average = ((step - 1) * average + value) / step
    window = values if len(values) >= _LONGEST else [*last, *values]
    return [highest, lowest, average, [*window[-_LONGEST:]]]


def _is_whole_constant(average: float, values: Sequence[float], steps: Sequence[int]) -> bool:
    """Return whether the average stays as it is to the last bit: flags and counts often do not change."""
    if average != values[0] or values.count(average) < len(values) or not average.is_integer():
        return False
    is_minus_zero = not average and math.copysign(1.0, average) < 0
    return not is_minus_zero and min(steps) > 0 and abs(average) * max(steps) < _EXACT


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

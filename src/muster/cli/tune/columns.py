"""Define the columns of trials and experiments, and filters and sorts rows by them.

A column is chosen by its name, by the heading it is shown under, or by a pattern (`config/*`).
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from muster.errors import ConfigError
from muster.stores.experiment.summary import TrialSummary
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.analysis.tables import flat_row, number
from muster.tune.reporting.tally import error_line

Row = Mapping[str, Any]
HEADINGS = {  # name of a column: what stands above it; either may be asked for
    "trial_id": "trial",
    "training_iteration": "iter",
    "time_total_s": "time",
    "experiment_tag": "tag",
    "last_updated": "updated",
}
FIXED = (  # there are always, also when no trial has a value
    "trial_id",
    "trial_name",
    "trainable_name",
    "experiment_tag",
    "status",
    "training_iteration",
    "time_total_s",
    "mean_accuracy",
    "mean_loss",
    "reports",
    "starts",
    "failures",
    "error",
    "checkpoint",
    "path",
    "created_at",
    "started_at",
    "reported_at",
    "ended_at",
)
TIMES = frozenset({"created_at", "started_at", "reported_at", "ended_at", "timestamp"})
TIMES_SHORT = frozenset({"last_updated", "since"})  # without seconds
DURATIONS = frozenset({"time_total_s", "time_this_iter_s", "time_since_restore"})
CONFIG = "config/"
RESULT = "result/"  # begins a reported key that is the name of another column


def trial_row(trial: TrialSummary, path: str) -> dict[str, Any]:
    """Return every column of a trial: its state, its last result and its config."""
    failure, name = trial.failure, trial.trial_name
    result = flat_row({str(key): value for key, value in trial.result.items() if key != "config"})
    clashing = [key for key in result if key in FIXED and key not in AUTO_RESULT_KEYS]
    return {
        **result,
        **{f"{RESULT}{key}": result[key] for key in clashing},
        **flat_row({"config": dict(trial.config)}),
        "trial_id": trial.trial_id,
        "trial_name": name,
        "trainable_name": name[: -len(trial.trial_id) - 1] if name.endswith(f"_{trial.trial_id}") else None,
        "experiment_tag": trial.experiment_tag,
        "status": trial.status,
        "reports": trial.reports,
        "starts": trial.starts,
        "failures": trial.failures,
        "error": None if failure is None else error_line(failure.traceback or failure.message),
        "checkpoint": None if trial.checkpoint is None else trial.checkpoint.path,
        "path": path,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "reported_at": trial.reported_at,
        "ended_at": trial.ended_at,
    }


def is_own(name: str) -> bool:
    """Return whether the user reported the column, rather than muster."""
    return name not in FIXED and name not in AUTO_RESULT_KEYS and not name.startswith(CONFIG)


def own_metrics(rows: Sequence[Row], metric: str | None, at_most: int = 3) -> list[str]:
    """Return the column of the metric, or the first numbers that trials reported."""
    if metric:
        return [next((name for row in rows for name in row if name == f"{RESULT}{metric}"), metric)]
    found: dict[str, None] = {}
    for row in rows:
        found |= {key: None for key, value in row.items() if is_own(key) and number(value) is not None}
        if len(found) >= at_most:
            break
    return list(found)[:at_most]


class RowColumns:
    """RowColumns find the columns of some rows by the names that users give them."""

    def __init__(self, rows: Sequence[Row], fixed: Sequence[str]) -> None:
        self._rows = rows
        self._fixed = fixed

    @cached_property
    def known(self) -> tuple[str, ...]:
        """Return all columns, the fixed ones first."""
        return tuple(dict.fromkeys(chain(self._fixed, *self._rows)))

    def asked(self, texts: Iterable[str], option: str) -> tuple[str, ...]:
        """Return the columns named by `a,b` texts. Raises ConfigError with the nearest names."""
        words = [word.strip() for text in texts for word in text.split(",")]
        found = (name for word in words if word for name in self._matching(word, option))
        return tuple(dict.fromkeys(found))

    def values(self, name: str) -> list[Any]:
        """Return the values of a column, without those of rows that have none."""
        return [row[name] for row in self._rows if row.get(name) is not None]

    def one(self, word: str, option: str) -> str:
        """Return a single column. Raises ConfigError with the nearest names."""
        if word in self._fixed or any(word in row for row in self._rows):
            return word
        for name in (*(name for name, shown in HEADINGS.items() if shown == word), f"{CONFIG}{word}"):
            if name in self.known:
                return name
        raise ConfigError(self._unknown(word, option))

    def _matching(self, word: str, option: str) -> tuple[str, ...]:
        if "*" not in word:
            return (self.one(word, option),)
        found = tuple(name for name in self.known if fnmatch.fnmatchcase(name, word))
        if not found and word != f"{CONFIG}*":  # an empty config is fine
            raise ConfigError(self._unknown(word, option))
        return found

    def _unknown(self, word: str, option: str) -> str:
        names = [*self.known, *HEADINGS.values()]
        ends = {name.rpartition("/")[2]: name for name in names}
        near = difflib.get_close_matches(word, [*names, *ends], n=3, cutoff=0.6)
        shown = list(dict.fromkeys(ends.get(name, name) for name in near))
        hint = f"Did you mean {' or '.join(shown)}? " if shown else ""
        listed = ", ".join(name for name in self.known if name not in AUTO_RESULT_KEYS or name in FIXED)
        return f"{option}: no column {word!r}. {hint}There are: {listed}"


_FILTER = re.compile(r"\s*(?P<column>.+?)\s*(?P<op><=|>=|==|!=|<|>)\s*(?P<value>.*?)\s*")
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


def filtered(rows: Sequence[Row], filters: Iterable[str], columns: RowColumns) -> list[Row]:
    """Return the rows that pass all `<column> <op> <value>`; a row without a value passes none."""
    kept = list(rows)
    for text in filters:
        passes = _condition(text, columns)
        kept = [row for row in kept if passes(row)]
    return kept


def _condition(text: str, columns: RowColumns) -> Callable[[Row], bool]:
    match = _FILTER.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--filter {text!r}: must be '<column> <op> <value>' with one of {', '.join(_OPERATORS)}",
            fix="for example --filter 'training_iteration >= 10'",
        )
    name = columns.one(match["column"], "--filter")
    compare, operand = _OPERATORS[match["op"]], match["value"].strip("'\"")
    wanted = _number_from(operand)
    _check_kind(text, name, columns.values(name), match["op"], operand)

    def passes(row: Row) -> bool:
        value = row.get(name)
        if value is None:
            return False
        found = number(value)
        if found is not None and wanted is not None:
            return compare(found, wanted)
        if isinstance(value, bool):
            return compare(str(value).lower(), operand.lower())
        return compare(str(value), operand)

    return passes


def _check_kind(text: str, name: str, values: Sequence[Any], op: str, operand: str) -> None:
    """Raise ConfigError where no value can pass, because numbers are compared with a text."""
    are_numbers = [number(value) is not None for value in values if not isinstance(value, bool)]
    has_number = _number_from(operand) is not None
    if are_numbers and all(are_numbers) and not has_number:
        raise ConfigError(
            f"--filter {text!r}: the values of {name} are numbers, and {operand!r} is a text",
            fix=f"give a number, for example --filter '{name} {op} {values[0]}'",
        )
    if are_numbers and not any(are_numbers) and has_number and op not in ("==", "!="):
        raise ConfigError(
            (
                f"--filter {text!r}: the values of {name} are texts, such as {str(values[0])!r}, "
                f"and {operand} is a number"
            ),
            fix="use == or != with one of the texts",
        )


def _number_from(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def ordered(rows: Sequence[Row], names: Sequence[str], *, descending: bool = False) -> list[Row]:
    """Sort by the first column, then by the next; rows without a value come last either way."""
    result = list(rows)
    for name in reversed(names):
        has = [row for row in result if _rank(row.get(name)) is not None]
        has.sort(key=lambda row: _rank(row.get(name)) or (0, 0), reverse=descending)
        result = has + [row for row in result if _rank(row.get(name)) is None]
    return result


def _rank(value: object) -> tuple[int, Any] | None:
    """Numbers come before texts; None cannot be compared with anything."""
    if value is None:
        return None
    found = number(value)
    if found is None:
        return (1, str(value))
    return None if math.isnan(found) else (0, found)

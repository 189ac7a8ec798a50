"""Keep the trials of one experiment column by column, and writes them as bytes or as a delta.

Pure: takes values, reads no file. Every row knows the number of its last change, so a delta costs what
changed. Names and texts of users are cut, and columns beyond the limit are counted, not kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.base.untrusted import text_of
from muster.trials.metrics import flatten

STATUSES = ("PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR", "INTERRUPTED", "STOPPED")
OVER = ("TERMINATED", "ERROR", "STOPPED")  # the last: by the scheduler or a stopper, before its end
TIMES = ("created", "started", "reported", "ended")
COUNTS = ("reports", "starts", "failures")  # 0 until something is known
MAX_COLUMNS = 200
MAX_NAME = 120  # characters of a name or a word
MAX_WORDS = 1000  # different texts of one column; others are shown as "…"
OTHER = "…"
MASK = "••••"
_SECRET = re.compile(
    r"secret|passw|passphrase|credential|(?:api|access|private|auth)[_\-. ]?key"
    r"|(?:^|[_\-./ ])(?:token|auth)$",
    re.IGNORECASE,
)
NUMBER, WORD = "number", "word"
Floats = npt.NDArray[np.float64]
_NUMBERS = frozenset({int, float, type(None)})  # what numpy makes an array of numbers from


def is_secret(key: str) -> bool:
    """Return whether a parameter or metric is named like a secret.

    Example:
        >>> [is_secret(key) for key in ("hf_token", "db/Password", "wandb-api-key", "max_tokens", "key")]
        [True, True, True, False, False]
    """
    return _SECRET.search(key) is not None


def cut(text: str, most: int = MAX_NAME) -> str:
    """Return the text, or its beginning and how long it was."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


class TableColumn:
    """Holds one value per trial: a number, or the code of a word."""

    def __init__(self, key: str, group: str, kind: str, room: int) -> None:
        self._blank = 0.0 if group == "trial" and key in COUNTS else math.nan
        self.key = key  # the full name, as the user wrote it
        self.name = cut(key)
        self.group = group  # trial, config or metric
        self.kind = kind
        self.odd = 0  # values that are not what the others are
        self.values: Floats = np.full(room, self._blank)
        self.words: dict[str, int] = {}
        self.word_changes: list[int] = []  # number of the change that added each word

    def grow(self, room: int) -> None:
        self.values = np.concatenate([self.values, np.full(room - len(self.values), self._blank)])

    def code(self, word: str, change: int) -> float:
        """Return the code of a word, which may be new."""
        found = self.words.get(word)
        if found is None:
            short = cut(word)
            found = self.words.get(short)
        if found is None:
            if len(self.words) >= MAX_WORDS:
                short = OTHER
            found = self.words.setdefault(short, len(self.words))
            if found == len(self.word_changes):
                self.word_changes.append(change)
        return float(found)

    def become_words(self, rows: int, change: int) -> None:
        """Turn numbers into words, for a parameter that is sometimes a number and sometimes a text."""
        before, self.kind = self.values[:rows].copy(), WORD
        for row in np.flatnonzero(~np.isnan(before)):
            self.values[row] = self.code(f"{before[row]:g}", change)

    def masked(self) -> TableColumn:
        """Return a column with the same rows and none of the values."""
        hidden = TableColumn(self.key, self.group, WORD, 0)
        hidden.values, hidden.words = np.where(np.isnan(self.values), np.nan, 0.0), {MASK: 0}
        return hidden

    def wire(self, rows: int) -> bytes:
        """Return float32 numbers, or uint16 codes with 65535 for nothing."""
        held = self.values[:rows]
        if self.kind == NUMBER:
            return held.astype("<f4").tobytes()
        return np.where(np.isnan(held), 65535, held).astype("<u2").tobytes()


class TrialArrays:
    """Changed by one reader and read by all clients; the caller holds a lock."""

    def __init__(self) -> None:
        self.generation = secrets.token_hex(6)  # another one: clients must load the table again
        self._is_known = False  # to a client, with the columns that it has now
        self.change = 0  # number of the newest change
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.row_changes: npt.NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        self.zero_time: float | None = None  # times are sent relative to it
        self.left_out: set[str] = set()  # keys of columns beyond the limit
        self.columns: dict[str, TableColumn] = {}
        self._groups: dict[str, dict[str, TableColumn]] = {"trial": {}, "config": {}, "metric": {}}
        for name in ("status", "machine", "error", "failed_at"):
            self._add_column(name, "trial", WORD)
        for name in ("training_iteration", "time_total_s", *COUNTS, *TIMES):
            self._add_column(name, "trial", NUMBER)
        for status in STATUSES:
            self.columns["trial/status"].code(status, 0)

    def __len__(self) -> int:
        return len(self.ids)

    def begin_change(self) -> None:
        self.change += 1

    def row_of(self, trial_id: str) -> int:
        """Return the row of a trial, which may be new."""
        row = self.rows.get(trial_id)
        if row is None:
            row = self.rows[trial_id] = len(self.ids)
            self.ids.append(trial_id)
            if row >= len(self.row_changes):
                self.row_changes = np.concatenate([self.row_changes, np.zeros(row, dtype=np.int64)])
                for column in self.columns.values():
                    column.grow(len(self.row_changes))
        self.row_changes[row] = self.change
        return row

    def set(self, row: int, name: str, value: float | str | None) -> None:
        """Set one of the columns that every table has."""
        self._set_value(self._groups["trial"][name], row, value)

    def set_column(self, rows: Sequence[int], name: str, column: Sequence[Any]) -> None:
        """Set one of the columns that every table has, for many rows."""
        self._set_rows(self._groups["trial"][name], rows, column)

    def set_times(self, rows: Sequence[int], name: str, times: Sequence[float | None]) -> None:
        if self.zero_time is None:
            self.zero_time = next((at for at in times if at is not None), None)
        since = np.array(times, dtype=np.float64) - (self.zero_time or 0.0)  # None becomes NaN
        self._groups["trial"][name].values[np.asarray(rows, dtype=np.intp)] = since

    def newest_time(self) -> float | None:
        """Return when the last thing happened to a trial; None before the first."""
        held = np.concatenate([self._groups["trial"][name].values[: len(self.ids)] for name in TIMES])
        known = held[np.isfinite(held)]
        return float(known.max()) + (self.zero_time or 0.0) if len(known) else None

    def set_block(self, rows: Sequence[int], group: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Set parameters or metrics of many trials that have the same ones; what is nested is flattened."""
        known = self._groups[group]
        for key, values in columns.items():
            if dict in set(map(type, values)):
                for row, value in zip(rows, values, strict=True):
                    self.set_many(row, group, flatten({key: value}))
                continue
            column = known.get(key)
            if column is None:
                first = next((value for value in values if value is not None), None)
                column = self._new_column(group, str(key), first)
            if column is not None:
                self._set_rows(column, rows, values)

    def _set_rows(self, column: TableColumn, rows: Sequence[int], values: Sequence[Any]) -> None:
        kinds = set(map(type, values))
        if column.kind == NUMBER and kinds <= _NUMBERS:
            with contextlib.suppress(OverflowError):  # of integers; one by one they become infinities
                column.values[np.asarray(rows, dtype=np.intp)] = np.array(values, dtype=np.float64)
                return
        elif column.kind == WORD and kinds == {str}:
            codes = {word: column.code(text_of(word), self.change) for word in dict.fromkeys(values)}
            column.values[np.asarray(rows, dtype=np.intp)] = [codes[word] for word in values]
            return
        for row, value in zip(rows, values, strict=True):
            self._set_value(column, row, value)

    def get(self, row: int, name: str) -> float:
        return float(self._groups["trial"][name].values[row])

    def set_many(self, row: int, group: str, flat: Mapping[str, Any]) -> None:
        """Set parameters or metrics; values that are neither number nor text are shown as text."""
        known = self._groups[group]
        for key, value in flat.items():
            column = known.get(key)
            if column is None:
                column = self._new_column(group, str(key), value)
            if column is None:
                continue
            if type(value) is float and column.kind == NUMBER:  # most values are
                column.values[row] = value
            else:
                self._set_value(column, row, value)

    def _new_column(self, group: str, key: str, value: object) -> TableColumn | None:
        if value is None:
            return None  # its kind will show
        if len(self.columns) >= MAX_COLUMNS:
            self.left_out.add(key[:MAX_NAME])
            return None
        kind = NUMBER if number_of(value) is not None else WORD
        self._renew()
        return self._add_column(key, group, kind)

    def _set_value(self, column: TableColumn, row: int, value: object) -> None:
        number = number_of(value)
        if value is None:
            column.values[row] = math.nan
        elif column.kind == WORD:
            column.values[row] = column.code(text_of(value), self.change)
        elif number is not None:
            column.values[row] = number
        elif column.group == "metric":
            column.values[row], column.odd = math.nan, column.odd + 1
        else:
            column.become_words(len(self.ids), self.change)
            self._renew()
            column.values[row] = column.code(text_of(value), self.change)

    def _renew(self) -> None:
        if self._is_known:
            self.generation, self._is_known = secrets.token_hex(6), False

    def _add_column(self, key: str, group: str, kind: str) -> TableColumn:
        made = TableColumn(key, group, kind, len(self.row_changes))
        self.columns[f"{group}/{key}"] = self._groups[group][key] = made
        return made

    def encode(self, extra: Mapping[str, Any], *, masks: bool = False) -> bytes:
        """Return the whole table: the length of a JSON head, the head, then the columns one by one.

        With `masks`, without the values of columns that are named like secrets.
        """
        rows, self._is_known = len(self.ids), True
        columns = list(self.columns.values())
        if masks:
            columns = [column.masked() if is_secret(column.key) else column for column in columns]
        parts = ["\n".join(self.ids).encode(), *(column.wire(rows) for column in columns)]
        head = {
            **extra,
            "format": 1,
            "generation": self.generation,
            "change": self.change,
            "rows": rows,
            "zero_time": self.zero_time or 0.0,
            "left_out": len(self.left_out),
            "id_bytes": len(parts[0]),
            "columns": [
                {
                    "name": column.name,
                    "group": column.group,
                    "kind": column.kind,
                    "odd": column.odd,
                    "words": list(column.words),
                }
                for column in columns
            ],
        }
        text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
        text += b" " * (-len(text) % 4)
        padded = (part + b"\0" * (-len(part) % 4) for part in parts)
        return len(text).to_bytes(4, "little") + text + b"".join(padded)

    def changed_since(self, change: int) -> Iterator[int]:
        rows = self.row_changes[: len(self.ids)]
        return (int(row) for row in np.flatnonzero(rows > change))

    def delta(self, change: int) -> dict[str, Any]:
        """Return the rows that changed after `change`, and the words that are new since."""
        columns = list(self.columns.values())
        rows = [
            [row, self.ids[row], *(_rounded(column.values[row]) for column in columns)]
            for row in self.changed_since(change)
        ]
        words = {}
        for place, column in enumerate(columns):
            made_at = zip(column.words.items(), column.word_changes, strict=True)
            fresh = [[code, word] for (word, code), made in made_at if made > change]
            if column.kind == WORD and fresh:
                words[str(place)] = fresh
        return {
            "generation": self.generation,
            "change": self.change,
            "zero_time": self.zero_time or 0.0,
            "rows": rows,
            "words": words,
        }

    def numbers(self, names: Iterable[str]) -> dict[str, Floats]:
        """Return metrics by name, for what is computed over all trials."""
        found = ((name, self.columns.get(f"metric/{name}")) for name in names)
        return {n: c.values[: len(self.ids)] for n, c in found if c is not None and c.kind == NUMBER}


def number_of(value: object) -> float | None:
    """Return a number as a float, infinite for an integer beyond floats; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return None


def _rounded(value: float) -> float | str | None:
    if math.isfinite(value):
        return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.7g}")
    return None if math.isnan(value) else str(value)

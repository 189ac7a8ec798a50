"""Encode rows of progress.csv: flat, without the config, with one header that grows when new keys appear."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

LINE_END = "\r\n"  # what csv.writer, and so Ray, ends a record with
_END = LINE_END.encode()
_TEXT = frozenset({str})
_PLAIN = frozenset({str, int, float, bool, type(None)})
Flat = dict[str, Any]


def flat_row(row: Mapping[str, Any], delimiter: str = "/") -> Flat:
    """Return a result without its config, nested keys joined by `/` and, as in Ray, after the others."""
    flat = dict(row) if _TEXT.issuperset(map(type, row)) else {str(key): row[key] for key in row}
    flat.pop("config", None)
    if _PLAIN.issuperset(map(type, flat.values())):
        return flat
    rest, flat, nested = flat, {}, []
    for key, value in rest.items():
        if isinstance(value, dict):
            nested.append((key, value))
        else:
            flat[key] = value
    while nested:
        prefix, inner = nested.pop(0)
        for key, value in inner.items():
            name = f"{prefix}{delimiter}{key}"
            if isinstance(value, dict):
                nested.append((name, value))
            else:
                flat[name] = value
    return flat


class Table:
    """Holds the columns of one file, and how a row with given keys is laid out in them."""

    def __init__(self, columns: Iterable[str] = ()) -> None:
        self.columns = list(columns)
        self._known = frozenset(self.columns)
        self._keys: tuple[str, ...] = ()
        self._pick: Callable[[Flat], Sequence[Any]] = self._gathered

    def new_columns(self, rows: Iterable[Flat]) -> list[str]:
        """Return the keys without a column, in the order in which they appear."""
        found: dict[str, None] = {}
        checked = self._keys
        for row in rows:
            keys = tuple(row)
            if keys != checked:
                found.update((key, None) for key in keys if key not in self._known)
                checked = keys
        return list(found)

    def widened(self, names: Sequence[str]) -> Table:
        """Return a table with more columns; this one may be in use for other files."""
        return Table([*self.columns, *names])

    def header(self) -> bytes:
        return _header(tuple(self.columns))

    def encode(self, rows: Iterable[Flat]) -> bytes:
        """Return records as CSV; a missing key is an empty field, an unknown one is left out."""
        return _encoded([self._picked(row) for row in rows])

    def _picked(self, row: Flat) -> Sequence[Any]:
        keys = tuple(row)
        if keys != self._keys:
            complete = self._known.issubset(keys) and len(self.columns) > 1
            self._pick = itemgetter(*self.columns) if complete else self._gathered
            self._keys = keys
        return self._pick(row)

    def _gathered(self, row: Flat) -> Sequence[Any]:
        return [row.get(name, "") for name in self.columns]


@lru_cache(maxsize=64)
def _header(columns: tuple[str, ...]) -> bytes:
    return _encoded([columns])


def _encoded(records: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator=LINE_END).writerows(records)
    return text.getvalue().encode("utf-8", "backslashreplace")


def records_of(data: bytes) -> list[bytes]:
    """Return whole records with line ends, and last, if any, a torn one; quoted fields may hold newlines."""
    return _split(data) if b'"' in data else data.splitlines(keepends=True)


def _split(data: bytes) -> list[bytes]:
    records, start, quotes = [], 0, 0
    position = data.find(b"\n")
    scanned = 0
    while position >= 0:
        quotes += data.count(b'"', scanned, position)
        scanned = position + 1
        if quotes % 2 == 0:
            records.append(data[start:scanned])
            start = scanned
        position = data.find(b"\n", scanned)
    if start < len(data):
        records.append(data[start:])
    return records


def is_whole(record: bytes) -> bool:
    """Return whether a record is not torn: it has its line end, and that is not part of a quoted field."""
    return record.endswith(b"\n") and record.count(b'"') % 2 == 0


def fields_of(record: bytes) -> list[str]:
    """Return the fields of one record; [] for a blank one."""
    text = record.decode("utf-8", "replace")
    return next(csv.reader(io.StringIO(text, newline="")), [])


def widened(data: bytes, header: bytes, extra: int) -> bytes:
    """Return a whole file with a wider header and `extra` empty fields at the end of each record."""
    body = records_of(data)[1:]
    tail = b"," * extra + _END
    return header + b"".join([record.rstrip(b"\r\n") + tail for record in body if is_whole(record)])


def step_of(result: Mapping[str, Any]) -> int:
    """Return the environment steps when they are counted, else the iterations, as Ray's loggers do."""
    try:
        return int(result.get("timesteps_total") or result.get("training_iteration") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0

"""Append to result files, of which few are open at a time, and repairs them after a crash or a restart.

Torn ends and rows beyond a number of them are cut. Every cut is one `truncate`, so a crash in between leaves
the file as it was or as it should be.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from muster.host.atomic_write import atomic_write
from muster.tune.logger.files.csv_rows import Flat, Table, fields_of, is_whole, records_of
from muster.tune.logger.files.json_rows import encode

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class OpenFiles:
    """Keeps descriptors by path; beyond the limit the least recently used one is closed."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def descriptor(self, path: str) -> int:
        """Return a descriptor for appending; the file is made when it does not exist."""
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._open[path] = os.open(path, _FLAGS, 0o644)
            if len(self._open) > self._limit:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return descriptor

    def close(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def content(path: str) -> bytes:
    """Return the content of a file; nothing when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def append_once(path: str, data: bytes) -> None:
    """Open, append and close: for a file that will not be written again soon."""
    _write_once(path, _FLAGS, data)


def _write_once(path: str, flags: int, data: bytes) -> None:
    descriptor = os.open(path, flags, 0o644)
    try:
        append_all(descriptor, data)
    finally:
        os.close(descriptor)


def append_all(descriptor: int, data: bytes) -> None:
    """Append everything or nothing: what a full disk accepted is cut off before the error is raised."""
    done = 0
    try:
        done = os.write(descriptor, data) if data else 0
        while done < len(data):
            done += os.write(descriptor, memoryview(data)[done:])
    except OSError:
        if done:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - done)
        raise


def write_whole(path: str, data: bytes) -> None:
    """Replace a file in one step."""
    atomic_write(path, data, mode=0o644)


def write_new(path: str, data: bytes) -> None:
    """Write a file of a new directory, which has no readers yet, so no temporary file is needed."""
    _write_once(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), data)


ITERATION = "training_iteration"
Row = dict[str, Any]


def truncate_after(trial_dir: str, rows: int | None) -> None:
    """Keep the first `rows` rows of result.json and progress.csv; None: all but torn ends.

    Files that do not exist are fine. OSError when one cannot be read or cut.
    """
    for name, cut in (("result.json", _cut_json), ("progress.csv", _cut_csv)):
        path = os.path.join(trial_dir, name)
        if not os.path.exists(path):
            continue
        data = content(path)
        keep = cut(data, rows)
        if keep < len(data):
            os.truncate(path, keep)
        elif keep > len(data):  # a whole last row that lacks only its line end
            with open(path, "ab") as file:
                file.write(b"\n")


def last_iteration(path: str) -> int | None:
    """Return the iteration of the last row of a result.json or progress.csv; None when no row has one."""
    data = content(path)
    if path.endswith(".csv"):
        records = records_of(data)
        if len(records) < 2:
            return None
        last = dict(zip(fields_of(records[0]), fields_of(records[-1]), strict=False))
        return _number(last.get(ITERATION))
    lines = data.splitlines()
    return _number((_parsed(lines[-1]) or {}).get(ITERATION)) if lines else None


def iteration_of(row: Row) -> int:
    """Return the iteration of a result; 0 when the result has none."""
    return _number(row.get(ITERATION)) or 0


def csv_columns(path: str) -> list[str]:
    """Return the header of an existing progress.csv; [] when there is none."""
    records = records_of(content(path))
    return fields_of(records[0]) if records and is_whole(records[0]) else []


def _cut_json(data: bytes, rows: int | None) -> int:
    """Return how many bytes to keep; one more than there are: the last row lacks its line end."""
    if rows is not None and data.count(b"\n") > rows:
        return sum(len(line) for line in data.splitlines(keepends=True)[:rows])
    torn = len(data) - (data.rfind(b"\n") + 1)
    if not torn:
        return len(data)
    is_wanted = rows is None or data.count(b"\n") < rows
    return len(data) + 1 if is_wanted and _parsed(data[-torn:]) is not None else len(data) - torn


def _cut_csv(data: bytes, rows: int | None) -> int:
    records = records_of(data)
    if records and not is_whole(records[-1]):
        records.pop()
    return sum(map(len, records if rows is None else records[: rows + 1]))  # the header is one of them


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _number(value: Any) -> int | None:  # noqa: ANN401 - as read from a file
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def cut_repeated_rows(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """Cut repeated rows from the end of a result.json without a torn end; OSError when that fails."""
    lines = content(path).splitlines(keepends=True)
    latest = lines[max(0, len(lines) - len(rows)) :]
    # The same row may be spelled in two ways, with and without spaces: the values are compared.
    count = _common(
        [_normalised(line) for line in latest], [_normalised(line) for line in _encoded(encode, rows)]
    )
    _cut(path, lines, count)


def cut_repeated_records(path: str, table: Table, rows: Sequence[Flat]) -> None:
    """Cut repeated records from the end of a progress.csv with the columns of `table`."""
    records = records_of(content(path))
    expected = _encoded(lambda row: table.encode([row]), rows)
    _cut(path, records, _common(records[1:], expected))


def _encoded(encode_row: Callable[[Any], bytes], rows: Sequence[Any]) -> list[bytes]:
    found = []
    for row in rows:
        try:
            found.append(encode_row(row))
        except Exception:  # noqa: BLE001 - a row that cannot be written is not there either
            continue
    return found


def _normalised(line: bytes) -> str:
    try:
        return json.dumps(json.loads(line))
    except ValueError:
        return ""


def _common(have: Sequence[Any], rows: Sequence[Any]) -> int:
    """Return how many items at the end of `have` are the first of `rows`."""
    for count in range(min(len(have), len(rows)), 0, -1):
        if have[-count] == rows[0] and list(have[-count:]) == list(rows[:count]):
            return count
    return 0


def _cut(path: str, lines: Sequence[bytes], count: int) -> None:
    if count:
        os.truncate(path, sum(map(len, lines[:-count])))

"""Repairs result files after a crash or a restart: cuts torn ends and rows beyond a restored iteration.

Every cut is one `truncate`, so a crash in between leaves the file as it was or as it should be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from muster.tune.logger.files.csv_rows import Flat, Table, fields_of, is_whole, records_of
from muster.tune.logger.files.json_rows import encode
from muster.tune.logger.files.open_files import content

ITERATION = "training_iteration"
_TAIL = 1 << 16
Row = dict[str, Any]


def truncate_after(trial_dir: str, iteration: int | None) -> None:
    """Drops the rows after `iteration` from result.json and progress.csv; None: only torn ends.

    Files that do not exist are fine. OSError when one cannot be read or cut.
    """
    for name, clean, cut in (("result.json", _json_is_clean, _cut_json), ("progress.csv", None, _cut_csv)):
        path = os.path.join(trial_dir, name)
        if not os.path.exists(path) or (clean is not None and clean(path, iteration)):
            continue
        data = content(path)
        keep = cut(data, iteration)
        if keep < len(data):
            os.truncate(path, keep)
        elif keep > len(data):  # a whole last row that lacks only its line end
            with open(path, "ab") as file:
                file.write(b"\n")


def last_iteration(path: str) -> int | None:
    """Returns the iteration of the last row of a result.json or progress.csv; None when no row has one."""
    data = content(path)
    if path.endswith(".csv"):
        records = records_of(data)
        return _csv_iteration(records[-1], _column(records)) if len(records) > 1 else None
    lines = data.splitlines()
    return _json_iteration(lines[-1]) if lines else None


def iteration_of(row: Row) -> int:
    """Returns the iteration of a result; 0 when the result has none."""
    return _number(row.get(ITERATION)) or 0


def rows_beyond(path: str, rows: Sequence[Row]) -> list[Row]:
    """Returns those of a trial's rows that a repaired file does not have yet."""
    last = last_iteration(path) or 0
    return [row for row in rows if iteration_of(row) > last]


def csv_columns(path: str) -> list[str]:
    """Returns the header of an existing progress.csv; [] when there is none."""
    records = records_of(content(path))
    return fields_of(records[0]) if records and is_whole(records[0]) else []


def _json_is_clean(path: str, iteration: int | None) -> bool:
    """Returns whether the end of a large file shows that nothing needs to be cut."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
    if not tail:
        return True
    lines = tail.splitlines()
    if not tail.endswith(b"\n") or (len(lines) == 1 and size > _TAIL):
        return False
    last = _json_iteration(lines[-1])
    return iteration is None or (last is not None and last <= iteration)


def _cut_json(data: bytes, iteration: int | None) -> int:
    lines = data.split(b"\n")
    torn = lines.pop()
    keep = len(data) - len(torn)
    if torn and _parsed(torn) is not None:
        found = _json_iteration(torn)
        if iteration is None or found is None or found <= iteration:
            return len(data) + 1
    while lines and iteration is not None:
        row = _parsed(lines[-1])
        if row is not None and iteration_of(row) <= iteration:
            break
        keep -= len(lines.pop()) + 1
    return keep


def _cut_csv(data: bytes, iteration: int | None) -> int:
    records = records_of(data)
    keep = len(data)
    if records and not is_whole(records[-1]):
        keep -= len(records.pop())
    column = _column(records)
    while len(records) > 1 and iteration is not None and column is not None:
        if (_csv_iteration(records[-1], column) or 0) <= iteration:
            break
        keep -= len(records.pop())
    return keep


def _column(records: Sequence[bytes]) -> int | None:
    header = fields_of(records[0]) if records else []
    return header.index(ITERATION) if ITERATION in header else None


def _csv_iteration(record: bytes, column: int | None) -> int | None:
    fields = fields_of(record)
    return _number(fields[column]) if column is not None and column < len(fields) else None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _json_iteration(line: bytes) -> int | None:
    return _number((_parsed(line) or {}).get(ITERATION))


def _number(value: Any) -> int | None:  # noqa: ANN401 - as read from a file
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def cut_repeated_rows(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """Cuts repeated rows from the end of a result.json without a torn end; OSError when that fails."""
    lines = content(path).splitlines(keepends=True)
    latest = lines[max(0, len(lines) - len(rows)) :]
    # The same row may be spelled in two ways, with and without spaces: the values are compared.
    count = _common(
        [_normalised(line) for line in latest], [_normalised(line) for line in _encoded(encode, rows)]
    )
    _cut(path, lines, count)


def cut_repeated_records(path: str, table: Table, rows: Sequence[Flat]) -> None:
    """Cuts repeated records from the end of a progress.csv with the columns of `table`."""
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
    """Returns how many items at the end of `have` are the first of `rows`."""
    for count in range(min(len(have), len(rows)), 0, -1):
        if have[-count] == rows[0] and list(have[-count:]) == list(rows[:count]):
            return count
    return 0


def _cut(path: str, lines: Sequence[bytes], count: int) -> None:
    if count:
        os.truncate(path, sum(map(len, lines[:-count])))

"""Rows that a writer had begun to write when it ended, and that another will write again: cut off by content.

Iterations do not tell: a trial that goes on from another's checkpoint repeats its own. Called by TrialLog.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from muster.tune.logger.files.csv_rows import Flat, Table, records_of
from muster.tune.logger.files.files import content
from muster.tune.logger.files.json_rows import encode


def cut_repeated_rows(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """From the end of a result.json without a torn end. OSError when it cannot be cut."""
    lines = content(path).splitlines(keepends=True)
    latest = lines[max(0, len(lines) - len(rows)) :]
    # The same row may be spelled in two ways, with and without spaces: what it says is compared.
    count = _common([_said(line) for line in latest], [_said(line) for line in _encoded(rows)])
    _cut(path, lines, count)


def cut_repeated_records(path: str, table: Table, rows: Sequence[Flat]) -> None:
    """The same for a progress.csv with the columns of `table`."""
    records = records_of(content(path))
    expected = []
    for row in rows:
        try:
            expected.append(table.encode([row]))
        except Exception:  # noqa: BLE001 - a row that cannot be written is not there either
            continue
    _cut(path, records, _common(records[1:], expected))


def _encoded(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    found = []
    for row in rows:
        try:
            found.append(encode(row))
        except Exception:  # noqa: BLE001 - a row that cannot be written is not there either
            continue
    return found


def _said(line: bytes) -> str:
    try:
        return json.dumps(json.loads(line))
    except ValueError:
        return ""


def _common(have: Sequence[Any], rows: Sequence[Any]) -> int:
    """How many at the end of `have` are the first of `rows`."""
    for count in range(min(len(have), len(rows)), 0, -1):
        if have[-count] == rows[0] and list(have[-count:]) == list(rows[:count]):
            return count
    return 0


def _cut(path: str, lines: Sequence[bytes], count: int) -> None:
    if count:
        os.truncate(path, sum(map(len, lines[:-count])))

"""Lay rows out as text that fits the terminal, and writes them to files.

Left-out columns and shortened cells are noted. The lines are plain strings, not rich tables, because a rich
table of 20,000 trials takes many seconds.
"""

from __future__ import annotations

import csv
import importlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from muster.base.text import duration, encodable, moment, padded
from muster.base.text import shortened as shorten
from muster.cli.tune.columns import CONFIG, DURATIONS, HEADINGS, RESULT, TIMES, TIMES_SHORT
from muster.errors import ConfigError, MusterError
from muster.host.atomic_write import replacing
from muster.trials.metrics import flatten
from muster.tune.analysis.tables import need_pandas, number

GAP = 2
WIDEST = 28  # of a cell at least, while there are other columns; of the first one, a name, more
STYLES = {
    "RUNNING": "36",
    "PENDING": "2",
    "PAUSED": "33",
    "INTERRUPTED": "33",
    "TERMINATED": "32",
    "ERROR": "31",
    "running": "36",
    "interrupted": "33",
    "unfinished": "33",
    "finished": "32",
    "unreadable": "31",
}


class TableLayout(NamedTuple):
    """A table, and what had to be left out of it."""

    lines: tuple[str, ...]
    left_out: tuple[str, ...]  # columns
    shortened: bool


def page_size() -> tuple[int, int]:
    """Return columns and lines of the terminal; 80 x 24 when they are unknown."""
    size = shutil.get_terminal_size((80, 24))
    return size.columns, size.lines


def lay_out(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int, *, colour: bool
) -> TableLayout:
    """Return a table of as many columns as fit, from the left."""
    headings = headings_of(columns)
    widest = [
        width if len(columns) == 1 else max(WIDEST, width // 2),
        *[max(WIDEST, width // 5)] * len(columns),
    ]
    table = [[cell(name, row.get(name)) for row in rows] for name in columns]
    sizes = [
        min(max(len(heading), *map(len, cells), 1), max(most, len(heading)))
        for heading, cells, most in zip(headings, table, widest, strict=False)
    ]
    fitting = _fitting(sizes, width)
    is_number = [
        any(number(row.get(name)) is not None for row in rows) and name not in TIMES | TIMES_SHORT
        for name in columns
    ]
    coloured = next((at for at, name in enumerate(columns) if colour and name in ("status", "state")), -1)
    lines = [_line(headings[:fitting], sizes, is_number)]
    lines += [_line(cells, sizes, is_number, coloured) for cells in zip(*table[:fitting], strict=True)]
    shortened = any(
        len(each) > size for size, cells in zip(sizes[:fitting], table, strict=False) for each in cells
    )
    return TableLayout(tuple(lines), tuple(columns[fitting:]), shortened)


def notes(layout: TableLayout) -> Iterator[str]:
    """Yield what the table does not show, one sentence each."""
    if layout.left_out:
        shown = ", ".join(layout.left_out[:4]) + (", ..." if len(layout.left_out) > 4 else "")
        count = len(layout.left_out)
        yield (
            f"{count} column{'s do' if count > 1 else ' does'} not fit: {shown}. "
            "--columns chooses, --json has all."
        )
    if layout.shortened:
        yield "Long values are shortened (…); --json has them whole."


def headings_of(columns: Sequence[str]) -> list[str]:
    """Return short headings: `config/lr` is `lr`, unless another column has that name."""
    taken = {HEADINGS.get(name, name) for name in columns if not name.startswith(CONFIG)}
    pairs = [(name, name.removeprefix(CONFIG).removeprefix(RESULT)) for name in columns]
    return [
        short if short != name and short not in taken else HEADINGS.get(name, name) for name, short in pairs
    ]


def cell(name: str, value: Any) -> str:  # noqa: ANN401 - a user's value
    """Return a value as text for a column."""
    if value is None:
        return "-"
    if name in TIMES and (at := number(value)) is not None:
        return moment(at)
    if name in TIMES_SHORT and (at := number(value)) is not None:
        return moment(at)[:-3]
    if name in DURATIONS and (seconds := number(value)) is not None:
        return duration(seconds)
    if isinstance(value, float):
        return f"{value:.5g}"
    return " ".join(str(value).split()) if isinstance(value, str) else str(value)


def painted(text: str, key: str, *, colour: bool) -> str:
    """Return the text in the colour of a status."""
    return f"\x1b[{STYLES[key]}m{text}\x1b[0m" if colour and key in STYLES else text


def _fitting(sizes: Sequence[int], width: int) -> int:
    """Return how many columns fit; the first always does."""
    used = 0
    for position, size in enumerate(sizes):
        used += size + (GAP if position else 0)
        if used > width and position:
            return position
    return len(sizes)


def _line(cells: Sequence[str], sizes: Sequence[int], right: Sequence[bool], coloured: int = -1) -> str:
    short = [
        text if len(text) <= size else shorten(text, size) for text, size in zip(cells, sizes, strict=False)
    ]
    parts = padded(short, sizes, right)
    if 0 <= coloured < len(parts):
        parts[coloured] = painted(parts[coloured], cells[coloured], colour=True)
    return (" " * GAP).join(parts).rstrip()


def not_data(config: Mapping[str, Any], *, for_json: bool = False) -> list[str]:
    """Return the keys whose values cannot be pasted: objects of the user's program; NaN, in JSON."""
    return [key for key, value in flatten(dict(config)).items() if not _is_data(value, for_json)]


def _is_data(value: object, for_json: bool) -> bool:
    if isinstance(value, float) and for_json:
        return math.isfinite(value)
    if isinstance(value, list | tuple):
        return all(_is_data(each, for_json) for each in value)
    if isinstance(value, dict):
        return all(_is_data(each, for_json) for each in value.values())
    return value is None or isinstance(value, bool | int | float | str)


def plain(value: Any) -> Any:  # noqa: ANN401 - a user's value
    """Return what JSON and YAML can hold: NaN and infinities as they are, objects as text."""
    if isinstance(value, Mapping):
        return {encodable(str(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return encodable(value if isinstance(value, str) else repr(value))


def strict_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON that every reader accepts: NaN and infinities become null."""
    return json.dumps(_finite(plain(value)), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Rows = Sequence[Mapping[str, Any]]


def check_name(file: Path) -> None:
    """Raise ConfigError for a file whose format cannot be written, before any work is done."""
    if file.suffix not in _WRITERS:
        kinds = ", ".join(_WRITERS)
        raise ConfigError(f"-o {file}: unknown format", fix=f"the name must end in one of {kinds}")
    if file.suffix in _NEED_PANDAS:
        need_pandas(f"-o {file}")
    if file.suffix == ".parquet":
        _need_pyarrow(file)


def write_rows(rows: Rows, columns: Sequence[str], file: Path) -> None:
    """Replace the file. Raises MusterError when it cannot be written."""
    check_name(file)
    try:
        with replacing(file) as draft:
            _WRITERS[file.suffix](rows, columns, Path(draft))
    except OSError as error:
        raise MusterError(f"{file}: cannot be written: {error.strerror or error}") from error


def all_columns(rows: Iterable[Mapping[str, Any]], first: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the columns of `first` that exist, then all others in the order of the rows."""
    names = dict.fromkeys(chain.from_iterable(rows))
    return (*(name for name in first if name in names), *(name for name in names if name not in first))


def _as_csv(rows: Rows, columns: Sequence[str], file: Path) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(map(encodable, map(str, columns)))
        for row in rows:
            cells = [row.get(name) for name in columns]
            nested = (list, tuple, dict)
            writer.writerow(
                [strict_json(each) if isinstance(each, nested) else plain(each) for each in cells]
            )


def _as_json(rows: Rows, columns: Sequence[str], file: Path) -> None:
    lines = (strict_json({name: row.get(name) for name in columns}) for row in rows)
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _as_json_lines(rows: Rows, columns: Sequence[str], file: Path) -> None:
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{strict_json({name: row.get(name) for name in columns})}\n" for row in rows)


def _as_parquet(rows: Rows, columns: Sequence[str], file: Path) -> None:
    _need_pyarrow(file)
    frame = _frame(rows, columns)
    for name in frame.columns:
        kinds = {type(value) for value in frame[name].dropna()}
        if len(kinds) > 1 and not kinds <= {int, float}:  # Parquet wants one type per column
            frame[name] = [None if value is None else str(value) for value in frame[name]]
    frame.to_parquet(file)


def _as_pickle(rows: Rows, columns: Sequence[str], file: Path) -> None:
    _frame(rows, columns).to_pickle(file)


def _frame(rows: Rows, columns: Sequence[str]) -> Any:  # noqa: ANN401 - pandas is not always there
    pandas = need_pandas("export")
    return pandas.DataFrame(
        {encodable(str(name)): [plain(row.get(name)) for row in rows] for name in columns}
    )


def _need_pyarrow(file: Path) -> None:
    try:
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            f'-o {file}: Parquet needs pyarrow, which is not installed: pip install "muster-ml[parquet]", '
            "or write .csv or .jsonl"
        ) from error


_NEED_PANDAS = (".parquet", ".pkl", ".p", ".pickle")
_WRITERS: dict[str, Callable[[Rows, Sequence[str], Path], None]] = {
    ".csv": _as_csv,
    ".json": _as_json,
    ".jsonl": _as_json_lines,
    ".parquet": _as_parquet,
    ".pkl": _as_pickle,
    ".p": _as_pickle,
    ".pickle": _as_pickle,
}

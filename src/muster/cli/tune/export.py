"""`muster tune export` and `ls --output`: rows to a CSV, JSON, JSON lines, Parquet or pickle file.

The file appears whole or not at all.
"""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.cli.tune.columns import trial_row
from muster.cli.tune.experiment import Experiment
from muster.cli.tune.table import plain, strict_json
from muster.errors import ConfigError, MusterError
from muster.tune.analysis.tables import Row, flat_row, need_pandas

Rows = Sequence[Mapping[str, Any]]


def check_name(file: Path) -> None:
    """ConfigError before any work is done."""
    if file.suffix not in _WRITERS:
        kinds = ", ".join(_WRITERS)
        raise ConfigError(f"-o {file}: cannot tell the format; the name must end in one of {kinds}")
    if file.suffix in _NEED_PANDAS:
        need_pandas(f"-o {file}")
    if file.suffix == ".parquet":
        _need_pyarrow(file)


def write_rows(rows: Rows, columns: Sequence[str], file: Path) -> None:
    """Replace the file; MusterError when it cannot be written."""
    check_name(file)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _WRITERS[file.suffix](rows, columns, draft)
        os.replace(draft, file)
    except OSError as error:
        raise MusterError(f"{file}: cannot be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def trial_rows(experiment: Experiment) -> list[Row]:
    """One per trial: its last result, its config and what became of it."""
    return [trial_row(trial, experiment.trial_path(trial)) for trial in experiment.trials]


def result_rows(experiment: Experiment, unread: list[str]) -> Iterator[Row]:
    """One per result that was logged; trials whose log cannot be read are named in `unread`."""
    from muster.tune.analysis.result_files import TrialFolder

    for trial in experiment.trials:
        try:
            logged = TrialFolder(experiment.trial_path(trial), experiment.filesystem).rows()
        except (FileNotFoundError, ValueError) as error:
            if trial.reports:
                unread.append(f"{trial.trial_id}: {error}")
            continue
        for row in logged:
            own = {key: value for key, value in row.items() if key != "config"}
            yield {"trial_id": trial.trial_id, **flat_row(own), **flat_row({"config": dict(trial.config)})}


def all_columns(rows: Iterable[Mapping[str, Any]], first: Sequence[str] = ()) -> tuple[str, ...]:
    """Those wanted first, then the others as they come."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return (*(name for name in first if name in names), *(name for name in names if name not in first))


def _as_csv(rows: Rows, columns: Sequence[str], file: Path) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows([_csv_cell(row.get(name)) for name in columns] for row in rows)


def _csv_cell(value: Any) -> Any:  # noqa: ANN401 - a user's value
    return strict_json(value) if isinstance(value, list | tuple | dict) else plain(value)


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
    return pandas.DataFrame({name: [plain(row.get(name)) for row in rows] for name in columns})


def _need_pyarrow(file: Path) -> None:
    try:
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            f'-o {file}: Parquet needs pyarrow, which is not installed: pip install "muster[parquet]", '
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

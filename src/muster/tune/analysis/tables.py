"""Rows of results as tables: flat columns in Ray Tune's order, pandas only when somebody wants a frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from muster.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]


def need_pandas(what: str) -> ModuleType:
    """The module; ConfigError that names the extra when it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            f'{what} gives a pandas DataFrame, and pandas is not installed: pip install "muster[pandas]"'
        ) from error
    return pandas


def flat_row(row: Mapping[str, Any], delimiter: str = "/") -> Row:
    """Flat keys: what was flat first, then the nested ones (`config/lr`).

    Example:
        >>> flat_row({"config": {"lr": 1}, "loss": 2, "empty": {}})
        {'loss': 2, 'config/lr': 1}
    """
    plain = {key: value for key, value in row.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in row.items() if isinstance(value, dict)}
    return {**plain, **dict(_leaves(nested, delimiter))}


def _leaves(nested: Mapping[str, Any], delimiter: str) -> Iterator[tuple[str, Any]]:
    """In the order in which they are written, whatever their depth; an empty dict has none."""
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from ((f"{key}{delimiter}{inner}", leaf) for inner, leaf in _leaves(value, delimiter))
        else:
            yield key, value


def frame(rows: Iterable[Mapping[str, Any]], what: str) -> pd.DataFrame:
    """One line per row; `what` is named when pandas is missing."""
    made: pd.DataFrame = need_pandas(what).DataFrame([flat_row(row) for row in rows])
    return made

"""Make tables of results: flat columns in Ray Tune's order; pandas only when a frame is requested."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from muster.errors import ConfigError
from muster.trials.metrics import flatten, number_of
from muster.tune.pareto import several_objectives

if TYPE_CHECKING:
    import pandas as pd


Row = dict[str, Any]


def need_pandas(what: str) -> ModuleType:
    """Return the module; ConfigError that names the extra when it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            f'{what} gives a pandas DataFrame, and pandas is not installed: pip install "muster-ml[pandas]"'
        ) from error
    return pandas


def flat_row(row: Mapping[str, Any], delimiter: str = "/") -> Row:
    """Return flat keys: first the flat ones, then the nested ones (`config/lr`), without empty dicts.

    Example:
        >>> flat_row({"config": {"lr": 1}, "loss": 2, "empty": {}})
        {'loss': 2, 'config/lr': 1}
    """
    return {key: value for key, value in flatten(row, delimiter).items() if not isinstance(value, dict)}


def frame(rows: Iterable[Mapping[str, Any]], what: str) -> pd.DataFrame:
    """Return one line per row; `what` is named when pandas is missing."""
    made: pd.DataFrame = need_pandas(what).DataFrame([flat_row(row) for row in rows])
    return made


MODES = ("min", "max")
SCOPES = ("all", "last", "avg", "last-5-avg", "last-10-avg")

number = number_of
_Thing = TypeVar("_Thing")


def check_mode(mode: object, where: str) -> None:
    """Raise a ValueError that names the place."""
    if mode not in MODES:
        raise ValueError(f"{where}: mode={mode!r} must be 'min' or 'max'")


def no_single_best(metrics: object, modes: object) -> str:
    """Return why an experiment with several objectives has no best trial, and what has; "" for one."""
    goals = several_objectives((metrics, modes))
    if not goals:
        return ""
    what, (metric, mode) = (
        f"the experiment has {len(goals)} metrics ({', '.join(goals)})",
        next(iter(goals.items())),
    )
    return f"{what}: name one, get_best_result({metric!r}, {mode!r}), or use get_pareto_front()"


def is_better(value: float, than: float, mode: str) -> bool:
    return value > than if mode == "max" else value < than


def best_scored(
    candidates: Sequence[tuple[_Thing, Mapping[str, Any]]], metric: str, mode: str
) -> _Thing | None:
    """Return the one with the best value of a flat metric, the first of equal ones, without NaN."""
    best: tuple[float, _Thing] | None = None
    for thing, metrics in candidates:
        value = number(metrics[metric] if metric in metrics else flatten(metrics).get(metric))
        if value is None or math.isnan(value):
            continue
        if best is None or is_better(value, best[0], mode):
            best = (value, thing)
    return None if best is None else best[1]

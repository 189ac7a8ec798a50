"""Formats a trial's values: its experiment tag and the name of its directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from muster.trials.model import Trial
from muster.tune.search.paths import Path, sort_key

_OUTSIDE_TAG = re.compile(r"[^A-Za-z0-9_-]+")
_OUTSIDE_DIRNAME = re.compile(r'[/()<>:"\\|?*]')


def clean_value(value: Any) -> str:  # noqa: ANN401 - anything a configuration holds
    if isinstance(value, float):
        return f"{value:.4f}"
    return _OUTSIDE_TAG.sub("_", str(value)).strip("_")


def format_vars(resolved_vars: Mapping[Path, Any]) -> str:
    """Returns `k=v` pairs sorted by path; only the last part of a path is shown.

    Example:
        >>> format_vars({("a c?x",): " <;%$ok ", ("opt", "lr"): 0.5})
        'a_c_x=ok,lr=0.5000'
    """
    paths = sorted(resolved_vars, key=sort_key)  # that of a grid of whole configs is empty
    named = ((path[-1] if path else "config", resolved_vars[path]) for path in paths)
    return ",".join(f"{clean_value(name)}={clean_value(value)}" for name, value in named)


def trial_dirname(trial: Trial, date: str, max_len: int = 130) -> str:
    """Returns the name of a trial's directory; `date` is `%Y-%m-%d_%H-%M-%S`."""
    if trial.custom_dirname:
        name = trial.custom_dirname
    else:
        name = f"{trial!s}_{trial.experiment_tag}"[:max_len] + f"_{date}"
    name = _OUTSIDE_DIRNAME.sub("_", name)
    return name if name.strip(".") else name.replace(".", "_")  # `..` would be the directory above


def unique_dirname(name: str, is_taken: Callable[[str], bool], four_hex_digits: Callable[[], str]) -> str:
    """Returns `name`, with `_` and four digits added when there is such a directory already."""
    while is_taken(name):
        name = f"{name}_{four_hex_digits()}"
    return name

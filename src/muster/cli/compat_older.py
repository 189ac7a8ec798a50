"""A separate layer of compat: change forms of older versions of Ray Tune in the text of a script."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from muster.tune.older import ADVICE, today

Range = tuple[int, int]
_GETTERS = ("get_trial_dir", "get_trial_id", "get_trial_name", "get_trial_resources")
_RENAMED = {"local_dir": "storage_path"}
_MOVED = {"suggest": "search", "sample": "search.sample"}  # attributes of tune


def todays_module(module: str) -> str:
    """Return where the content of one of muster's older modules is now; the module itself when it is not one.

    Example:
        >>> todays_module("muster.tune.suggest.optuna")
        'muster.tune.search.optuna'
    """
    home = today(module)
    return module if not home or home == "muster.tune.older" else home


def call_edits(
    call: ast.Call, name: str, range_of: Callable[[ast.expr], Range], start_of: Callable[[ast.keyword], int]
) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, text) that turn `report(a=1)` into `report({"a": 1})`, and rename arguments."""
    names = {each.arg for each in call.keywords}
    if name == "report" and names and not call.args and not names & {"checkpoint", "metrics"}:
        yield (start_of(call.keywords[0]), start_of(call.keywords[0]), "{")
        yield (range_of(call)[1] - 1, range_of(call)[1] - 1, "}")
        for each in call.keywords:
            if each.arg is not None:
                start = start_of(each)
                yield start, start + len(each.arg) + 1, f'"{each.arg}": '
        return
    for each in call.keywords:
        if each.arg in _RENAMED:
            start = start_of(each)
            yield start, start + len(each.arg), _RENAMED[each.arg]


def chain_edits(node: ast.Attribute, dotted: str, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield edits of one attribute: `tune.get_trial_id`, `tune.suggest`, `tune.sample`."""
    place = re.sub(r"^(ray|muster)\.", "", dotted)
    if node.attr in _GETTERS and place == f"tune.{node.attr}":
        yield end - len(node.attr), end - len(node.attr), "get_context()."
    elif place in ("tune.suggest", "tune.sample"):
        yield end - len(node.attr), end, _MOVED[node.attr]


def older_advice(dotted: str) -> str:
    """Return today's form of a name that works with a warning, and that `--write` does not change."""
    name = re.sub(r"^(ray|muster)\.", "", dotted)
    if name.endswith("Checkpoint.from_dict"):
        return "write files and use Checkpoint.from_directory(path)"
    return ADVICE.get(name, "")

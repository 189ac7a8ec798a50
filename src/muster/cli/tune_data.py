"""Users' values in formats that others read: JSON, YAML, CSV. What is no data becomes a text, and is told."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from muster.trials.results import flatten


def not_data(config: Mapping[str, Any], *, for_json: bool = False) -> list[str]:
    """Keys whose values cannot be pasted: objects of the experiment's program; NaN, in JSON."""
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
    """What JSON and YAML can hold: NaN and infinities as they are, objects as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def strict_json(value: object, *, indent: int | None = None) -> str:
    """JSON that every reader accepts: NaN and infinities become null."""
    return json.dumps(_finite(plain(value)), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

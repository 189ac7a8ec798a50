"""Values of configs and results as trackers take them. Pure; does not import numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_number(value: object) -> bool:
    """Python's numbers and numpy's."""
    if isinstance(value, (int, float)):
        return True
    kind = getattr(getattr(value, "dtype", None), "kind", "?")
    return kind in "iufb" and getattr(value, "shape", None) == ()


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON data
    """Numbers, text and containers of them; anything else as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return value.item() if is_number(value) and hasattr(value, "item") else str(value)


def step_of(result: Mapping[str, Any]) -> int:
    """Environment steps when they are counted, else iterations: as in Ray's loggers."""
    return int(result.get("timesteps_total") or result.get("training_iteration") or 0)

"""Define the decorators with which libraries mark functions as Ray marks its own; they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def _mark(*args: Any, **_: Any) -> Any:  # noqa: ANN401 - a decorator with or without options
    return args[0] if len(args) == 1 and callable(args[0]) else lambda thing: thing


PublicAPI: Callable[..., Any] = _mark
DeveloperAPI: Callable[..., Any] = _mark
Deprecated: Callable[..., Any] = _mark


class RayDeprecationWarning(DeprecationWarning):
    """Warning of Ray about a name that will go."""

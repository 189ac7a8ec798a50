"""Ray's import path of the registry of trainables and environments."""

from __future__ import annotations

from typing import Any

from muster.tune.trainable.function_trainable import is_function_trainable as _is_function
from muster.tune.trainable.registry import (
    get_trainable,
    is_registered,
    register_env,
    register_trainable,
)

__all__ = [
    "get_trainable_cls",
    "is_function_trainable",
    "register_env",
    "register_trainable",
    "validate_trainable",
]


def get_trainable_cls(trainable_name: str) -> Any:  # noqa: ANN401 - function or class, as registered
    """The trainable of this name; TuneError when there is none. A function is returned as it is."""
    return get_trainable(trainable_name)


def validate_trainable(trainable_name: str) -> None:
    """TuneError when no trainable has this name."""
    get_trainable(trainable_name)


def is_function_trainable(trainable: Any) -> bool:  # noqa: ANN401 - a name will do, too
    """Whether it is a function and not a class; a name stands for what is registered under it."""
    if isinstance(trainable, str):
        return is_registered(trainable) and _is_function(get_trainable(trainable))
    return _is_function(trainable)

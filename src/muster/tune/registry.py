"""Register trainables and environments by name, at Ray's import path."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from muster.errors import TuneError, public
from muster.tune.trainable.function_trainable import checked_trainable
from muster.tune.trainable.function_trainable import is_function_trainable as _is_function

logger = logging.getLogger(__name__)

_trainables: dict[str, Any] = {}
_environments: dict[str, Callable[..., Any]] = {}


@public
def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:  # noqa: ANN401 - function or class
    """Register a trainable by a name; a later one of the same name replaces it.

    Raises TypeError when it is neither a function nor a subclass of Trainable, ValueError when the function
    does not take exactly one argument.

    Args:
        name: The name.
        trainable: A function or a Trainable class.
        warn: Accepted for Ray's signature.

    Example:
        >>> register_trainable("square", lambda config: {"y": config["x"] ** 2})
        >>> get_trainable("square")({"x": 3})
        {'y': 9}
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"register_trainable: the name must be a text, not {name!r}")
    checked = checked_trainable(trainable)
    if warn and name in _trainables and _trainables[name] is not checked:
        logger.debug("trainable %s is replaced", name)
    _trainables[name] = checked


def get_trainable(name: str) -> Any:  # noqa: ANN401
    """Return the trainable of this name; TuneError when there is none."""
    return _registered(_trainables, name, "trainable", "register_trainable")


def _registered(table: dict[str, Any], name: str, kind: str, register: str) -> Any:  # noqa: ANN401
    if name not in table:
        known = ", ".join(sorted(table)) or "none"
        raise TuneError(
            f"Unknown {kind}: {name}. Call tune.{register}({name!r}, ...) first. Registered: {known}"
        )
    return table[name]


def is_registered(name: str) -> bool:
    return name in _trainables


@public
def register_env(name: str, env_creator: Callable[..., Any]) -> None:
    """Register the constructor of an environment by a name.

    Args:
        name: The name.
        env_creator: Takes a config and returns an environment.
    """
    if not callable(env_creator):
        raise TypeError(f"register_env: {env_creator!r} for {name!r} must be a function of the env's config")
    _environments[name] = env_creator


def get_env(name: str) -> Callable[..., Any]:
    """Return the environment of this name; TuneError when there is none."""
    creator: Callable[..., Any] = _registered(_environments, name, "environment", "register_env")
    return creator


__all__ = [
    "get_trainable_cls",
    "is_function_trainable",
    "register_env",
    "register_trainable",
    "validate_trainable",
]


def get_trainable_cls(trainable_name: str) -> Any:  # noqa: ANN401 - function or class, as registered
    """Return the trainable of this name as it is, also a function; TuneError when there is none."""
    return get_trainable(trainable_name)


def validate_trainable(trainable_name: str) -> None:
    """Raise TuneError when no trainable has this name."""
    get_trainable(trainable_name)


def is_function_trainable(trainable: Any) -> bool:  # noqa: ANN401 - a name will do, too
    """Return whether a trainable is a function; a name stands for what is registered under it."""
    if isinstance(trainable, str):
        return is_registered(trainable) and _is_function(get_trainable(trainable))
    return _is_function(trainable)

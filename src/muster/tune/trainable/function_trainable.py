"""Checks function trainables: whether they take exactly one argument, the config; exports wrap_function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from muster.base.foreign import rays_own
from muster.base.lazy import lazy_names

# Ray's place for them; a function as it is needs neither.
__getattr__ = lazy_names(
    __name__, {"muster.tune.trainable.wrapped_function": ["FunctionTrainable", "wrap_function"]}
)[0]

_NAMELESS = "DEFAULT"


def is_trainable_class(trainable: object) -> bool:
    if not inspect.isclass(trainable):
        return False
    from muster.tune.trainable.trainable import Trainable  # a function does not need it

    return issubclass(trainable, Trainable)


def is_function_trainable(trainable: object) -> bool:
    """Returns whether this is a function, or another callable that takes a config and is no class."""
    return callable(trainable) and not inspect.isclass(trainable)


def checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function; ValueError when it cannot be called with one positional argument."""
    try:
        accepted = inspect.signature(function)
    except (TypeError, ValueError):
        return function  # a builtin without a signature
    try:
        accepted.bind({})
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ValueError(
            f"{name}{accepted} cannot be a trainable ({error}): it is called with the config as the only "
            "argument; give the others defaults, or pass them with tune.with_parameters"
        ) from None
    return function


def checked_trainable(trainable: Any) -> Any:  # noqa: ANN401 - function or class, as given
    """Returns a class or function that can be run; TypeError when it is neither."""
    if inspect.isclass(trainable) and "_wrapped_function" in vars(trainable):
        return trainable._wrapped_function  # type: ignore[attr-defined]  # wrap_function made the class
    if is_trainable_class(trainable):
        try:
            inspect.signature(trainable).bind(config={})
        except TypeError:
            name = trainable.__name__
            raise ValueError(f"{name}(config=...) fails: write setup(self, config), not __init__") from None
        return trainable
    if is_function_trainable(trainable):
        return checked_function(trainable)
    if theirs := rays_own(trainable):
        raise TypeError(f"a trainable: {theirs}")
    what = f"the class {trainable.__name__}" if inspect.isclass(trainable) else repr(trainable)
    raise TypeError(
        f"{what} cannot be a trainable: pass a function of the config, or a subclass of tune.Trainable"
    )


def trainable_name(trainable: object) -> str:
    """Returns the name of a trainable, which its trials carry too.

    Example:
        >>> trainable_name("registered"), trainable_name(lambda config: None), trainable_name(partial(len))
        ('registered', 'lambda', 'len')
    """
    if isinstance(trainable, str):
        return trainable
    for attribute in ("_name", "__name__"):
        name = getattr(trainable, attribute, None)
        if isinstance(name, str) and name:
            return _plain(name)
    if isinstance(trainable, partial):
        return trainable_name(trainable.func)
    return _NAMELESS


def _plain(name: str) -> str:
    if name == "<lambda>":
        return "lambda"
    return _NAMELESS if name.startswith("<") else name

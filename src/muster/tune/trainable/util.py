"""Ray's import path of with_parameters and with_resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from muster.tune.trainable.function_trainable import is_trainable_class
from muster.tune.trainable.large_objects import Spooled
from muster.tune.trainable.registry import trainable_name
from muster.tune.trainable.resources import with_resources
from muster.tune.trainable.wrapping import innermost, wrapped_function


class Parameters:
    """Keyword arguments that are fetched where they are used."""

    __slots__ = ("_spooled",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._spooled = {name: Spooled(value, name) for name, value in values.items()}

    def load(self) -> dict[str, Any]:
        return {name: spooled.load() for name, spooled in self._spooled.items()}


def with_parameters(trainable: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - function or class, as given
    """A trainable that is given `kwargs` in every trial, however large they are.

    A function gets them as keyword arguments, a class in `setup(config, **kwargs)`. They are written once, to
    a file that all trials on this machine share; the given trainable stays as it is.

    Example:
        >>> def train(config, data):
        ...     return {"total": config["scale"] * sum(data)}
        >>> with_parameters(train, data=[1, 2, 3])({"scale": 2})
        {'total': 12}
    """
    is_class = inspect.isclass(trainable)
    if not callable(trainable) or (is_class and not is_trainable_class(trainable)):
        raise ValueError(
            f"with_parameters: needs a function or a subclass of tune.Trainable, not {trainable!r}"
        )
    _check_names(trainable, kwargs)
    parameters = Parameters(kwargs)
    return (
        _class_with_parameters(trainable, parameters)
        if is_class
        else _function_with_parameters(trainable, parameters)
    )


def _function_with_parameters(function: Callable[..., Any], parameters: Parameters) -> Callable[..., Any]:
    def inner(config: Any, **more: Any) -> Any:  # noqa: ANN401
        return function(config, **parameters.load(), **more)

    return wrapped_function(inner, function)


def _class_with_parameters(kind: Any, parameters: Parameters) -> type:  # noqa: ANN401
    class Inner(kind):  # type: ignore[misc]  # a base that is known only now
        def setup(self, config: dict[str, Any], **more: Any) -> None:  # noqa: ANN401
            super().setup(config, **parameters.load(), **more)

    Inner.__name__ = trainable_name(kind)
    Inner.__doc__ = kind.__doc__
    return Inner


def _check_names(trainable: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
    """ValueError now, instead of a TypeError in every trial."""
    target: Any = innermost(trainable)
    is_class = inspect.isclass(target)
    try:
        accepted = inspect.signature(target.setup if is_class else target)
        accepted.bind_partial(*(None,) * (1 + is_class), **kwargs)
    except TypeError as error:
        what = "setup" if is_class else trainable_name(target)
        raise ValueError(
            f"with_parameters: {error}; {what}{accepted} must have a parameter for each of "
            f"{', '.join(kwargs)}"
        ) from None
    except ValueError:
        return  # a builtin that does not tell its parameters


__all__ = ["with_parameters", "with_resources"]

"""Check function trainables: whether they take exactly one argument, the config; exports wrap_function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from muster.base import by_value
from muster.base.lazy import lazy_names
from muster.base.untrusted import message_text, ray_object_hint, real_ray, type_text
from muster.errors import TuneError

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
    """Return whether this is a function, or another callable that takes a config and is not a class."""
    return callable(trainable) and not inspect.isclass(trainable)


def checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; ValueError when it cannot be called with one positional argument."""
    from muster.tune.older import for_today

    if adapted := for_today(function):
        from muster.tune.trainable.util import wrapped_function

        function = wrapped_function(adapted, function)
        function._is_for_today = True  # type: ignore[attr-defined]
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
    """Return a class or function that can be run; TypeError when it is neither."""
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
    if theirs := ray_object_hint(trainable):
        raise TypeError(f"a trainable: {theirs}")
    what = f"the class {trainable.__name__}" if inspect.isclass(trainable) else repr(trainable)
    raise TypeError(
        f"{what} cannot be a trainable: pass a function of the config, or a subclass of tune.Trainable"
    )


def trainable_name(trainable: object) -> str:
    """Return the name of a trainable, which its trials carry too.

    Example:
        >>> trainable_name("registered"), trainable_name(lambda config: None), trainable_name(partial(len))
        ('registered', 'lambda', 'len')
    """
    if isinstance(trainable, str):
        return trainable
    for attribute in ("_name", "__name__"):
        name = getattr(trainable, attribute, None)
        if isinstance(name, str) and name:
            nameless = "lambda" if name == "<lambda>" else _NAMELESS
            return nameless if name.startswith("<") else name
    if isinstance(trainable, partial):
        return trainable_name(trainable.func)
    return _NAMELESS


MAX_BYTES = 95 * 1024 * 1024  # Ray's limit; every process of an experiment reads these bytes
_DEPTH = 4


def keep_owners_of_refs() -> None:
    """Let what is pickled hold ObjectRefs, where this process uses Ray."""
    if real_ray() is not None:
        from muster.engines.ray.connect import keep_owners_of_refs

        keep_owners_of_refs()


def packed(trainable: Any) -> bytes:  # noqa: ANN401 - function or class
    """Return the trainable, cloudpickled; TypeError names what cannot be pickled, TuneError the size."""
    keep_owners_of_refs()
    name = trainable_name(trainable)
    try:
        blob = by_value.dumps(trainable)
    except Exception as error:
        found = "; ".join(f"{where}: {what}" for where, what in culprits(trainable)) or message_text(error)
        raise TypeError(
            f"the trainable {name} cannot be sent to another process, because it uses what cannot be "
            f"pickled: {found}. Make it inside of the trainable, or do not refer to it there"
        ) from error
    if len(blob) > MAX_BYTES:
        raise TuneError(
            (
                f"the trainable {name} is too large: {len(blob) / 2**20:.0f} MiB when pickled, at most "
                f"{MAX_BYTES // 2**20} MiB"
            ),
            fix="it captures large objects: pass them with tune.with_parameters",
        )
    return blob


def culprits(value: Any, where: str = "") -> list[tuple[str, str]]:  # noqa: ANN401
    """Return place and description of the innermost objects that cannot be pickled."""
    found: dict[int, tuple[str, str]] = {}
    _search(value, where or trainable_name(value), _DEPTH, found, set())
    return list(found.values())


def _search(value: object, where: str, depth: int, found: dict[int, tuple[str, str]], seen: set[int]) -> bool:
    """Return whether an object cannot be pickled, and notes it unless one of its parts is the cause."""
    if can_be_pickled(value):
        return False
    if id(value) in seen:
        return True
    seen.add(id(value))
    inner = _captured(value) if depth else ()
    bad = [name for name, part in inner if _search(part, f"{where} > {name}", depth - 1, found, seen)]
    if not bad:
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001 - a user's `__repr__`
            text = "it cannot be shown"
        shown = text if len(text) <= 100 else text[:97] + "..."
        found[id(value)] = (where, f"{type_text(value)}: {shown}")
    return True


def can_be_pickled(value: object) -> bool:
    try:
        by_value.dumps(value)
    except Exception:  # noqa: BLE001 - any object may refuse in any way
        return False
    return True


def _captured(value: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401
    """Return what a function, class or object would take along."""
    if inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        yield from variables.nonlocals.items()
        yield from variables.globals.items()
        yield from ((f"default {index}", each) for index, each in enumerate(value.__defaults__ or ()))
    elif inspect.ismethod(value):
        yield "its object", value.__self__
        yield value.__name__, value.__func__
    elif isinstance(value, partial):
        yield "its function", value.func
        yield from ((f"argument {index}", each) for index, each in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, dict):
        yield from ((repr(key), each) for key, each in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"item {index}", each) for index, each in enumerate(value))
    elif inspect.isclass(value):
        yield from ((name, getattr(each, "__func__", each)) for name, each in vars(value).items())
    else:
        yield from getattr(value, "__dict__", {}).items()

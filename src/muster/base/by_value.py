"""Pickle objects of classes that the user's script defines, which other processes cannot import.

Such a class travels by value, under its name. Where `__main__` has a class of that name, it is used: a script
that resumes its experiment, or gets a result back, compares with the classes it knows.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import cache
from pickle import PickleBuffer
from types import FunctionType, ModuleType
from typing import Any

_scripts: list[ModuleType] = []
_made: dict[str, type] = {}  # the script's classes, in a process that does not run the script
_unfilled: list[type] = []  # those whose attributes have not been read yet


def dumps(value: object, keep_out: Callable[[PickleBuffer], bool] | None = None) -> bytes:
    """Return a pickle, without the buffers for which `keep_out` returns False; raises as cloudpickle."""
    stream = io.BytesIO()
    pickler()(stream, protocol=5, buffer_callback=keep_out).dump(value)
    return stream.getvalue()


@cache
def pickler() -> Any:  # noqa: ANN401 - a class of an untyped package
    """Return the class that `dumps` pickles with, which is cloudpickle's otherwise."""
    import cloudpickle  # type: ignore[import-untyped]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401
            reduced = super().reducer_override(obj)
            is_whole_class = isinstance(reduced, tuple) and len(reduced) == 6 and issubclass(type(obj), type)
            name = obj.__qualname__ if is_whole_class and obj.__module__ == "__main__" else ""
            if not name or _known(name) is not obj:
                return reduced
            make, arguments, state, *items, fill = reduced
            return _open_class, (name, make, *arguments), (fill, state), *items, _fill_class

    return Pickler


def adopt(script: ModuleType) -> None:
    """Let a script that was loaded as a module stand for `__main__`."""
    for value in vars(script).values():
        if isinstance(value, type | FunctionType) and value.__module__ == script.__name__:
            value.__module__ = "__main__"
    _scripts.append(script)


def _known(name: str) -> type | None:
    """Return the class of the script that has this name: the script's own, else what a pickle made."""
    for script in (sys.modules.get("__main__"), *_scripts):
        found: Any = script
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and found.__module__ == "__main__":
            return found
    return _made.get(name)


def _open_class(name: str, make: Callable[..., type], *arguments: Any) -> type:  # noqa: ANN401
    found = _known(name)
    if found is None:
        found = _made[name] = make(*arguments)
        _unfilled.append(found)
    return found


def _fill_class(kind: type, state: tuple[Callable[[type, Any], object], Any]) -> None:
    if any(kind is each for each in _unfilled):
        fill, inner = state
        fill(kind, inner)
        _unfilled[:] = [each for each in _unfilled if each is not kind]

"""Pickles a trainable for the engine, and names the captured object when that fails."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from muster.base import by_value
from muster.base.foreign import message_text
from muster.errors import TuneError
from muster.tune.trainable.function_trainable import trainable_name

MAX_BYTES = 95 * 1024 * 1024  # Ray's limit; every process of an experiment reads these bytes
_DEPTH = 4


def keep_owners_of_refs() -> None:
    """Lets what is pickled hold ObjectRefs, where this process uses Ray."""
    if "ray" in sys.modules:
        from muster.engines.ray.connect import keep_owners_of_refs

        keep_owners_of_refs()


def packed(trainable: Any) -> bytes:  # noqa: ANN401 - function or class
    """Returns the trainable, cloudpickled; TypeError names what cannot be pickled, TuneError the size."""
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
            f"the trainable {name} is too large: {len(blob) / 2**20:.0f} MiB when pickled, at most "
            f"{MAX_BYTES // 2**20} MiB; it captures large objects: pass them with tune.with_parameters"
        )
    return blob


def culprits(value: Any, where: str = "") -> list[tuple[str, str]]:  # noqa: ANN401
    """Returns place and description of the innermost objects that cannot be pickled."""
    found: dict[int, tuple[str, str]] = {}
    _search(value, where or trainable_name(value), _DEPTH, found, set())
    return list(found.values())


def _search(value: object, where: str, depth: int, found: dict[int, tuple[str, str]], seen: set[int]) -> bool:
    """Returns whether an object cannot be pickled, and notes it unless one of its parts is the cause."""
    if can_be_pickled(value):
        return False
    if id(value) in seen:
        return True
    seen.add(id(value))
    inner = _captured(value) if depth else ()
    bad = [name for name, part in inner if _search(part, f"{where} > {name}", depth - 1, found, seen)]
    if not bad:
        found[id(value)] = (where, f"a {type(value).__name__}: {_shown(value)}")
    return True


def can_be_pickled(value: object) -> bool:
    try:
        by_value.dumps(value)
    except Exception:  # noqa: BLE001 - any object may refuse in any way
        return False
    return True


def _captured(value: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401
    """Returns what a function, class or object would take along."""
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


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's `__repr__`
        text = "it cannot be shown"
    return text if len(text) <= 100 else text[:97] + "..."

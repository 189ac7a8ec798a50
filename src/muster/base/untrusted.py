"""Call code of others, and show what it returned or raised, whatever that is; knows classes of Ray Tune.

A provider or a client library may raise SystemExit or CancelledError, and its errors and values may fail to
show themselves. None of that may end a loop, or be blamed on somebody else. The ports are called through it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MAX_SHOWN = 100


class ForeignExit(Exception):
    """Stands for a SystemExit, a CancelledError or the like that code of others has raised."""


def call_safely(call: Callable[[], T]) -> T:
    """Return what the call returns; whatever it raises is an Exception, except a user's Ctrl-C."""
    try:
        return call()
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ForeignExit(error_text(error)) from error


def error_text(error: BaseException) -> str:
    """Return `Type: message`, also of an error whose own message cannot be made."""
    return f"{type(error).__name__}: {message_text(error)}" if type(error) is not ForeignExit else str(error)


def message_text(error: BaseException) -> str:
    """Return the message of an error; one that cannot be made is described."""
    try:
        return call_safely(lambda: str(error))
    except Exception as broken:  # noqa: BLE001 - shown is what is known
        return f"(its message cannot be shown: str() raised {type(broken).__name__})"


def describe(value: object) -> str:
    """Return the beginning of a value's repr; of a value without a usable one, its type."""
    try:
        return call_safely(lambda: repr(value))[:MAX_SHOWN]
    except Exception as broken:  # noqa: BLE001 - shown is what is known
        return f"<{type(value).__name__}: repr() raised {type(broken).__name__}>"


def text_of(value: object) -> str:
    """Return a text as it is and other values by their repr, without characters that no file can hold."""
    try:
        text = value if type(value) is str else call_safely(lambda: repr(value))
    except Exception:  # noqa: BLE001 - shown is what is known
        text = type_text(value)
    return text.encode(errors="replace").decode()


def type_text(value: object) -> str:
    """Return the type of a value with its article: `an int`, `a dict`."""
    name = type(value).__name__
    return f"a{'n' if name[0] in 'aeioAEIO' else ''} {name}"


_RAYS = ("ray.tune.", "ray.train.", "ray.air.")


def ray_object_hint(value: object, prefixes: tuple[str, ...] = _RAYS) -> str:
    """Return what to do about an object, or a class, of Ray Tune where one of ours is needed; "" for others.

    Scripts that are changed from one to the other import some names from the wrong one.
    """
    kind = value if isinstance(value, type) else type(value)
    for each in kind.__mro__:
        if f"{each.__module__}.".startswith(prefixes):
            name, whose = kind.__name__, each.__name__
            what = f"{name} is" if each is kind else f"{name} extends {whose}, which is"
            return f"{what} Ray's own: import {whose} from muster (`muster compat SCRIPT` shows where)"
    return ""


def is_standin(module: object) -> bool:
    """Return whether a module named `ray` is muster's (`muster.as_ray`), not Ray."""
    return getattr(module, "__commit__", None) == "muster"


def real_ray() -> Any:  # noqa: ANN401 - a module
    """Return the Ray that this process has imported; None where it has none, or muster answers for it."""
    ray = sys.modules.get("ray")
    return None if is_standin(ray) else ray

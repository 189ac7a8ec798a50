"""Wrappers around function trainables that keep what users and the engine read from them.

Thin on purpose: the original stays an object of its own, so that it is pickled by reference where it can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.tune.trainable.registry import trainable_name

_KEPT = ("_resources", "__mixins__", "__doc__")


def wrapped_function(inner: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`inner` under the original's name, with its resources.

    Not `functools.wraps`: that lends the signature, and `inner` takes the config alone.
    """
    inner.__name__ = trainable_name(original)
    for name in _KEPT:
        if hasattr(original, name):
            setattr(inner, name, getattr(original, name))
    inner._muster_original = original  # type: ignore[attr-defined]
    return inner


def innermost(trainable: Any) -> Any:  # noqa: ANN401
    """What was wrapped."""
    while (original := getattr(trainable, "_muster_original", None)) is not None:
        trainable = original
    return trainable

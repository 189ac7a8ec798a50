"""Records as the text that is stored: nothing is written that could not be read back after a restart."""

from __future__ import annotations

from typing import Any, TypeVar

from muster.base import codec
from muster.errors import StoreError

T = TypeVar("T")


def stored(value: T, kind: Any, name: str) -> tuple[str, T]:  # noqa: ANN401 - a type or a union of types
    """The text to store, and the value that a restart will read from it.

    Characters that no file can hold (half of a surrogate pair, from a provider's garbled message) are
    replaced: a bad message must not stop the loop. What else cannot be read back is refused: StoreError.
    """
    try:
        try:
            text = codec.encode(value).decode()
        except UnicodeEncodeError:
            value = codec.convert(_cleaned(codec.to_builtins(value)), kind)
            text = codec.encode(value).decode()
        codec.decode(text.encode(), kind)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise StoreError(f"{name} cannot be stored: {error}; nothing was written") from error
    return text, value


def plain(value: object) -> str:
    """JSON for people; whatever it holds, it can be written."""
    try:
        return codec.encode_plain(value).decode()
    except UnicodeEncodeError:
        return codec.encode_plain(_cleaned(codec.to_builtins(value))).decode()


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - plain JSON data
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value

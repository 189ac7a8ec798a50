"""Encode records as JSON through msgspec, with a version tag; no pickle, no hand-written codec."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from muster.base.resources import Resources

FORMAT = 1
T = TypeVar("T")


def _encode_hook(value: object) -> object:
    if isinstance(value, Resources):
        return value.to_floats()
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def _decode_hook(kind: type, value: Any) -> object:  # noqa: ANN401 - msgspec's signature
    if kind is Resources:
        return Resources.of(value)
    raise NotImplementedError(f"cannot decode {kind.__name__}")


def to_builtins(value: object) -> Any:  # noqa: ANN401 - plain JSON data
    """Return plain dicts, lists and numbers, for `--json` and YAML."""
    return msgspec.to_builtins(value, enc_hook=_encode_hook)


def encode(value: object) -> bytes:
    """Return one record as tagged JSON."""
    return msgspec.json.encode({"v": FORMAT, "d": value}, enc_hook=_encode_hook)


def encode_plain(value: object) -> bytes:
    """Return one record as plain JSON, for users and programs outside muster; any text can be written."""
    try:
        return msgspec.json.encode(value, enc_hook=_encode_hook)
    except UnicodeEncodeError:
        return msgspec.json.encode(cleaned(to_builtins(value)))


def cleaned(value: Any) -> Any:  # noqa: ANN401 - plain JSON data
    """Return the data with replacements for characters that no file can hold.

    Such as half of a surrogate pair, from a provider's garbled message.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def decode(data: bytes, kind: type[T]) -> T:
    """Read back what `encode` wrote; ValueError names what does not fit."""
    envelope = msgspec.json.decode(data)
    if not isinstance(envelope, dict) or envelope.get("v") != FORMAT:
        raise ValueError(f"unknown record format: {data[:60]!r}")
    return convert(envelope["d"], kind)


def convert(value: object, kind: type[T]) -> T:
    """Return a typed record from plain data; ValueError carries the path."""
    return msgspec.convert(value, type=kind, dec_hook=_decode_hook)

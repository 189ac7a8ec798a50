"""Encode results as the JSON that Ray's encoder would write, in the fastest way that is exact.

msgspec writes NaN and infinities as null, does not escape non-ASCII text (some of which ends a line for
`str.splitlines`) and knows types (bytes, sets, dates) that Ray turns into text; so it is used only for what
is plain, finite and ASCII, and the standard library for everything else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_PLAIN = frozenset({str, int, float, bool, type(None)})
_FAST = _PLAIN | {msgspec.Raw}
_REFUSED = (OverflowError, TypeError, ValueError)  # huge ints, odd keys, lone surrogates
LARGE_BYTES = 1_000_000
_encoder = msgspec.json.Encoder()
_sorting_encoder = msgspec.json.Encoder(order="sorted")


class ForeignValue:
    """Replaces a value that stayed in the driver: as text, number (or NaN), JSON and array."""

    __slots__ = ("_array", "_json", "_number", "_text")

    def __init__(self, text: str, number: float, as_json: bytes, array: Any = None) -> None:  # noqa: ANN401
        self._text, self._number, self._json, self._array = text, number, as_json, array

    @property
    def ndim(self) -> int:
        return 0 if self._array is None else int(self._array.ndim)

    def __array__(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - numpy's protocol; without one, its error
        return self._array

    def __str__(self) -> str:
        return self._text

    def __float__(self) -> float:
        return self._number

    def jsonable(self) -> Any:  # noqa: ANN401 - JSON data
        return json.loads(self._json)


def jsonable(value: object) -> Any:  # noqa: ANN401 - JSON data
    """Return arrays and scalars of numpy as Python values, anything else as text; numpy is not imported."""
    if type(value) is ForeignValue:
        return value.jsonable()
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        inner = value.tolist()
        return inner if type(inner) is not type(value) else str(value)
    return str(value)


def is_number(value: object) -> bool:
    """Return whether a value is a number of Python or a scalar of numpy."""
    if isinstance(value, (int, float)):
        return True
    kind = getattr(getattr(value, "dtype", None), "kind", "?")
    return kind in "iufb" and getattr(value, "shape", None) == ()


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON data
    """Return numbers, text and containers of them as they are, and the text of anything else."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return value.item() if is_number(value) and hasattr(value, "item") else str(value)


def is_plain(value: object) -> bool:
    """Return whether both encoders write a value alike: text keys, lists, text, finite numbers, None."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if kind is dict:
        return all(type(key) is str and is_plain(inner) for key, inner in value.items())  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        return all(map(is_plain, value))  # type: ignore[call-overload]
    return kind in _PLAIN


def encode(value: object) -> bytes:
    """Return any value as JSON; what JSON cannot express becomes text."""
    try:
        if is_plain(value):
            data = _encoder.encode(value)
            if data.isascii():
                return data
    except (*_REFUSED, RecursionError):
        pass
    return _dumps(value).encode()


def pretty(value: object) -> str:
    """Return the form of params.json: indented by two, sorted by key."""
    try:
        if is_plain(value):
            data = _sorting_encoder.encode(value)
            if data.isascii():
                return msgspec.json.format(data, indent=2).decode()
    except (*_REFUSED, RecursionError):
        pass
    return _dumps(value, indent=2, sort_keys=True)


def shortened(config: Any) -> Any:  # noqa: ANN401 - a config, or a part of one
    """Return a config with numpy's summary of large arrays, which params.pkl holds."""
    if isinstance(config, dict):
        return {key: shortened(value) for key, value in config.items()}
    is_large = type(config).__module__ == "numpy" and getattr(config, "nbytes", 0) >= LARGE_BYTES
    return str(config) if is_large else config


def _dumps(value: object, **options: Any) -> str:  # noqa: ANN401 - of json.dumps
    try:
        return json.dumps(value, default=jsonable, **options)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_textual(value, 0), default=jsonable, **options)


def _textual(value: object, depth: int) -> Any:  # noqa: ANN401 - JSON data
    """Return data with text as keys, fit to be written and sorted; endless structures are cut."""
    if depth > 50:
        return "..."
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(key): _textual(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_textual(inner, depth + 1) for inner in value]
    return value


class RowEncoder:
    """Encodes the rows of one trial as lines of JSON; their common config is encoded once."""

    __slots__ = ("_config", "_nulls", "_raw")

    def __init__(self) -> None:
        self._config: object = None
        self._raw = msgspec.Raw(b"{}")
        self._nulls = 0

    def lines(self, rows: Sequence[dict[str, Any]]) -> bytes:
        """Return one line per row; `rows` are as before when this returns."""
        configs = [row.get("config") for row in rows]
        seen: set[type] = set()
        nulls = 0
        for row, config in zip(rows, configs, strict=True):
            if type(config) is dict:
                if config is not self._config:
                    text = encode(shortened(config))
                    # A config changes as a whole (PBT gives a new one), never in place: compare identities.
                    self._config, self._raw, self._nulls = config, msgspec.Raw(text), text.count(b"null")
                row["config"] = self._raw
                nulls += self._nulls
            if row.get("checkpoint_dir_name", nulls) is None:
                nulls += 1
            seen.update(map(type, row.values()))
        try:
            data = self._fast(rows, nulls) if seen <= _FAST else None
        finally:
            for row, config in zip(rows, configs, strict=True):
                if type(config) is dict:
                    row["config"] = config
        return data if data is not None else b"".join([encode(row) + b"\n" for row in rows])

    def _fast(self, rows: Sequence[dict[str, Any]], nulls: int) -> bytes | None:
        """Encode all rows at once; None when a null appeared that stands for a NaN or an infinity."""
        try:
            data: bytes = _encoder.encode_lines(rows)
        except _REFUSED:
            return None
        return data if data.count(b"null") == nulls and data.isascii() else None

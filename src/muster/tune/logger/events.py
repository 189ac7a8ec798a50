"""TensorBoard event records: TFRecord frames around Event messages, scalars only. Pure; called by the writer.

Arrays are left out: Ray writes histograms and images for them, we do not (yet). One Event holds all scalars
of a row, which TensorBoard reads like one Event for each.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from muster.tune.logger.crc32c import masked_crc, masked_crcs

PREFIX = "ray/tune/"
SKIPPED = frozenset({"config", "pid", "timestamp", "time_total_s", "training_iteration"})
_NUMBERS = frozenset({float, int, bool})
_double = struct.Struct("<d")
_float = struct.Struct("<f")


def varint(value: int) -> bytes:
    """Protocol buffers' integer; negative ones take ten bytes."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def frame(payloads: Sequence[bytes]) -> bytes:
    """TFRecords: length, its checksum, the message, its checksum."""
    parts = []
    for payload, crc in zip(payloads, masked_crcs(payloads), strict=True):
        parts.append(_head(len(payload)))
        parts.append(payload)
        parts.append(crc.to_bytes(4, "little"))
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _head(length: int) -> bytes:
    data = length.to_bytes(8, "little")
    return data + masked_crc(data).to_bytes(4, "little")


def opening(at: float, first_step: int | None = None) -> bytes:
    """The first records of a file. With a step: what older files have from that step on is void."""
    stamp = b"\x09" + _double.pack(at)
    payloads = [stamp + b"\x1a\x0dbrain.Event:2"]
    if first_step is not None:
        payloads.append(stamp + b"\x10" + varint(first_step) + b"\x3a\x02\x08\x01")
    return frame(payloads)


class _Layout:
    """Rows with the same keys and types: everything but the numbers is known."""

    __slots__ = ("_arguments", "_pack", "is_plain", "names", "prefixes")

    def __init__(self, names: Sequence[str], is_plain: bool = True) -> None:
        self.names = tuple(names)
        self.is_plain = is_plain  # Python's own numbers only
        self.prefixes = [_value_prefix(name) for name in names]
        heads = list(self.prefixes)
        if heads:
            heads[0] = b"\x2a" + varint(sum(map(len, heads)) + 4 * len(heads)) + heads[0]
        self._pack = struct.Struct("<" + "".join(f"{len(head)}sf" for head in heads)).pack
        self._arguments: list[Any] = [part for head in heads for part in (head, 0.0)]

    def pack(self, values: Sequence[float]) -> bytes:
        self._arguments[1::2] = values
        return self._pack(*self._arguments)


@lru_cache(maxsize=1024)
def _value_prefix(name: str) -> bytes:
    tag = (PREFIX + name).encode("utf-8", "replace")
    inner = b"\x0a" + varint(len(tag)) + tag + b"\x15"
    return b"\x0a" + varint(len(inner) + 4) + inner


class EventEncoder:
    """Flat rows as Event messages; knows the layouts it has seen, of all trials."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._types: tuple[type, ...] = ()
        self._layout = _Layout(())
        self._known: dict[tuple[Any, ...], _Layout] = {}

    def payloads(self, rows: Sequence[tuple[float, Mapping[str, Any]]]) -> list[bytes]:
        """One message for each row that has a number to show."""
        found = []
        for at, row in rows:
            keys, types = tuple(row), tuple(map(type, row.values()))
            if keys != self._keys or types != self._types:
                self._learn(keys, types)
            body = self._body(row)
            if body:
                found.append(b"\x09" + _double.pack(at) + b"\x10" + varint(_step(row)) + body)
        return found

    def _learn(self, keys: tuple[str, ...], types: tuple[type, ...]) -> None:
        layout = self._known.get((keys, types))
        if layout is None:
            scalars = {
                key: kind
                for key, kind in zip(keys, types, strict=True)
                if key not in SKIPPED and _may_be_scalar(kind)
            }
            layout = _Layout(tuple(scalars), _NUMBERS.issuperset(scalars.values()))
            if len(self._known) > 256:
                self._known.clear()
            self._known[keys, types] = layout
        self._keys, self._types, self._layout = keys, types, layout

    def _body(self, row: Mapping[str, Any]) -> bytes:
        layout = self._layout
        values = [row[name] for name in layout.names]
        if layout.is_plain:
            try:
                total = sum(values)
                if not math.isnan(total):
                    return layout.pack(values)
            except OverflowError:
                pass
        return _spelled_out(layout, values)


def _may_be_scalar(kind: type) -> bool:
    # numpy's and torch's numbers have __float__; so have arrays, which are sorted out by their shape later.
    return kind in _NUMBERS or (hasattr(kind, "__float__") and not issubclass(kind, (str, bytes)))


def _spelled_out(layout: _Layout, values: Sequence[Any]) -> bytes:
    """A row with a NaN, which is left out, or with a number no 32-bit float can hold."""
    parts = []
    for prefix, value in zip(layout.prefixes, values, strict=True):
        number = _as_float(value)
        if not math.isnan(number):
            parts.append(prefix + _float.pack(number))
    body = b"".join(parts)
    return b"\x2a" + varint(len(body)) + body if parts else b""


def _as_float(value: Any) -> float:  # noqa: ANN401 - a user's number
    if getattr(value, "ndim", 0) != 0:
        return float("nan")
    try:
        number = float(value)
        _float.pack(number)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except (TypeError, ValueError):
        return float("nan")
    return number


def _step(row: Mapping[str, Any]) -> int:
    try:
        return int(row.get("timesteps_total") or row.get("training_iteration") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0

"""TensorBoard event records: TFRecord frames around Event messages. Pure; called by the writer.

One Event holds all scalars and arrays of a row, which TensorBoard reads like one Event for each.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from muster.tune.logger.tensorboard.arrays import array_value
from muster.tune.logger.tensorboard.crc32c import (
    MOST_KNOWN,
    KnownRecord,
    crc32c,
    crc32c_long,
    masked,
)
from muster.tune.logger.tensorboard.wire import varint

PREFIX = "ray/tune/"
SKIPPED = frozenset({"config", "pid", "timestamp", "time_total_s", "training_iteration"})
_NUMBERS = frozenset({float, int, bool})
_VERSION = b"\x1a\x0dbrain.Event:2"
_LONG = 16_384  # bytes from which numpy's way to the checksum pays
_double = struct.Struct("<d")
_float = struct.Struct("<f")


def frame(payload: bytes) -> bytes:
    """A TFRecord: length, its checksum, the message, its checksum."""
    crc = crc32c(payload) if len(payload) < _LONG else crc32c_long(payload)
    return _head(len(payload)) + payload + masked(crc).to_bytes(4, "little")


@lru_cache(maxsize=4096)
def _head(length: int) -> bytes:
    data = length.to_bytes(8, "little")
    return data + masked(crc32c(data)).to_bytes(4, "little")


def opening(at: float, first_step: int | None = None) -> bytes:
    """The first records of a file. With a step: what older files have from that step on is void."""
    stamp = b"\x09" + _double.pack(at)
    version = b"".join(_framed([stamp + _VERSION], _known_opening()))
    if first_step is None:
        return version
    return version + frame(stamp + b"\x10" + varint(first_step) + b"\x3a\x02\x08\x01")


@lru_cache(maxsize=1)
def _known_opening() -> KnownRecord:
    """Every file begins with it; only the time in it differs."""
    return KnownRecord(b"\x09" + bytes(8) + _VERSION, range(1, 9))


class _Layout:
    """Rows with the same keys and types: everything but the numbers is known."""

    __slots__ = ("_arguments", "_pack", "_records", "is_plain", "names", "prefixes", "values")

    def __init__(self, names: Sequence[str], is_plain: bool = True) -> None:
        self.is_plain = is_plain  # Python's own numbers only
        self.names = names
        self.values: Callable[[Mapping[str, Any]], Sequence[Any]] = (
            itemgetter(*names) if len(names) > 1 else lambda row: [row[name] for name in names]
        )
        self.prefixes = [_value_prefix(name) for name in names]
        heads = list(self.prefixes)
        if heads:
            heads[0] = b"\x2a" + varint(sum(map(len, heads)) + 4 * len(heads)) + heads[0]
        self._pack = struct.Struct("<" + "".join(f"{len(head)}sf" for head in heads)).pack
        self._arguments: list[Any] = [part for head in heads for part in (head, 0.0)]
        self._records: dict[int, KnownRecord] = {}  # by length; only the step's bytes make a difference

    def message(self, at: float, step: int, values: Sequence[float]) -> tuple[bytes, KnownRecord | None]:
        """An Event, and what is known of its like; OverflowError when a number is too large for 32 bits."""
        self._arguments[1::2] = values
        head = b"\x09" + _double.pack(at) + b"\x10" + varint(step)
        payload = head + self._pack(*self._arguments)
        size = len(payload)
        known = self._records.get(size)
        if known is None and size <= MOST_KNOWN:
            known = self._records[size] = self._known(payload, len(head))
        return payload, known

    def _known(self, payload: bytes, head: int) -> KnownRecord:
        places = [*range(1, 9), *range(10, head)]
        for prefix in self._arguments[::2]:
            head += len(prefix)
            places += range(head, head + 4)
            head += 4
        zeroed = bytearray(payload)
        for place in places:
            zeroed[place] = 0
        return KnownRecord(bytes(zeroed), places)


@lru_cache(maxsize=1024)
def _value_prefix(name: str) -> bytes:
    tag = (PREFIX + name).encode("utf-8", "replace")
    inner = b"\x0a" + varint(len(tag)) + tag + b"\x15"
    return b"\x0a" + varint(len(inner) + 4) + inner


class EventEncoder:
    """Flat rows as records of an event file; knows the layouts it has seen, of all trials."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._types: tuple[type, ...] = ()
        self._layout = _Layout(())
        self._known: dict[tuple[Any, ...], _Layout] = {}

    def records(self, rows: Sequence[tuple[float, Mapping[str, Any]]]) -> bytes:
        """One record for each row that has a number to show."""
        found: list[bytes] = []
        run: list[bytes] = []  # messages of which the same is known
        known: KnownRecord | None = None
        for at, row in rows:
            keys, types = tuple(row), tuple(map(type, row.values()))
            if keys != self._keys or types != self._types:
                self._learn(keys, types)
            payload, its_like = self._message(at, row)
            if its_like is not known:
                found += _framed(run, known)
                run, known = [], its_like
            if payload:
                run.append(payload)
        return b"".join([*found, *_framed(run, known)])

    def _learn(self, keys: tuple[str, ...], types: tuple[type, ...]) -> None:
        layout = self._known.get((keys, types))
        if layout is None:
            scalars = {
                key: kind
                for key, kind in zip(keys, types, strict=True)
                if key not in SKIPPED and _may_be_shown(kind)
            }
            layout = _Layout(tuple(scalars), _NUMBERS.issuperset(scalars.values()))
            if len(self._known) > 256:
                self._known.clear()
            self._known[keys, types] = layout
        self._keys, self._types, self._layout = keys, types, layout

    def _message(self, at: float, row: Mapping[str, Any]) -> tuple[bytes, KnownRecord | None]:
        layout, step = self._layout, _step(row)
        values = layout.values(row)
        if layout.is_plain and values:
            try:
                total = sum(values)
                if not math.isnan(total):
                    return layout.message(at, step, values)
            except OverflowError:
                pass
        body = _spelled_out(layout, values)
        return (b"\x09" + _double.pack(at) + b"\x10" + varint(step) + body if body else b""), None


def _framed(payloads: Sequence[bytes], known: KnownRecord | None) -> list[bytes]:
    if known is None or not payloads:
        return [frame(payload) for payload in payloads]
    head = _head(len(payloads[0]))  # what one is known of has one length
    crcs = known.masked_crcs(payloads)
    return [head + p + crc.to_bytes(4, "little") for p, crc in zip(payloads, crcs, strict=True)]


def _may_be_shown(kind: type) -> bool:
    # numpy's and torch's numbers have __float__; so have arrays, which are told apart by their shape later.
    return (
        kind in _NUMBERS
        or kind is list
        or (hasattr(kind, "__float__") and not issubclass(kind, (str, bytes)))
    )


def _spelled_out(layout: _Layout, values: Sequence[Any]) -> bytes:
    """A row with a NaN, which is left out, with a number no 32-bit float can hold, or with an array."""
    parts = []
    for name, prefix, value in zip(layout.names, layout.prefixes, values, strict=True):
        if type(value) is list or getattr(value, "ndim", 0) != 0:
            parts.append(array_value(PREFIX + name, value))
            continue
        number = as_float(value)
        if not math.isnan(number):
            parts.append(prefix + _float.pack(number))
    body = b"".join(parts)
    return b"\x2a" + varint(len(body)) + body if body else b""


def as_float(value: Any) -> float:  # noqa: ANN401 - a user's number
    """What is shown of it; NaN: nothing."""
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

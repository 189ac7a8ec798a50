"""Encode TensorBoard event records: TFRecord frames around Event messages.

One Event holds all scalars and arrays of a row, which TensorBoard reads like one Event for each.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from muster.tune.logger.files.csv_rows import step_of
from muster.tune.logger.tensorboard.crc32c import MOST_KNOWN, KnownRecord, crc32c, crc32c_long, masked

if TYPE_CHECKING:
    import numpy as np


def varint(value: int) -> bytes:
    """Return a protocol buffer's integer; negative ones take ten bytes."""
    if 0 <= value < 128:
        return value.to_bytes(1, "little")
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(field: int, content: bytes) -> bytes:
    """Return a field that holds text, bytes, a message or packed numbers; its number is below 16."""
    return bytes([field << 3 | 2]) + varint(len(content)) + content


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by channels: grey, grey and alpha, RGB, RGB and alpha
FRAMES_PER_S = 20


def png(frames: Sequence[bytes], width: int, height: int, channels: int) -> bytes:
    """Return one image, or several played in a loop: rows from the top, one byte for each channel."""
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = [_SIGNATURE, _chunk(b"IHDR", header)]
    stride = width * channels
    packed = []
    for frame in frames:  # each row is preceded by the filter it went through: none
        rows = [b"\x00" + frame[start : start + stride] for start in range(0, len(frame), stride)]
        packed.append(zlib.compress(b"".join(rows)))
    if len(packed) == 1:
        chunks.append(_chunk(b"IDAT", packed[0]))
    else:
        chunks.append(_chunk(b"acTL", struct.pack(">II", len(packed), 0)))  # played forever
        chunks += _animated(packed, width, height)
    return b"".join([*chunks, _chunk(b"IEND", b"")])


def _animated(packed: Sequence[bytes], width: int, height: int) -> list[bytes]:
    chunks, number = [], 0  # controls and data are numbered together; the first data is the still image
    for data in packed:
        control = struct.pack(">IIIIIHHBB", number, width, height, 0, 0, 1, FRAMES_PER_S, 0, 0)
        chunks.append(_chunk(b"fcTL", control))
        number += 1
        if number == 1:
            chunks.append(_chunk(b"IDAT", data))
        else:
            chunks.append(_chunk(b"fdAT", number.to_bytes(4, "big") + data))
            number += 1
    return chunks


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return len(content).to_bytes(4, "big") + kind + content + checksum.to_bytes(4, "big")


_CHANNELS = (1, 3, 4)
_ACROSS = 8  # images in a row of a sheet
_BUCKETS = 30  # as many as TensorBoard's own histograms have
_IMAGE, _HISTOGRAM = 4, 5  # fields of Summary.Value


def array_value(tag: str, value: object) -> bytes:
    """Return a Summary.Value, framed as a field of its Summary; empty for what cannot be shown."""
    try:
        found = _as_array(value)
        body = b"" if found is None else _shown(found)
    except Exception:  # noqa: BLE001 - a user's object may do anything when it is turned into an array
        return b""
    return delimited(1, delimited(1, tag.encode("utf-8", "replace")) + body) if body else b""


def _as_array(value: Any) -> np.ndarray | None:  # noqa: ANN401 - numpy's, torch's, jax's or a list
    import numpy as np

    if hasattr(value, "detach"):  # a tensor of torch that belongs to a graph, or is on a GPU
        value = value.detach().cpu()
    found = np.asarray(value)
    return found if found.ndim and found.size and found.dtype.kind in "biuf" else None


def _shown(values: np.ndarray) -> bytes:
    pixels = _pixels(values) if values.ndim in (3, 4, 5) else None
    if pixels is None:
        return _histogram(values)
    _, height, width, channels = pixels.shape
    data = png([frame.tobytes() for frame in pixels], width, height, channels)
    size = b"\x08" + varint(height) + b"\x10" + varint(width) + b"\x18" + varint(channels)
    return delimited(_IMAGE, size + delimited(4, data))


def _pixels(values: np.ndarray) -> np.ndarray | None:
    """Return (frame, height, width, channel) of bytes; None when no axis can be the channels."""
    import numpy as np

    if values.shape[-3] in _CHANNELS:
        values = np.moveaxis(values, -3, -1)
    elif values.shape[-1] not in _CHANNELS:
        return None
    if values.ndim == 3:
        return _bytes(values)[np.newaxis]
    films = values[:, np.newaxis] if values.ndim == 4 else values
    return _sheet(_bytes(films))


def _bytes(values: np.ndarray) -> np.ndarray:
    import numpy as np

    if values.dtype == np.uint8:
        return values
    if values.dtype.kind in "fb":
        values = np.nan_to_num(values.astype(np.float64)) * 255.0
    return values.clip(0, 255).astype(np.uint8)


def _sheet(films: np.ndarray) -> np.ndarray:
    """Return images (n, frame, height, width, channel) as one, in rows, filled up with black."""
    import numpy as np

    count, frames, height, width, channels = films.shape
    across = min(count, _ACROSS)
    rows = -(-count // across)
    places = np.zeros((rows * across, frames, height, width, channels), np.uint8)
    places[:count] = films
    grid = places.reshape(rows, across, frames, height, width, channels).transpose(2, 0, 3, 1, 4, 5)
    sheet: np.ndarray = grid.reshape(frames, rows * height, across * width, channels)
    return sheet


def _histogram(values: np.ndarray) -> bytes:
    """Return a histogram of the finite values, with buckets of the same width."""
    import numpy as np

    finite = values.astype(np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return b""
    with np.errstate(all="ignore"):
        low, high = float(finite.min()), float(finite.max())
        counts, limits = _buckets(finite, low, high)
        total, squares = float(finite.sum()), float(finite.dot(finite))
    head = struct.pack("<BdBdBdBdBd", 0x09, low, 0x11, high, 0x19, finite.size, 0x21, total, 0x29, squares)
    doubles = [array.astype("<f8").tobytes() for array in (limits, counts)]
    return delimited(_HISTOGRAM, head + delimited(6, doubles[0]) + delimited(7, doubles[1]))


def _buckets(finite: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how many values are in each bucket, and where each bucket ends."""
    import numpy as np

    if not 0 < high - low < float("inf"):  # one value only, or a span that no float can hold
        return np.array([finite.size]), np.array([high])
    counts, edges = np.histogram(finite, _BUCKETS, (low, high))
    return counts, edges[1:]


PREFIX = "ray/tune/"
SKIPPED = frozenset({"config", "pid", "timestamp", "time_total_s", "training_iteration"})
_NUMBERS = frozenset({float, int, bool})
_VERSION = b"\x1a\x0dbrain.Event:2"
_LONG = 16_384  # bytes from which numpy's way to the checksum pays
_double = struct.Struct("<d")
_float = struct.Struct("<f")


def frame(payload: bytes) -> bytes:
    """Return a TFRecord: length, its checksum, the message, its checksum."""
    crc = crc32c(payload) if len(payload) < _LONG else crc32c_long(payload)
    return _head(len(payload)) + payload + masked(crc).to_bytes(4, "little")


@lru_cache(maxsize=4096)
def _head(length: int) -> bytes:
    data = length.to_bytes(8, "little")
    return data + masked(crc32c(data)).to_bytes(4, "little")


def opening(at: float, first_step: int | None = None) -> bytes:
    """Return the first records of a file. With a step: older files are void from that step on."""
    stamp = b"\x09" + _double.pack(at)
    version = b"".join(_framed([stamp + _VERSION], _known_opening()))
    if first_step is None:
        return version
    return version + frame(stamp + b"\x10" + varint(first_step) + b"\x3a\x02\x08\x01")


@lru_cache(maxsize=1)
def _known_opening() -> KnownRecord:
    """Return the record that every file begins with; only its time differs."""
    return KnownRecord(b"\x09" + bytes(8) + _VERSION, range(1, 9))


class _Layout:
    """Describes rows with the same keys and types: everything but the numbers is known."""

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
        """Return an Event and its KnownRecord; OverflowError when a number is too large for 32 bits."""
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
    """Encodes flat rows as records of an event file; it remembers all layouts."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._types: tuple[type, ...] = ()
        self._layout = _Layout(())
        self._known: dict[tuple[Any, ...], _Layout] = {}

    def records(self, rows: Sequence[tuple[float, Mapping[str, Any]]]) -> bytes:
        """Return one record for each row that has a number to show."""
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
        layout, step = self._layout, step_of(row)
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
    # numpy's and torch's numbers have __float__; so have arrays, which are recognised by their shape later.
    return (
        kind in _NUMBERS
        or kind is list
        or (hasattr(kind, "__float__") and not issubclass(kind, (str, bytes)))
    )


def _spelled_out(layout: _Layout, values: Sequence[Any]) -> bytes:
    """Return a row with a NaN, which is left out, a number beyond 32-bit floats, or an array."""
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
    """Return the number to show for a value; NaN when there is none."""
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

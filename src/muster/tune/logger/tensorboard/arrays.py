"""Arrays of results as TensorBoard shows them: pictures, or how their values are spread. For the writer.

The layouts are tensorboardX's: 3-d (channel, height, width) is a picture, 4-d (n, ...) a sheet of pictures,
5-d (n, frame, ...) a sheet of films, with 1, 3 or 4 channels, which may also come last. Other shapes are
histograms. Floats are taken as 0..1, whole numbers as 0..255. numpy is imported when there is an array.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from muster.tune.logger.tensorboard.wire import delimited, varint

if TYPE_CHECKING:
    import numpy as np


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by channels: grey, grey and alpha, RGB, RGB and alpha
FRAMES_PER_S = 20


def png(frames: Sequence[bytes], width: int, height: int, channels: int) -> bytes:
    """One picture, or several played in a loop: rows from the top, one byte for each channel of a pixel."""
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = [_SIGNATURE, _chunk(b"IHDR", header)]
    packed = [zlib.compress(_filtered(frame, width * channels)) for frame in frames]
    if len(packed) == 1:
        chunks.append(_chunk(b"IDAT", packed[0]))
    else:
        chunks.append(_chunk(b"acTL", struct.pack(">II", len(packed), 0)))  # played for ever
        chunks += _animated(packed, width, height)
    return b"".join([*chunks, _chunk(b"IEND", b"")])


def _filtered(frame: bytes, stride: int) -> bytes:
    """Each row begins with the filter it went through: none."""
    return b"".join([b"\x00" + frame[start : start + stride] for start in range(0, len(frame), stride)])


def _animated(packed: Sequence[bytes], width: int, height: int) -> list[bytes]:
    chunks, number = [], 0  # controls and data are numbered together; the first data is the still picture
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
_ACROSS = 8  # pictures in a row of a sheet
_BUCKETS = 30  # as many as TensorBoard's own histograms have
_IMAGE, _HISTOGRAM = 4, 5  # fields of Summary.Value


def array_value(tag: str, value: object) -> bytes:
    """A Summary.Value, framed as a field of its Summary; empty for what cannot be shown, never an error."""
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
    return _histogram(values) if pixels is None else _picture(pixels)


def _pixels(values: np.ndarray) -> np.ndarray | None:
    """As (frame, height, width, channel) of bytes; None when no axis can be the channels."""
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
    """(n, frame, height, width, channel) side by side, in rows; what is left of the last row is black."""
    import numpy as np

    count, frames, height, width, channels = films.shape
    across = min(count, _ACROSS)
    rows = -(-count // across)
    places = np.zeros((rows * across, frames, height, width, channels), np.uint8)
    places[:count] = films
    grid = places.reshape(rows, across, frames, height, width, channels).transpose(2, 0, 3, 1, 4, 5)
    sheet: np.ndarray = grid.reshape(frames, rows * height, across * width, channels)
    return sheet


def _picture(pixels: np.ndarray) -> bytes:
    _, height, width, channels = pixels.shape
    data = png([frame.tobytes() for frame in pixels], width, height, channels)
    size = b"\x08" + varint(height) + b"\x10" + varint(width) + b"\x18" + varint(channels)
    return delimited(_IMAGE, size + delimited(4, data))


def _histogram(values: np.ndarray) -> bytes:
    """Of the finite values; buckets of the same width."""
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
    return delimited(_HISTOGRAM, head + delimited(6, _doubles(limits)) + delimited(7, _doubles(counts)))


def _buckets(finite: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """How many are in each bucket, and where each ends."""
    import numpy as np

    if not 0 < high - low < float("inf"):  # one value only, or a span that no float can say
        return np.array([finite.size]), np.array([high])
    counts, edges = np.histogram(finite, _BUCKETS, (low, high))
    return counts, edges[1:]


def _doubles(values: np.ndarray) -> bytes:
    return values.astype("<f8").tobytes()

"""PNG and animated PNG files from raw pixels, by zlib alone. Pure; called by the encoder of arrays.

An animated PNG has its further frames in chunks that old readers pass over; every browser plays it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

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

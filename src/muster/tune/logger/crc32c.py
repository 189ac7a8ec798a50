"""CRC-32C as TFRecord files want it: masked. Pure Python for a few records, numpy for many at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_POLYNOMIAL = 0x82F63B78
_ALL = 0xFFFFFFFF
MANY = 48  # from here on numpy is faster


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ALL


@lru_cache(maxsize=1)
def _tables() -> tuple[list[int], list[int], list[int]]:
    """One byte at a time; then the two halves of a 32-bit word, the lower half two bytes further on."""
    byte = []
    for value in range(256):
        entry = value
        for _ in range(8):
            entry = (entry >> 1) ^ (_POLYNOMIAL if entry & 1 else 0)
        byte.append(entry)
    after = [[entry] for entry in byte]  # what a byte leaves behind with 0, 1, 2, 3 more bytes after it
    for chain in after:
        for _ in range(3):
            chain.append(byte[chain[-1] & 255] ^ (chain[-1] >> 8))
    upper = [low[1] ^ high[0] for high in after for low in after]
    lower = [low[3] ^ high[2] for high in after for low in after]
    return byte, lower, upper


def masked_crc(data: bytes) -> int:
    """The masked checksum of one record."""
    byte, lower, upper = _tables()
    crc = _ALL
    odd = len(data) & 3
    for value in data[:odd]:
        crc = byte[(crc ^ value) & 255] ^ (crc >> 8)
    for word in struct.unpack_from(f"<{len(data) >> 2}I", data, odd):
        crc ^= word
        crc = lower[crc & 0xFFFF] ^ upper[crc >> 16]
    return _masked(crc ^ _ALL)


@lru_cache(maxsize=1)
def _arrays() -> tuple[Any, Any]:
    import numpy as np

    _, lower, upper = _tables()
    return np.array(lower, dtype=np.uint32), np.array(upper, dtype=np.uint32)


def masked_crcs(records: Sequence[bytes]) -> list[int]:
    """The masked checksum of each record; records have at least four bytes."""
    if len(records) < MANY:
        return [masked_crc(record) for record in records]
    import numpy as np

    lower, upper = _arrays()
    width = -(-max(map(len, records)) // 4) * 4
    # Zeros in front do not change a register that starts at zero; so the start value, all ones, is put into
    # the first four bytes of each record instead, and records of any length share one matrix.
    matrix = np.frombuffer(b"".join([r.rjust(width, b"\0") for r in records]), dtype=np.uint8)
    matrix = matrix.reshape(len(records), width).copy()
    starts = np.array([width - len(record) for record in records])
    for offset in range(4):
        matrix[np.arange(len(records)), starts + offset] ^= 0xFF
    words = np.ascontiguousarray(matrix.view("<u4").T)
    crc = np.zeros(len(records), dtype=np.uint32)
    for word in words:
        crc ^= word
        crc = lower[crc & 0xFFFF] ^ upper[crc >> 16]
    return [_masked(value ^ _ALL) for value in crc.tolist()]

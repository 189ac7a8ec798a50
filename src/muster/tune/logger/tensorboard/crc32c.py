"""Compute masked CRC-32C checksums for TFRecord files, fast for records that differ in a few bytes only."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

_POLYNOMIAL = 0x82F63B78
_ALL = 0xFFFFFFFF
_SHIFTS = (0, 8, 16, 24)
_MANY = 8
_PIECE = 256
MOST_KNOWN = 2048  # bytes of a record up to which `KnownRecord` keeps tables, one kilobyte for each


def masked(crc: int) -> int:
    """Return the stored form of a checksum: a checksum of checksums would otherwise be weak."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ALL


def crc32c(data: bytes) -> int:
    """Return the plain checksum, computed byte by byte."""
    return _continued(_ALL, data) ^ _ALL


def _continued(crc: int, data: bytes) -> int:
    table = _after(0)
    for value in data:
        crc = table[(crc ^ value) & 255] ^ (crc >> 8)
    return crc


def crc32c_long(data: bytes) -> int:
    """Return the same checksum by numpy, which is ten times as fast for long data such as images."""
    import numpy as np

    count = len(data) // _PIECE
    pieces = np.frombuffer(data, np.uint8, count * _PIECE).reshape(count, _PIECE)
    sums = np.zeros(count, np.uint32)
    for table, column in zip(_piece_tables(), np.ascontiguousarray(pieces.T), strict=True):
        sums ^= table[column]
    first, second, third, fourth = (_after(_PIECE - 1 - place) for place in range(4))
    crc = _ALL
    for added in sums.tolist():  # the checksum so far goes into the first four bytes of the next piece
        crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24] ^ added
    return _continued(crc, data[count * _PIECE :]) ^ _ALL


@lru_cache(maxsize=1)
def _piece_tables() -> Any:  # noqa: ANN401 - numpy's arrays, which this module knows by that function only
    import numpy as np

    return np.array([_after(_PIECE - 1 - place) for place in range(_PIECE)], np.uint32)


class KnownRecord:
    """Computes checksums of records of one length of which only the bytes at `places` vary.

    The checksum is linear: that of a record is that of the record with zeros at those places, xor what each
    of the bytes there adds, which depends on the byte and on how many bytes follow it.
    """

    __slots__ = ("_base", "_lanes", "_pick", "_places", "_size", "_tables")

    def __init__(self, zeroed: bytes, places: Sequence[int]) -> None:
        self._base = crc32c(zeroed)
        self._pick = itemgetter(*places)
        self._size, self._places = len(zeroed), tuple(places)
        self._tables = [_after(len(zeroed) - 1 - place) for place in places]
        self._lanes: list[list[bytes]] = []

    def masked_crcs(self, records: Sequence[bytes]) -> list[int]:
        """Return the checksums to store after the records; many at once are several times as fast."""
        if len(records) >= _MANY:
            return [masked(crc) for crc in self._side_by_side(records)]
        return [masked(self._crc(record)) for record in records]

    def _crc(self, record: bytes) -> int:
        crc = self._base
        for table, value in zip(self._tables, self._pick(record), strict=True):
            crc ^= table[value]
        return crc

    def _side_by_side(self, records: Sequence[bytes]) -> array[int]:
        """Compute all records at once: columns of bytes are translated by table and xored as long numbers.

        The four bytes of the checksums are four lanes, each as long as there are records.
        """
        if not self._lanes:
            self._lanes = [_lanes_after(self._size - 1 - place) for place in self._places]
        joined, count = b"".join(records), len(records)
        crcs = [int.from_bytes(bytes([self._base >> shift & 255]) * count, "little") for shift in _SHIFTS]
        for place, lanes in zip(self._places, self._lanes, strict=True):
            column = joined[place :: self._size]
            for lane in range(4):
                crcs[lane] ^= int.from_bytes(column.translate(lanes[lane]), "little")
        woven = bytearray(4 * count)
        for lane in range(4):
            woven[lane::4] = crcs[lane].to_bytes(count, "little")
        found = array("I", bytes(woven))
        if sys.byteorder == "big":
            found.byteswap()
        return found


@lru_cache(maxsize=MOST_KNOWN)
def _lanes_after(distance: int) -> list[bytes]:
    """Return the four bytes of `_after`, each as a table; the same for all kinds of records."""
    table = _after(distance).tobytes()
    first, step = (0, 1) if sys.byteorder == "little" else (3, -1)
    return [table[first + step * lane :: 4] for lane in range(4)]


@lru_cache(maxsize=1)
def _byte_table() -> array[int]:
    entries = []
    for value in range(256):
        entry = value
        for _ in range(8):
            entry = (entry >> 1) ^ (_POLYNOMIAL if entry & 1 else 0)
        entries.append(entry)
    return array("I", entries)


_tables_by_distance: list[array[int]] = []


def _after(distance: int) -> array[int]:
    """Return what each byte adds to the checksum when `distance` bytes follow it; made once."""
    tables = _tables_by_distance
    if not tables:
        tables.append(_byte_table())
    first = tables[0]
    while len(tables) <= distance:
        tables.append(array("I", [first[value & 255] ^ (value >> 8) for value in tables[-1]]))
    return tables[distance]

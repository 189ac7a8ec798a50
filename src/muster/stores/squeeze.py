"""Bytes made smaller before they are stored; the first byte says how. Only experiment stores call this."""

from __future__ import annotations

import zlib

_AS_IT_IS, _DEFLATED, _WITH_DICTIONARY = b"\0", b"\1", b"\2"
_WORTH_IT = 64  # bytes
DICTIONARY_BYTES = 8192


def squeezed(data: bytes, dictionary: bytes | None = None) -> bytes:
    """Fast rather than small: level 1. With a dictionary that looks alike, short records shrink most."""
    if len(data) < _WORTH_IT:
        return _AS_IT_IS + data
    if dictionary is None:
        return _DEFLATED + zlib.compress(data, 1)
    # A window as long as the dictionary, and small tables: making a large packer takes longer than packing.
    packer = zlib.compressobj(1, zlib.DEFLATED, -13, 5, zlib.Z_DEFAULT_STRATEGY, dictionary)
    return _WITH_DICTIONARY + packer.compress(data) + packer.flush()


def unsqueezed(stored: bytes, dictionary: bytes | None = None) -> bytes:
    """ValueError when it is damaged."""
    how, data = stored[:1], stored[1:]
    try:
        if how == _AS_IT_IS:
            return data
        if how == _DEFLATED:
            return zlib.decompress(data)
        if how == _WITH_DICTIONARY and dictionary is not None:
            return zlib.decompressobj(-15, dictionary).decompress(data)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from error
    raise ValueError(f"stored in an unknown way: {how!r}")

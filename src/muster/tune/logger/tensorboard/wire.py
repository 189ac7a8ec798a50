"""Protocol buffers as bytes, as far as event files need them. Pure; used by the event encoders."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Protocol buffers' integer; negative ones take ten bytes."""
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
    """A field that holds text, bytes, a message or packed numbers; its number is below 16."""
    return bytes([field << 3 | 2]) + varint(len(content)) + content

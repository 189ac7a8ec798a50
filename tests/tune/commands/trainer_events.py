"""Write TensorBoard events by hand, without checksums, which the reader does not check."""

import struct


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def event(step, tag, value):
    scalar = b"\x0a" + varint(len(tag)) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + varint(len(scalar)) + scalar
    record = (
        b"\x09" + struct.pack("<d", 1.0) + b"\x10" + varint(step) + b"\x2a" + varint(len(summary)) + summary
    )
    return struct.pack("<Q", len(record)) + b"0000" + record + b"0000"

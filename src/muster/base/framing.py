"""Encode and decode length-prefixed frames between driver, fork server and trials: pure, no I/O.

A payload that is plain data travels by `marshal`, anything else by pickle. marshal, because both ends are the
same interpreter, it needs no import in a new process, and unlike msgpack it keeps tuples and big integers;
`is_plain` keeps away from it what it would change (subclasses, buffers).
"""

from __future__ import annotations

import marshal
import pickle
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("<IB")
_HEADER_SIZE = HEADER.size
_MAX_PAYLOAD = 2**32 - 1
_MARSHAL = 2  # the last version without reference tracking: a third of the time

SCALARS = frozenset({int, float, str, bool, type(None), bytes})
_KEYS = frozenset({str, int})

Frame = tuple[int, bytes]


class FrameKind:
    """Names what a frame means; plain integers, because comparing Enum members is slow."""

    INIT = 1  # to the fork server: argv and settings of the driver
    TRAINABLE = 2  # to fork server and workers: name and pickled code
    FORK = 3  # to the fork server: make children, with two of the descriptors sent along for each
    KILL = 4  # to the fork server: send a signal to a child
    CHILD = 5  # from the fork server: children's pids
    GONE = 6  # from the fork server: exit statuses of children
    PRELOAD = 8  # to a spare worker, then to the fork server: import what a trial has imported
    FORKS = 7  # from the fork server: the pid of the process that forks, or 0 and why none does
    START = 10  # to workers: run a trial
    CONTINUE = 11
    SAVE = 12
    STOP = 13  # end this trial; the payload is whether the process stays
    NOTICE = 15  # to workers: what is announced about the machine; None: it stays
    QUIT = 14  # to idle workers: clean up and leave
    STARTED = 20  # from workers: up, restored, about to train
    REPORT = 21
    SAVED = 22
    EXITED = 23
    BEAT = 24
    IMPORTED = 25  # from workers: what a trial has imported; or the PRELOAD frame, if that is safe
    HELLO = 30  # over a network, from workers: identity, with proof
    SIGNAL = 31  # to workers on other machines: be sent this signal
    LEFT = 32  # over a network, from workers: the process exits with this code, without an ExitReport


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Return one frame; ValueError when the payload cannot have a length."""
    if len(payload) > _MAX_PAYLOAD:
        raise ValueError(f"{len(payload)} bytes are too many for one message")
    return HEADER.pack(len(payload), kind) + payload


def pack(value: Any, *, is_small: bool = False) -> bytes:  # noqa: ANN401 - anything plain
    """Return plain data as bytes, fewer but more slowly if `is_small`; ValueError when it is not plain."""
    return marshal.dumps(value, marshal.version if is_small else _MARSHAL)


def unpack(payload: bytes) -> Any:  # noqa: ANN401 - whatever was packed
    return marshal.loads(payload)


def is_plain(value: object) -> bool:
    """Return whether marshal restores exactly this: dicts, lists, tuples and scalars of the very types."""
    if type(value) is dict and SCALARS.issuperset(map(type, value.values())):
        return _KEYS.issuperset(map(type, value))  # the usual case, without a further call
    try:
        return _is_plain(value)
    except RecursionError:
        return False  # refers to itself, or is too deep for marshal: pickle can do that


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind is dict:
        if not _KEYS.issuperset(map(type, value)):  # type: ignore[call-overload]
            return False
        values = value.values()  # type: ignore[attr-defined]
        return SCALARS.issuperset(map(type, values)) or all(map(_is_plain, values))
    if kind is list or kind is tuple:
        return SCALARS.issuperset(map(type, value)) or all(map(_is_plain, value))  # type: ignore[call-overload]
    return kind in SCALARS


def pickled(value: object) -> bytes:
    """Pickle, by value where the code is not importable; raises what the pickler raises."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if b"__main__" not in data:
            return data
    except Exception:  # noqa: BLE001 - any object may refuse in any way; the second pickler decides
        pass
    from muster.base import by_value  # only here: most trials never need it

    return by_value.dumps(value)


def portable(value: object) -> Any:  # noqa: ANN401 - the value itself, or bytes
    """Return the value when it is plain, otherwise its pickle as bytes; `unpickle` undoes it."""
    return value if is_plain(value) else pickled(value)


def unpickle(value: Any) -> Any:  # noqa: ANN401
    """Undo `portable`; raise what unpickling raises."""
    return pickle.loads(value) if type(value) is bytes else value


class FrameReader:
    """Cuts a stream of bytes into frames."""

    __slots__ = ("_parts", "_size", "_wanted")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = _HEADER_SIZE

    @property
    def is_between_frames(self) -> bool:
        return not self._parts

    def feed(self, data: bytes) -> Sequence[Frame]:
        """Return the frames that are complete now."""
        if not self._parts:
            size = len(data)
            length, kind = HEADER.unpack_from(data) if size >= _HEADER_SIZE else (_MAX_PAYLOAD, 0)
            if size == length + _HEADER_SIZE:
                return ((kind, data[_HEADER_SIZE:]),)  # the usual case: one read, one frame
        self._parts.append(data)
        self._size += len(data)
        return self._cut() if self._size >= self._wanted else ()

    def _cut(self) -> list[Frame]:
        data = b"".join(self._parts)
        found: list[Frame] = []
        start, end = 0, len(data)
        self._wanted = _HEADER_SIZE
        while end - start >= _HEADER_SIZE:
            length, kind = HEADER.unpack_from(data, start)
            stop = start + _HEADER_SIZE + length
            if stop > end:
                self._wanted = _HEADER_SIZE + length
                break
            found.append((kind, data[start + _HEADER_SIZE : stop]))
            start = stop
        rest = data[start:]
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return found

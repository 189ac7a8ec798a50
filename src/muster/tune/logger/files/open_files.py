"""Appends to files of which only a few are open at a time; used by one writer only."""

from __future__ import annotations

import os
from collections import OrderedDict

from muster.host.atomic_write import atomic_write

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class OpenFiles:
    """An OpenFiles keeps descriptors by path; beyond the limit the least recently used one is closed."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def descriptor(self, path: str) -> int:
        """Returns a descriptor for appending; the file is made when it does not exist."""
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._open[path] = os.open(path, _FLAGS, 0o644)
            if len(self._open) > self._limit:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return descriptor

    def close(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def content(path: str) -> bytes:
    """Returns the content of a file; nothing when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def append_once(path: str, data: bytes) -> None:
    """Opens, appends and closes: for a file that will not be written again soon."""
    _write_once(path, _FLAGS, data)


def _write_once(path: str, flags: int, data: bytes) -> None:
    descriptor = os.open(path, flags, 0o644)
    try:
        append_all(descriptor, data)
    finally:
        os.close(descriptor)


def append_all(descriptor: int, data: bytes) -> None:
    """Appends everything or nothing: what a full disk accepted is cut off before the error is raised."""
    done = 0
    try:
        done = os.write(descriptor, data) if data else 0
        while done < len(data):
            done += os.write(descriptor, memoryview(data)[done:])
    except OSError:
        if done:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - done)
        raise


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file in one step."""
    atomic_write(path, data, mode=0o644)


def write_new(path: str, data: bytes) -> None:
    """Writes a file of a new directory, which has no readers yet, so no temporary file is needed."""
    _write_once(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), data)

"""Follow the files that a command writes results to: JSON lines, CSV, TensorBoard events, a JSON document.

A file may appear late, grow, be rewritten or replaced; what was there before the trial is not a result.
"""

from __future__ import annotations

import _socket
import csv
import glob
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from typing import Any

from muster.errors import CommandError
from muster.tune.commands.output import Way, as_value

_CHUNK = 1 << 20
_FIRST = 256  # bytes at the beginning by which a rewritten file is recognized
_EVENTS = "**/*tfevents*"


class GrowingFile:
    """Returns what was added to one file since the last look."""

    def __init__(self, path: str, *, skips: bool) -> None:
        """With `skips`, what the file has already does not count."""
        self.path = path
        self._inode, self.offset, self._first = 0, 0, b""
        if skips:
            for _ in self.added():
                pass

    def added(self) -> Iterator[bytes]:
        try:
            stream = open(self.path, "rb")  # noqa: SIM115 - closed below; only this call may fail
        except OSError:
            return  # it is about to be replaced
        with stream:
            seen = os.fstat(stream.fileno())
            first = stream.read(_FIRST)
            if seen.st_ino != self._inode or seen.st_size < self.offset:
                known = self._first[: len(first)]
                is_rewritten = bool(known) and first[: len(known)] == known
                if is_rewritten and seen.st_size < self.offset:
                    return  # it is being written again, and is not as long as it was yet
                self.offset = self.offset if is_rewritten else 0
            elif self._first and not first.startswith(self._first):
                self.offset = 0
            self._inode, self._first = seen.st_ino, first
            stream.seek(self.offset)
            while data := stream.read(_CHUNK):
                self.offset += len(data)
                yield data


class LineFile:
    """Follows JSON lines or a CSV file: the newest file that a pattern matches."""

    def __init__(self, kind: str, pattern: str) -> None:
        self._kind, self._pattern = kind, pattern
        self._old = {path: GrowingFile(path, skips=True) for path in glob.glob(pattern, recursive=True)}
        self._file: GrowingFile | None = None
        self._rest = b""
        self._header: list[str] | None = None

    def read(self, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
        matches = glob.glob(self._pattern, recursive=True)
        if not matches:
            return
        newest = max(matches, key=_modified)
        if self._file is None or self._file.path != newest:
            self._file = self._old.get(newest) or GrowingFile(newest, skips=False)
            self._rest = b""
            self._header = _first_row(newest) if self._file.offset and self._kind == "csv" else None
        for data in self._file.added():
            if self._file.offset == len(data):  # from the beginning
                self._rest, self._header = b"", None
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield from self._values(line)
        if is_last and self._rest:
            yield from self._values(self._rest)
            self._rest = b""

    def _values(self, line: bytes) -> Iterator[dict[str, Any]]:
        text = line.decode("utf-8", "replace").strip()
        if not text:
            return
        if self._kind == "jsonl":
            try:
                found = json.loads(text)
            except ValueError:
                return
            if isinstance(found, dict):
                yield found
            return
        cells = next(csv.reader([text]), [])
        if self._header is None:
            self._header = cells
        else:
            yield {
                name: as_value(cell) for name, cell in zip(self._header, cells, strict=False) if cell != ""
            }


def _first_row(path: str) -> list[str] | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return next(csv.reader(stream), None)
    except OSError:
        return None


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


class EventFiles:
    """Follows the TensorBoard events below a directory: one result per step, tags are the names."""

    def __init__(self, pattern: str) -> None:
        self._pattern = os.path.join(pattern, _EVENTS)
        self._files = {path: GrowingFile(path, skips=True) for path in self.paths()}
        self._rest: dict[str, bytes] = {}
        self._step: int | None = None
        self._values: dict[str, Any] = {}

    def paths(self) -> list[str]:
        return sorted(glob.glob(self._pattern, recursive=True))

    def read(self, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
        for path in self.paths():
            file = self._files.setdefault(path, GrowingFile(path, skips=False))
            for data in file.added():
                events, self._rest[path] = _records(self._rest.get(path, b"") + data)
                for step, values in map(_event, events):
                    if values and step != self._step:
                        yield from self._taken()
                        self._step = step
                    self._values.update(values)
        yield from self._taken()

    def _taken(self) -> Iterator[dict[str, Any]]:
        values, self._values = self._values, {}
        if values:
            yield {"step": self._step, **values}


def _records(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete records of an event file, and what is left: length, checksum, content, checksum."""
    found, at = [], 0
    while len(data) - at >= 12:
        (length,) = struct.unpack_from("<Q", data, at)
        if len(data) - at < length + 16:
            break
        found.append(data[at + 12 : at + 12 + length])
        at += length + 16
    return found, data[at:]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        else:
            size, at = _varint(message, at) if kind == 2 else (8 if kind == 1 else 4, at)
            yield key >> 3, message[at : at + size]
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at


def _event(record: bytes) -> tuple[int, dict[str, Any]]:
    """Return step and scalars of an event: `step` is its field 2, `summary` its field 5."""
    step, values = 0, {}
    for number, value in _fields(record):
        if number == 2:
            step = value
        elif number == 5:
            for _, scalar in _fields(value):
                fields = dict(_fields(scalar))
                found = _scalar(fields)
                if 1 in fields and found is not None:
                    values[fields[1].decode("utf-8", "replace")] = found
    return step, values


def _scalar(fields: dict[int, Any]) -> float | None:
    """Return a `simple_value` (field 2), or the one number of a tensor (field 8)."""
    if 2 in fields:
        return float(struct.unpack("<f", fields[2])[0])
    tensor = dict(_fields(fields.get(8, b"")))
    form = {1: "<f", 2: "<d"}.get(tensor.get(1, 0))
    content = tensor.get(4) or tensor.get(5) or tensor.get(6) or b""
    if form is None or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _dated(pattern: str) -> set[tuple[float, str]]:
    return {(_modified(path), path) for path in glob.glob(pattern, recursive=True)}


class JsonDocument:
    """Reads one JSON document when the command has ended; a `log_history` in it is a list of values."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._old = pattern, _dated(pattern)

    def read(self, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
        new = _dated(self._pattern) - self._old if is_last else set()
        if not new:
            return
        path = max(new)[1]
        try:
            with open(path, encoding="utf-8") as stream:
                found = json.load(stream)
        except (OSError, ValueError) as error:
            raise CommandError(f"{path}: is not JSON ({error})", fix="write one JSON object to it") from None
        if isinstance(found, dict):
            history = found.get("log_history")
            entries = history if isinstance(history, list) else []
            merged = {key: value for each in entries if isinstance(each, dict) for key, value in each.items()}
            yield {**merged, **{key: value for key, value in found.items() if key != "log_history"}}


def claim(path: str) -> _socket.socket:
    """Return what keeps other trials from following the same path until it is closed, or the process ends."""
    held = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    name = hashlib.sha256(path.encode()).hexdigest()[:32]
    try:
        if sys.platform.startswith("linux"):
            held.bind(f"\0muster-{os.getuid()}-{name}")  # a name without a file: the kernel removes it
    except OSError:
        held.close()
        fix = "put {trial_dir} or {trial_id} into the path"
        raise CommandError(f"{path}: another running trial reads its results there too", fix=fix) from None
    return held


ResultFile = LineFile | EventFiles | JsonDocument


def follow(way: Way, path: str) -> ResultFile:
    """Return what reads the files of a way."""
    if way.kind == "tensorboard":
        return EventFiles(path)
    return JsonDocument(path) if way.kind == "json" else LineFile(way.kind, path)

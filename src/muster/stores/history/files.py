"""Write and read the files of a history: a tail of JSON lines, now and then packed into a segment.

An entry is one line of the tail, written at once. When the tail has grown, it becomes one compressed block of
the newest segment. A segment begins with a whole entry, and the oldest are deleted. Nothing is flushed to the
disk: to lack the last seconds after a power failure is better than slow ticks.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from muster.base.clock import Clock
from muster.cluster.ports import TickResult
from muster.errors import HistoryDamaged, StoreError
from muster.stores.history.entries import FORMAT, HistoryEntry, from_line, to_line
from muster.stores.history.recorder import HistoryRecorder

TAIL = "tail.jsonl"
SUFFIX = ".history"
_MARK = b"muster history "
_HEADER = _MARK + b"%d\n" % FORMAT
_BLOCK = struct.Struct("<II")  # length of the packed block, its CRC-32
_MAX_BLOCK = 2**28
DAY_S = 86_400.0


@dataclass(frozen=True)
class HistoryLimits:
    """HistoryLimits bound a history; bytes are those of packed files."""

    block_bytes: int = 96 * 1024  # of lines, before they are packed
    segment_bytes: int = 1_000_000
    total_bytes: int = 30_000_000  # a month of a busy cluster
    day_bytes: int = 900_000


class HistoryWriter:
    """Appends the entries of one cluster; only the process that has the ledger makes one."""

    def __init__(self, folder: Path, limits: HistoryLimits | None = None) -> None:
        self._folder, self._limits = folder, limits or HistoryLimits()
        self._recorder = HistoryRecorder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._segment = _open_segment(folder, self._limits.segment_bytes)
        self._seq = 0
        self._newest_at: float | None = None  # of this writer's entries
        self._tail = folder / TAIL
        self._tail_bytes = 0
        self._room = RoomPerDay(self._limits.day_bytes)
        self._packed_share = 0.2  # of a line: measured with every block
        self._recover()

    def record(self, tick: TickResult) -> bool:
        """Append what has changed; returns whether anything was written."""
        at = tick.plan.at
        entry = self._recorder.entry(tick, self._seq + 1, self._room.pace_s(at))
        if entry is None:
            return False
        try:
            self._append(entry)
        except BaseException:
            self._recorder.start_over()  # what was to be written counts as written: say everything again
            raise
        return True

    def close(self, at: float) -> None:
        """Note the time of an orderly end, by a clock that may be behind that of the ticks."""
        if self._newest_at is not None:
            self._append(self._recorder.last(self._seq + 1, max(at, self._newest_at)))

    def _append(self, entry: HistoryEntry) -> None:
        line = to_line(entry)
        with open(self._tail, "ab", buffering=0) as file:
            file.write(line)
        self._seq, self._newest_at = entry.seq, entry.at
        self._tail_bytes += len(line)
        self._room.take(entry.at, len(line) * self._packed_share)
        if self._tail_bytes >= self._limits.block_bytes:
            self._pack()

    def _recover(self) -> None:
        """Take over the tail of an earlier monitor, without a torn last line; a damaged tail is dropped."""
        for path in segments(self._folder)[-1:]:
            with contextlib.suppress(StoreError):
                for entry in _read_segment(path, is_newest=True):
                    self._seq = max(self._seq, entry.seq)
        lines = self._tail.read_bytes() if self._tail.exists() else b""
        whole = lines[: lines.rfind(b"\n") + 1]
        try:
            for entry in _entries(whole, self._tail):
                self._seq = max(self._seq, entry.seq)
        except StoreError:
            whole = b""
        if len(whole) != len(lines):
            os.truncate(self._tail, len(whole))
        if whole:
            self._pack()

    def _pack(self) -> None:
        """Move the tail into the segment; a crash in between leaves entries twice, and readers skip one."""
        lines = self._tail.read_bytes()
        packed = zlib.compress(lines, 9)
        self._packed_share = max(0.02, len(packed) / max(1, len(lines)))
        with open(self._segment, "ab") as file:
            if not file.tell():
                file.write(_HEADER)
            file.write(_BLOCK.pack(len(packed), zlib.crc32(packed)) + packed)
            size = file.tell()
        os.truncate(self._tail, 0)
        self._tail_bytes = 0
        if size >= self._limits.segment_bytes:
            self._segment = _next_segment(self._folder)
            self._recorder.start_over()
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        found = segments(self._folder)
        total = sum(path.stat().st_size for path in found)
        for path in found[:-1]:
            if total <= self._limits.total_bytes - self._limits.segment_bytes:
                break
            total -= path.stat().st_size
            path.unlink()


class HistoryFile:
    """Keeps the compact history of one cluster; it is written after the tick's effects."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._writer: HistoryWriter | None = None

    def on_tick(self, tick: TickResult) -> None:
        if not tick.is_decided:
            return
        if self._writer is None:
            self._writer = HistoryWriter(self._folder)
        self._writer.record(tick)

    def close(self) -> None:
        """Note the end, so that a reader knows until when the cluster was watched."""
        if self._writer is not None:
            self._writer.close(self._clock.now())


class RoomPerDay:
    """Says how often an entry may be written, so that a day never takes more than its bytes."""

    def __init__(self, day_bytes: float) -> None:
        self._per_s = 0.9 * day_bytes / DAY_S
        self._most = self._left = 0.1 * day_bytes
        self._at: float | None = None

    def pace_s(self, at: float) -> float:
        """Return the seconds that must lie between two entries now."""
        self._refill(at)
        share = self._left / self._most
        if share > 0.5:
            return 0.0
        if share > 0.0:
            return 2.0 if share > 0.35 else 10.0 if share > 0.15 else 60.0
        return 60.0 - self._left / self._per_s

    def take(self, at: float, size: float) -> None:
        self._refill(at)
        self._left -= size

    def _refill(self, at: float) -> None:
        passed = max(0.0, at - self._at) if self._at is not None else 0.0
        self._at = at
        self._left = min(self._most, self._left + passed * self._per_s)


def segments(folder: Path) -> list[Path]:
    """Return the segments of a history, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_history(place: Path, on_damage: Callable[[str], None] | None = None) -> Iterator[HistoryEntry]:
    """Yield the entries of a history, oldest first: a directory, or one file of it.

    Raises StoreError when it is none. Where it is damaged, `on_damage` is called and the next file is read;
    without it, HistoryDamaged is raised.
    """
    if place.is_file():
        with open(place, "rb") as file:
            is_segment = not file.read(1).startswith(b"{")
        yield from _in_order(_read_segment(place, is_newest=True) if is_segment else read_tail(place))
        return
    if not place.is_dir():
        raise StoreError(f"{place}: no such file or directory", fix="name the history of a cluster")
    # The tail first: what is packed meanwhile is then there twice, and not missing.
    tail = list(read_tail(place / TAIL)) if (place / TAIL).is_file() else []
    found = segments(place)
    if not found and not tail:
        raise StoreError(
            f"{place}: no history in it", fix="the monitor of a cluster writes one, in its `history`"
        )
    yield from _in_order(_chained(found, tail, on_damage))


def _chained(
    found: list[Path], tail: list[HistoryEntry], on_damage: Callable[[str], None] | None
) -> Iterator[HistoryEntry]:
    for path in found:
        try:
            yield from _read_segment(path, is_newest=path == found[-1])
        except FileNotFoundError:
            continue  # the oldest may go meanwhile
        except HistoryDamaged as damage:
            if on_damage is None:
                raise
            on_damage(str(damage))
    yield from tail


def _in_order(entries: Iterator[HistoryEntry]) -> Iterator[HistoryEntry]:
    """Leave out what comes twice, and what stands before the first whole entry."""
    newest, is_begun = 0, False
    for entry in entries:
        is_begun = is_begun or entry.is_whole
        if entry.seq > newest and is_begun:
            newest = entry.seq
            yield entry


def read_tail(path: Path) -> Iterator[HistoryEntry]:
    """Yield the entries that are not packed yet, without a torn last one."""
    lines = path.read_bytes()
    yield from _entries(lines[: lines.rfind(b"\n") + 1], path)


def _read_segment(path: Path, *, is_newest: bool) -> Iterator[HistoryEntry]:
    for entry, _ in read_segment(path, is_newest=is_newest):
        yield entry


def read_segment(path: Path, start: int = 0, *, is_newest: bool) -> Iterator[tuple[HistoryEntry, int]]:
    """Yield the entries of a segment from byte `start` on, each with the byte behind its block.

    A torn block at the end of the newest segment is left out.
    """
    with open(path, "rb") as file:
        _check_header(path, file.readline(64))
        file.seek(max(start, file.tell()))
        while head := file.read(_BLOCK.size):
            at = file.tell() - len(head)
            length, check = _BLOCK.unpack(head) if len(head) == _BLOCK.size else (0, 0)
            packed = file.read(length) if 0 < length < _MAX_BLOCK else b""
            if len(head) < _BLOCK.size or 0 < len(packed) < length or (length and not packed):
                if is_newest and length < _MAX_BLOCK:
                    return  # torn by a crash
                raise _damaged(path, f"it ends within a block, at byte {at}")
            if zlib.crc32(packed) != check or not packed:
                raise _damaged(path, f"the block at byte {at} is not what was written")
            end = file.tell()
            for entry in _entries(zlib.decompress(packed), path):
                yield entry, end


def _check_header(path: Path, header: bytes) -> None:
    version = header[len(_MARK) :].strip()
    if not header.startswith(_MARK) or not version.isdigit():
        raise StoreError(
            f"{path}: not a history of a cluster", fix="name its directory `history`, or a file in it"
        )
    if int(version) > FORMAT:
        raise StoreError(
            f"{path}: a history of format {int(version)}, this muster reads up to {FORMAT}",
            fix="upgrade muster",
        )


def _entries(lines: bytes, path: Path) -> Iterator[HistoryEntry]:
    for line in lines.splitlines():
        try:
            entry = from_line(line)
        except (ValueError, KeyError) as error:
            if not line.startswith(b'{"seq":'):
                raise StoreError(
                    f"{path}: not a history of a cluster", fix="name its directory `history`"
                ) from error
            raise _damaged(path, str(error)) from error
        yield entry


def _open_segment(folder: Path, segment_bytes: int) -> Path:
    """Return the newest segment where it has room and can be continued, else the next one."""
    found = segments(folder)
    if not found:
        return _next_segment(folder)
    newest = found[-1]
    try:
        for _ in _read_segment(newest, is_newest=True):
            pass
        _cut_torn_block(newest)
    except StoreError:
        return _next_segment(folder)
    return newest if newest.stat().st_size < segment_bytes else _next_segment(folder)


def _cut_torn_block(path: Path) -> None:
    """Cut what a crash left of a block, so that the next one can be read."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.readline(64)
        end = file.tell()
        while len(head := file.read(_BLOCK.size)) == _BLOCK.size:
            file.seek(_BLOCK.unpack(head)[0], os.SEEK_CUR)
            if file.tell() > size:
                break
            end = file.tell()
        if end < size:
            file.truncate(end)


def _next_segment(folder: Path) -> Path:
    found = segments(folder)
    number = int(found[-1].stem) + 1 if found and found[-1].stem.isdigit() else len(found) + 1
    return folder / f"{number:08d}{SUFFIX}"


def _damaged(path: Path, what: str) -> HistoryDamaged:
    return HistoryDamaged(
        f"{path}: damaged ({what})", fix="what comes before it can be used, the rest is lost"
    )

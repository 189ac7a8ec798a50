"""Runs in another process: takes log rows in batches from the driver's LogWriter, and confirms each one.

It ends with the driver: by the kernel's signal on Linux, and everywhere when the connection or the parent is
gone. What it has not written by then is repaired by the driver's next start.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from typing import NoReturn

from muster.base.clock import SystemClock
from muster.base.framing import FrameReader, frame, pack
from muster.host.die_with_parent import die_with_parent
from muster.tune.logger.files.batch import Unpacker
from muster.tune.logger.files.trial_log import Entry
from muster.tune.logger.files.write import FileWriter, Problems

_CHUNK = 1 << 18
_ENOUGH = 4096  # entries taken together
_PARENT_CHECK_S = 1.0  # whether the driver is still there
_RETRY_S = 0.1


class WriterFrameKind:
    """A WriterFrameKind is the meaning of a frame."""

    WORK = 1  # to the process: a batch
    LAST = 2  # to it: no more comes
    READY = 10  # from it: it accepts work
    DONE = 11  # from it: how many batches are written, whether something is stuck, problems
    FINISHED = 12  # from it: the same, after the last


class _WriterServer:
    """A _WriterServer is the process's end of the connection."""

    def __init__(self, connection: socket.socket, parent_pid: int, open_limit: int) -> None:
        self._connection, self._parent_pid = connection, parent_pid
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._frames, self._unpacker = FrameReader(), Unpacker()
        self._problems = Problems()
        self._file_writer = FileWriter(SystemClock(), self._problems, open_limit)
        self._batches = 0
        self._is_last = False

    def serve(self) -> None:
        """Writes batches until the last one is written."""
        self._send(WriterFrameKind.READY, b"")
        was_stuck = False
        while not self._is_last:
            entries = self._taken()
            if entries is not None:
                self._file_writer.work(entries)
            self._file_writer.retry(now=self._is_last)
            if entries is not None or self._file_writer.is_stuck != was_stuck:
                self._answer()
            was_stuck = self._file_writer.is_stuck
        self._file_writer.close()

    def _taken(self) -> list[Entry] | None:
        """Waits and returns the entries that came; None when nothing came."""
        entries: list[Entry] | None = None
        wait_s = _RETRY_S if self._file_writer.is_stuck else _PARENT_CHECK_S
        while (entries is None or len(entries) < _ENOUGH) and not self._is_last:
            if not self._poll.poll(wait_s * 1000 if entries is None else 0):
                break
            entries = entries or []
            self._receive(entries)
        if os.getppid() != self._parent_pid:
            os._exit(1)  # another driver may be at work on these files
        return entries

    def _receive(self, entries: list[Entry]) -> None:
        data = self._connection.recv(_CHUNK)
        if not data:
            os._exit(1)
        for kind, payload in self._frames.feed(data):
            if kind == WriterFrameKind.LAST:
                self._is_last = True
            else:
                self._batches += 1
                entries += self._unpacker.entries(payload)

    def _answer(self) -> None:
        kind = WriterFrameKind.FINISHED if self._is_last else WriterFrameKind.DONE
        self._send(kind, pack((self._batches, self._file_writer.is_stuck, self._problems.take())))

    def _send(self, kind: int, payload: bytes) -> None:
        self._connection.sendall(frame(kind, payload))


def main() -> NoReturn:
    """Runs the process; the arguments are sys.path, a socket, the driver's pid and a limit of open files."""
    fd, parent_pid, open_limit = map(int, sys.argv[2:5])
    die_with_parent(parent_pid)
    _WriterServer(socket.socket(fileno=fd), parent_pid, open_limit).serve()
    os._exit(0)  # the files are closed; there is nothing else to clean up

"""Start the process that writes log files and sends entries to it, so that the driver encodes nothing.

Only LogWriter's thread uses it. Entries are kept until the process confirms that they are written.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import NoReturn

from muster.base.clock import Clock, SystemClock
from muster.base.framing import Frame, FrameReader, frame, pack, unpack
from muster.host import machine
from muster.host.die_with_parent import die_with_parent
from muster.host.framed_child import ChildGoneError, FramedChild, boot_command
from muster.tune.logger.files.batch import Packer, Unpacker
from muster.tune.logger.files.trial_log import Entry
from muster.tune.logger.files.write import FileWriter, Problems

_READ_BYTES = 1 << 18
_ENOUGH = 4096  # entries taken together
_PARENT_CHECK_S = 1.0  # whether the driver is still there
_RETRY_S = 0.1


class WriterFrameKind:
    """The meaning of a frame."""

    WORK = 1  # to the process: a batch
    LAST = 2  # to it: no more comes
    READY = 10  # from it: it accepts work
    DONE = 11  # from it: how many batches are written, whether something is stuck, problems
    FINISHED = 12  # from it: the same, after the last


class _WriterServer:
    """The process's end of the connection."""

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
        """Write batches until the last one is written."""
        self._connection.sendall(frame(WriterFrameKind.READY, b""))
        was_stuck = False
        while not self._is_last:
            entries = self._taken()
            if entries is not None:
                self._file_writer.work(entries)
            self._file_writer.retry(now=self._is_last)
            if entries is not None or self._file_writer.is_stuck != was_stuck:
                kind = WriterFrameKind.FINISHED if self._is_last else WriterFrameKind.DONE
                done = (self._batches, self._file_writer.is_stuck, self._problems.take())
                self._connection.sendall(frame(kind, pack(done)))
            was_stuck = self._file_writer.is_stuck
        self._file_writer.close()

    def _taken(self) -> list[Entry] | None:
        """Wait and return the entries that came; None when nothing came."""
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
        data = self._connection.recv(_READ_BYTES)
        if not data:
            os._exit(1)
        for kind, payload in self._frames.feed(data):
            if kind == WriterFrameKind.LAST:
                self._is_last = True
            else:
                self._batches += 1
                entries += self._unpacker.entries(payload)


def main() -> NoReturn:
    """Run the process; the arguments are sys.path, a socket, the driver's pid and a limit of open files."""
    fd, parent_pid, open_limit = map(int, sys.argv[2:5])
    die_with_parent(parent_pid)
    _WriterServer(socket.socket(fileno=fd), parent_pid, open_limit).serve()
    os._exit(0)  # the files are closed; there is nothing else to clean up


_LEAVE_S = 5.0
_PATIENCE_S = 2.0  # after waiting so long in vain it is checked whether the process is stopped


class WriterProcess(FramedChild):
    """Starts the process without waiting (see `is_ready`); OSError when that fails."""

    def __init__(self, problems: Problems, open_limit: int) -> None:
        module = "muster.tune.logger.files.writer_process"
        super().__init__(boot_command(module), open_limit, env=machine.child_environment({}))
        self._problems = problems
        self._packer = Packer(problems.add)
        self._kept: deque[tuple[int, Sequence[Entry]]] = deque()
        self._waited_s = 0.0  # for nothing, since the process last sent something
        self.is_ready = False
        self.is_stuck = False  # something could not be written, and is tried again there
        self.has_finished = False
        self.sent = 0  # batches
        self.done = 0  # of these: written, or stuck

    @property
    def kept(self) -> list[Entry]:
        """Return the entries that are not known to be in their files."""
        return [entry for _, entries in self._kept for entry in entries]

    def write(self, entries: Sequence[Entry]) -> None:
        """Send entries; wait while too much is on its way. ChildGoneError: they are kept."""
        self.sent += 1
        self._kept.append((self.sent, entries))
        try:
            payload = self._packer.packed(entries)
        except (ValueError, MemoryError) as error:
            raise ChildGoneError from error  # and so nothing more is sent there
        self._handle(self.send(WriterFrameKind.WORK, payload))

    def finish(self) -> None:
        """Wait until everything is written, or has been tried once more."""
        self._handle(self.send(WriterFrameKind.LAST))
        while not self.has_finished:
            self.listen(_PATIENCE_S)

    def listen(self, timeout_s: float) -> None:
        """Handle what the process sends; waits for that up to the timeout.

        A process that a signal has stopped is continued after a moment.
        """
        frames = self.wait(timeout_s)
        self._waited_s = 0.0 if frames else self._waited_s + timeout_s
        self._handle(frames)
        if self._waited_s >= _PATIENCE_S:
            self._waited_s = 0.0
            self.continue_if_stopped()

    def continue_if_stopped(self, *more: int) -> list[int]:
        stopped = super().continue_if_stopped(*more)
        for pid in stopped:
            what = f"the process that writes them (pid {pid}) was stopped by a signal and is continued"
            self._problems.add("log files", RuntimeError(what))
        return stopped

    def _handle(self, frames: Sequence[Frame]) -> None:
        for kind, payload in frames:
            if kind == WriterFrameKind.READY:
                self.is_ready = True
                continue
            self.done, self.is_stuck, problems = unpack(payload)
            self._problems.merge(problems)
            if not self.is_stuck:
                while self._kept and self._kept[0][0] <= self.done:
                    self._kept.popleft()
            self.has_finished = kind == WriterFrameKind.FINISHED

    def retire(self) -> str:
        """End the process, waits until it is gone, and returns how it ended."""
        if not self.is_ready and self.process.poll() is None:
            self.process.kill()  # no need to wait until it has started
        self.end(_LEAVE_S)
        code = self.process.returncode
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


logger = logging.getLogger(__name__)

_BOOT_S = 1.0  # rows wait so long for a process to come up, if no flush waits for them
_BOOT_POLL_S = 0.01
_BOOT_MOST = 8000  # rows, likewise
_LISTEN_S = 0.05


class Forwarder:
    """Sends entries to the process; only LogWriter's thread uses it, except `is_stuck`."""

    chunk = 256  # entries in a batch: the control thread waits while one is packed

    def __init__(self, file_writer: FileWriter, problems: Problems, clock: Clock, open_limit: int) -> None:
        self._file_writer, self._problems, self._clock = file_writer, problems, clock
        self._started_at = clock.monotonic()
        self._due: deque[tuple[int, threading.Event]] = deque()  # batch after which an event is set
        self.is_in_use = False
        self._remote: WriterProcess | None = None
        try:
            can_run = os.name == "posix" and bool(sys.executable)
            self._remote = WriterProcess(problems, open_limit) if can_run else None
        except OSError as error:
            logger.info("log files are written by a thread: no process could be started: %s", error)

    @property
    def is_stuck(self) -> bool:
        remote = self._remote
        return remote is not None and remote.is_stuck

    def wait(self, wake: threading.Event) -> bool:
        """Wait for the process; returns False when there is nothing to wait for."""
        if self._remote is None:
            return False
        if self._due and not wake.is_set():
            self._listen(_LISTEN_S)
        elif not self._remote.is_ready and self._is_early():
            wake.wait(_BOOT_POLL_S)
        else:
            return False
        return True

    def poll(self) -> bool:
        """Handle what the process has sent; returns whether the process is, from now on, in use."""
        self._listen(0)
        can_be_used = self._remote is not None and self._remote.is_ready and not self._file_writer.is_stuck
        if can_be_used and not self.is_in_use:
            self._file_writer.close()
            self.is_in_use = True
        return self.is_in_use

    def is_worth_waiting_for(self, waiting: int) -> bool:
        is_coming = self._remote is not None and not self._remote.is_ready
        return is_coming and waiting < _BOOT_MOST and self._is_early()

    def _is_early(self) -> bool:
        return self._clock.monotonic() - self._started_at < _BOOT_S

    def forward(self, entries: Sequence[Entry], tickets: Sequence[threading.Event]) -> None:
        remote = self._remote
        assert remote is not None  # because it is in use
        batch = remote.sent + bool(entries)
        self._due.extend((batch, ticket) for ticket in tickets)
        try:
            if entries:
                remote.write(entries)
        except ChildGoneError:
            self._continue_without_process(is_sudden=True)
        self._release_waiters()

    def finish(self) -> None:
        """Wait until everything is written, or stuck in the thread, and the process has ended."""
        remote = self._remote
        if remote is None:
            return
        try:
            if self.is_in_use:
                remote.finish()
        except ChildGoneError:
            self._continue_without_process(is_sudden=True)
        else:
            self._continue_without_process(is_sudden=False)

    def _listen(self, timeout_s: float) -> None:
        if self._remote is None:
            return
        try:
            self._remote.listen(timeout_s)
        except ChildGoneError:
            self._continue_without_process(is_sudden=True)
        self._release_waiters()

    def _continue_without_process(self, *, is_sudden: bool) -> None:
        remote, self._remote = self._remote, None
        assert remote is not None
        self.is_in_use = False
        how = remote.retire()
        if is_sudden:
            what = f"the process that wrote them {how}; the driver continues with that itself"
            self._problems.add("log files", RuntimeError(what))
        if remote.kept:
            self._file_writer.take_back(remote.kept)
        self._release_waiters()

    def _release_waiters(self) -> None:
        done = self._remote.done if self._remote is not None else float("inf")
        while self._due and self._due[0][0] <= done:
            self._due.popleft()[1].set()

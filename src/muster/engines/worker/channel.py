"""WorkerChannel is the worker's end of its two pipes: blocking frames, and heartbeats in long trials."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn

from muster.base.framing import Frame, FrameKind, FrameReader, frame
from muster.engines.worker.handle import SpinThenWait

_CHUNK = 1 << 16
_BEAT = frame(FrameKind.BEAT)
_CONTINUE = frame(FrameKind.CONTINUE)


class WorkerChannel:
    """Carries frames to and from the driver."""

    def __init__(self, *, beat_s: float, has_reaper: bool = True) -> None:
        self._beat_s = beat_s
        self.has_reaper = has_reaper  # a process of muster is above, and ends what this one leaves
        self.is_watched = False
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._sending = threading.Lock()
        self.spinner = SpinThenWait()
        self._polls: dict[int, Callable[[float], object]] = {}

    def expect(self, read_fd: int) -> None:
        """Prepare a poller for this descriptor, so that a fork which connects to it has less to do."""
        if read_fd not in self._polls:
            answers = select.poll()
            answers.register(read_fd, select.POLLIN)
            self._polls[read_fd] = answers.poll

    def connect(self, read_fd: int, write_fd: int, parent_pid: int) -> None:
        """Take this end of the pipes, before anything else is called."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._parent_pid = parent_pid
        self.expect(read_fd)
        self._poll = self._polls[read_fd]

    def receive(self) -> Frame:
        """Return the next frame; when the driver is gone, this process ends with everything it started."""
        frames = self._frames
        while not frames:
            data = os.read(self._read_fd, _CHUNK)
            if not data:
                end_group()
            frames.extend(self._reader.feed(data))
        return frames.popleft()

    def wait_for_continue(self) -> bool:
        """Wait for the answer to a report; return False when `receive` must be called for it."""
        if self._frames:
            return False
        self.spinner.poll(self._poll)
        data = os.read(self._read_fd, _CHUNK)
        if data == _CONTINUE and self._reader.is_between_frames:
            return True
        if not data:
            end_group()
        self._frames.extend(self._reader.feed(data))
        return False

    def send(self, data: bytes) -> None:
        with self._sending:
            while (sent := os.write(self._write_fd, data)) < len(data):
                data = data[sent:]

    @property
    def read_fd(self) -> int:
        return self._read_fd

    def arrived(self) -> Iterator[Frame]:
        """Take the frames that have arrived, and do not wait for more."""
        self._read_arrived()
        while self._frames:
            yield self._frames.popleft()

    def has_received(self, kind: int) -> bool:
        """Return whether a frame of this kind has arrived; takes nothing away and does not wait."""
        self._read_arrived()
        return any(known == kind for known, _ in self._frames)

    def _read_arrived(self) -> None:
        size = _CHUNK
        while size == _CHUNK and self._poll(0):  # a short read has emptied the pipe
            data = os.read(self._read_fd, _CHUNK)
            if not data:
                end_group()
            self._frames.extend(self._reader.feed(data))
            size = len(data)

    def take(self, kind: int) -> list[bytes]:
        """Return the payloads of the frames of this kind that have arrived, and does not wait."""
        if not self.has_received(kind):
            return []
        found = [payload for known, payload in self._frames if known == kind]
        self._frames = deque(each for each in self._frames if each[0] != kind)
        return found

    def watch(self) -> None:
        """Start the thread that sends heartbeats, and ends this process when the driver has ended.

        A thread makes a new process half as expensive again, so forked workers start it in trials that last.
        """
        self.is_watched = True
        self.send(_BEAT)
        threading.Thread(target=self._beat, name="muster-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        hangup = select.poll()
        hangup.register(self._write_fd, 0)  # 0: only errors, that is, the driver closed its end
        while True:
            if hangup.poll(self._beat_s * 1000) or os.getppid() != self._parent_pid:
                end_group()
            try:
                self.send(_BEAT)
            except OSError:
                end_group()


def end_group() -> NoReturn:
    """End this process and everything it started, at once."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)

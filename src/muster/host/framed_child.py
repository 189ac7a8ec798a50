"""Start a helper process and exchanges frames with it over a socket, until one of the two is gone.

The arguments of the process are the command, the number of its socket, this process's id, and further ones.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from muster.base.framing import Frame, FrameReader, frame
from muster.host import machine

_CHUNK = 1 << 16
_PATIENCE_S = 2.0  # after waiting so long in vain it is checked whether the process is stopped


class ChildGoneError(Exception):
    """The process has ended, or has not answered within its time."""


def boot_command(module: str) -> list[str]:
    """Return the arguments of Python that run `main` of a module with the `sys.path` of this process."""
    path = "\n".join(entry or machine.working_directory() for entry in sys.path)
    return ["-c", machine.boot_code(module), path]


class FramedChild:
    """Owns one process; it starts without being waited for. OSError when that fails."""

    def __init__(
        self,
        command: Sequence[str],
        *arguments: object,
        env: Mapping[str, str],
        output: IO[bytes] | int | None = subprocess.DEVNULL,
        cwd: Path | None = None,
    ) -> None:
        self.socket, theirs = socket.socketpair()
        with ExitStack() as stack, theirs:
            stack.callback(self.socket.close)
            words = map(str, (theirs.fileno(), os.getpid(), *arguments))
            self.process = subprocess.Popen(
                [sys.executable, *command, *words],
                pass_fds=[theirs.fileno()],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is this process's to handle
            )
            stack.pop_all()
        self.socket.setblocking(False)
        self._frames = FrameReader()
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)

    @property
    def pid(self) -> int:
        return self.process.pid

    def take(self) -> Sequence[Frame]:
        """Return the frames that have come."""
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return ()
        except OSError as error:
            raise ChildGoneError(str(error)) from error
        if not data:
            raise ChildGoneError("it has ended")
        return self._frames.feed(data)

    def wait(self, timeout_s: float) -> Sequence[Frame]:
        """Return the frames that have come; waits for the first up to the timeout."""
        return self.take() if self._poll.poll(timeout_s * 1000) else ()

    def receive(self, timeout_s: float) -> Sequence[Frame]:
        """Return the next frames; ChildGoneError when none comes in time."""
        frames: Sequence[Frame] = ()
        while not frames:
            if not self._poll.poll(timeout_s * 1000):
                raise ChildGoneError(f"it did not answer within {timeout_s:.0f} s")
            frames = self.take()
        return frames

    def send(self, kind: int, payload: bytes = b"") -> list[Frame]:
        """Send a frame, waiting for room; return what has come meanwhile."""
        data = memoryview(frame(kind, payload))
        came: list[Frame] = []
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                self._poll.modify(self.socket, select.POLLIN | select.POLLOUT)
                events = self._poll.poll(_PATIENCE_S * 1000)
                self._poll.modify(self.socket, select.POLLIN)
                if any(event & ~select.POLLOUT for _, event in events):
                    came += self.take()
                elif not events:
                    self.continue_if_stopped()
            except OSError as error:
                raise ChildGoneError(str(error)) from error
        return came

    def continue_if_stopped(self, *more: int) -> list[int]:
        """Send SIGCONT to the process, and `more`, if a signal has stopped it; returns whose it did."""
        from muster.host import processes  # here, as the fork server loads this module too

        found = [processes.find(pid) for pid in (self.pid, *more) if pid]
        stopped = [each for each in found if each is not None and each.is_stopped]
        processes.send(stopped, signal.SIGCONT)
        return [each.pid for each in stopped]

    def end(self, timeout_s: float) -> bool:
        """Wait for the end after the socket was closed; returns False when the process had to be killed."""
        self.socket.close()
        try:
            self.process.wait(_seconds_left(self.pid, timeout_s))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


def _seconds_left(pid: int, timeout_s: float) -> float:
    """Wait for the end of a child; return how long `Popen.wait`, which looks now and then, may wait yet."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return timeout_s  # not on this system
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll(timeout_s * 1000)
    os.close(fd)
    return 0.0

"""ForkServerClient is the driver's end of the fork server: asks for children, learns how they ended.

LocalEngine owns it; no call blocks. When the server itself dies, `take` returns None and the owner makes
another.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from muster.base.framing import Frame, FrameKind, FrameReader, frame, pack
from muster.host import machine

_CHUNK = 1 << 16
_MOST_IN_FLIGHT = 128  # descriptors on their way: the kernel limits them per user, over all experiments
_GONE = (BrokenPipeError, ConnectionResetError)
_MARK = "MUSTER_FORK_SERVER"  # in the environment of everything that a fork server starts


def _seconds_left(pid: int, timeout_s: float) -> float:
    """Waits for the end of a child; returns how long `Popen.wait`, which looks now and then, may wait yet."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return timeout_s  # not on this system
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll(timeout_s * 1000)
    os.close(fd)
    return 0.0


class ForkServerClient:
    """A ForkServerClient owns one fork server process."""

    def __init__(self, *, warm: bool, beat_s: float, env: Mapping[str, str], quiet: bool) -> None:
        ours, theirs = socket.socketpair()
        path = "\n".join(entry or machine.working_directory() for entry in sys.path)
        silence = subprocess.DEVNULL if quiet else None
        self._mark = os.urandom(8).hex()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    machine.boot_code("local.fork_server_main"),
                    path,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                env=machine.child_environment({**env, _MARK: self._mark}),
                stdin=subprocess.DEVNULL,
                stdout=silence,
                stderr=silence,
                start_new_session=True,  # Ctrl-C in the terminal is the driver's to handle
            )
        ours.setblocking(False)
        self._control = ours
        self._frames = FrameReader()
        self._outbox: deque[tuple[bytes | memoryview, Sequence[int]]] = deque()
        self._in_flight: deque[int] = deque()  # descriptors of each request that was sent and not answered
        self.waits_to_write = False  # until the fork server has read
        self.refusal: OSError | None = None  # the kernel takes no message now; `flush` tries again
        address = (machine.hostname(), machine.node_ip())
        self._owner_pid = os.getpid()
        self.forks = False  # until it is known
        self.forking_pid = 0  # of the process that forks, when that is another one
        self.send(frame(FrameKind.INIT, pack((list(sys.argv), address, warm, beat_s))))

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._control.fileno()

    def spawn(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Asks for children; returns the driver's ends of their pipes, which may be written to at once."""
        ours: list[tuple[int, int]] = []
        theirs: list[int] = []
        for _ in tokens:
            from_child, child_writes = os.pipe()
            child_reads, to_child = os.pipe()
            os.set_blocking(from_child, False)
            os.set_blocking(to_child, False)
            ours.append((from_child, to_child))
            theirs += (child_reads, child_writes)
        self.send(frame(FrameKind.FORK, pack(list(tokens))), theirs)
        return ours

    def signal(self, token: int, number: int, *, whole_group: bool = False) -> None:
        """Signals a child; one that has ended is ignored."""
        self.send(frame(FrameKind.KILL, pack((token, int(number), whole_group))))

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        self._outbox.append((data, fds))
        self.flush()

    def flush(self) -> None:
        """Sends what fits, as long as not too many descriptors are on their way."""
        self.waits_to_write, self.refusal = False, None
        while self._outbox:
            data, fds = self._outbox[0]
            if fds and self._in_flight and sum(self._in_flight) + len(fds) > _MOST_IN_FLIGHT:
                return  # `take` continues, when children have them
            try:
                sent = socket.send_fds(self._control, [data], fds) if fds else self._control.send(data)
            except BlockingIOError:
                self.waits_to_write = True
                return
            except _GONE:
                sent = len(data)  # `take` reports it to the owner
            except OSError as error:  # ETOOMANYREFS, ENOBUFS: another program of this user may be the cause
                self.refusal = error
                return
            if fds:
                self._in_flight.append(len(fds))
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._outbox[0] = (memoryview(data)[sent:], ())
            else:
                self._outbox.popleft()

    def take(self) -> Sequence[Frame] | None:
        """Returns the messages of the fork server; None when it is gone."""
        messages: Sequence[Frame] = ()
        try:
            data = self._control.recv(_CHUNK)
            if not data:
                return None
            messages = self._frames.feed(data)
        except BlockingIOError:
            pass  # it has read something: more can be sent
        except OSError:
            return None
        for _ in [kind for kind, _ in messages if kind == FrameKind.CHILD]:
            self._in_flight.popleft()
        self.flush()
        return messages

    def continue_if_stopped(self) -> list[int]:
        """Sends SIGCONT to the processes of the fork server that were stopped; returns their pids."""
        from muster.host import processes  # here, as the fork server loads this module too

        found = [processes.find(pid) for pid in (self.pid, self.forking_pid) if pid]
        stopped = [each for each in found if each is not None and each.is_stopped]
        processes.send(stopped, signal.SIGCONT)
        return [each.pid for each in stopped]

    def end_leftovers(self) -> None:
        """Kills whatever a fork server that was killed has left, and is known by its environment (Linux)."""
        from muster.host import processes

        if sys.platform.startswith("linux"):
            entry = f"{_MARK}={self._mark}"
            left = [each for each in processes.table() if processes.was_started_with(each.pid, entry)]
            processes.send(left, signal.SIGKILL)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Ends the fork server and all its children; returns False when it had to be killed."""
        self._control.close()
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        if os.getpid() != self._owner_pid:
            return True  # a fork of the driver may drop its copy, but must not end processes
        for pid in (self.pid, self.forking_pid) if self._process.poll() is None else ():
            if pid:
                with contextlib.suppress(ProcessLookupError):  # it may end at any moment
                    os.kill(pid, signal.SIGCONT)  # a stopped one would not see that the driver has closed
        try:
            self._process.wait(_seconds_left(self.pid, timeout_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.end_leftovers()
            return False
        return True

"""ForkServerClient is the driver's end of the fork server: asks for children, learns how they ended.

LocalEngine owns it; no call blocks. When the server itself dies, `take` raises ChildGoneError and the owner
makes another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from muster.base.framing import Frame, FrameKind, frame, pack
from muster.host import machine
from muster.host.framed_child import FramedChild, boot_command

_MOST_IN_FLIGHT = 128  # descriptors on their way: the kernel limits them per user, over all experiments
_GONE = (BrokenPipeError, ConnectionResetError)
_MARK = "MUSTER_FORK_SERVER"  # in the environment of everything that a fork server starts


class ForkServerClient(FramedChild):
    """Owns one fork server process."""

    def __init__(self, *, warm: bool, beat_s: float, env: Mapping[str, str], quiet: bool) -> None:
        self._mark = os.urandom(8).hex()
        super().__init__(
            boot_command("muster.engines.local.fork_server_main"),
            env=machine.child_environment({**env, _MARK: self._mark}),
            output=subprocess.DEVNULL if quiet else None,
        )
        self._outbox: deque[tuple[bytes | memoryview, Sequence[int]]] = deque()
        self._in_flight: deque[int] = deque()  # descriptors of each request that was sent and not answered
        self.waits_to_write = False  # until the fork server has read
        self.refusal: OSError | None = None  # the kernel takes no message now; `flush` tries again
        address = (machine.hostname(), machine.node_ip())
        self._owner_pid = os.getpid()
        self.forks = False  # until it is known
        self.forking_pid = 0  # of the process that forks, when that is another one
        self.post(frame(FrameKind.INIT, pack((list(sys.argv), address, warm, beat_s))))

    def spawn(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Ask for children; return the driver's ends of their pipes, which may be written to at once."""
        ours: list[tuple[int, int]] = []
        theirs: list[int] = []
        for _ in tokens:
            from_child, child_writes = os.pipe()
            child_reads, to_child = os.pipe()
            os.set_blocking(from_child, False)
            os.set_blocking(to_child, False)
            ours.append((from_child, to_child))
            theirs += (child_reads, child_writes)
        self.post(frame(FrameKind.FORK, pack(list(tokens))), theirs)
        return ours

    def signal(self, token: int, number: int, *, whole_group: bool = False) -> None:
        """Signal a child; one that has ended is ignored."""
        self.post(frame(FrameKind.KILL, pack((token, int(number), whole_group))))

    def post(self, data: bytes, fds: Sequence[int] = ()) -> None:
        self._outbox.append((data, fds))
        self.flush()

    def flush(self) -> None:
        """Send what fits, as long as not too many descriptors are on their way."""
        self.waits_to_write, self.refusal = False, None
        while self._outbox:
            data, fds = self._outbox[0]
            if fds and self._in_flight and sum(self._in_flight) + len(fds) > _MOST_IN_FLIGHT:
                return  # `take` continues, when children have them
            try:
                sent = socket.send_fds(self.socket, [data], fds) if fds else self.socket.send(data)
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

    def take(self) -> Sequence[Frame]:
        """Return the messages of the fork server; it has read something, so that more can be sent."""
        messages = super().take()
        for _ in [kind for kind, _ in messages if kind == FrameKind.CHILD]:
            self._in_flight.popleft()
        self.flush()
        return messages

    def end_leftovers(self) -> None:
        """Kill whatever a fork server that was killed has left, and is known by its environment (Linux)."""
        from muster.host import processes

        if sys.platform.startswith("linux"):
            entry = f"{_MARK}={self._mark}"
            left = [each for each in processes.table() if processes.was_started_with(each.pid, entry)]
            processes.send(left, signal.SIGKILL)

    def close(self, timeout_s: float = 5.0) -> bool:
        """End the fork server and all its children; return False when it had to be killed."""
        self.socket.close()
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        if os.getpid() != self._owner_pid:
            return True  # a fork of the driver may drop its copy, but must not end processes
        for pid in (self.pid, self.forking_pid) if self.process.poll() is None else ():
            if pid:
                with contextlib.suppress(ProcessLookupError):  # it may end at any moment
                    os.kill(pid, signal.SIGCONT)  # a stopped one would not see that the driver has closed
        has_left = self.end(timeout_s)
        if not has_left:
            self.end_leftovers()
        return has_left

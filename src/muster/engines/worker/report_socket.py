"""Receive results from the processes that a trial started: one JSON object per line of a Unix socket.

A function trial opens its socket, with a thread, when it starts its first process; the runner of a command
serves it in its own loop. `muster.session.child` is the other side.
"""

from __future__ import annotations

import _socket
import atexit
import contextlib
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from muster.base.untrusted import message_text
from muster.engines.worker.handle import Poller
from muster.engines.worker.session import TrialSession
from muster.session.checkpoint import Checkpoint
from muster.session.session import TrialStopped

MAX_LINE = 16_000_000
STALE = 100  # sockets of killed processes, before they are looked for
_CHUNK = 1 << 16
_PEERCRED = getattr(_socket, "SO_PEERCRED", None)


class ReporterLink:
    """One process that reports."""

    def __init__(self, connected: _socket.socket) -> None:
        connected.setblocking(False)
        self.socket, self.buffer, self.is_open = connected, bytearray(), True
        self.pid, self.is_allowed = 0, True  # without the option, the directory admits nobody else
        if _PEERCRED is not None:
            peer = connected.getsockopt(_socket.SOL_SOCKET, _PEERCRED, 12)
            self.pid, uid, _ = struct.unpack("iII", peer)
            self.is_allowed = uid in (os.getuid(), 0)

    def has_ended(self) -> bool:
        """Return whether the process has closed its end; the poller may report that later."""
        try:
            return not self.is_open or not self.socket.recv(1, _socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def answer(self, text: str) -> None:
        """Send one line; a process that does not read its answers loses them."""
        with contextlib.suppress(OSError):
            self.socket.send(text.replace("\n", " ").encode("utf-8", "replace") + b"\n")


class ReportRequest(NamedTuple):
    """One line of a process, which is to be answered: a question or a result."""

    connection: ReporterLink
    question: str | None
    metrics: dict[str, Any]
    checkpoint: str | None = None
    has_rank: bool = False


class ReportSocket:
    """Listens at a path until it is closed; readiness is the poller's business."""

    def __init__(self, path: str, poller: Poller) -> None:
        self.path, self._poller = path, poller
        self._connections: dict[int, ReporterLink] = {}
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        seen = os.stat(folder)
        if seen.st_uid != os.getuid() or seen.st_mode & 0o077:
            raise PermissionError(f"{folder}: must belong to this user alone; run `chmod 700 {folder}`")
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        os.set_inheritable(self._socket.fileno(), False)
        self._socket.bind(f"{path}~")
        self._socket.listen(128)
        self._socket.setblocking(False)
        os.rename(f"{path}~", path)  # whoever finds it can connect
        poller.add_reader(self._socket.fileno())
        _remove_stale(folder)

    def take(self, fd: int) -> Iterator[ReportRequest]:
        """Yield what has come at a ready descriptor; nothing when it is not one of this socket's."""
        if fd == self._socket.fileno():
            self._accept()
        elif fd in self._connections:
            yield from self._read(fd, self._connections[fd])

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                number, _ = self._socket._accept()  # type: ignore[attr-defined]  # what `socket.accept` calls
                connection = ReporterLink(_socket.socket(fileno=number))
                if connection.is_allowed:
                    self._connections[number] = connection
                    self._poller.add_reader(number)
                else:
                    connection.socket.close()

    def _read(self, fd: int, connection: ReporterLink) -> Iterator[ReportRequest]:
        try:
            data = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        buffer = connection.buffer
        buffer += data
        if b"\n" in data or not data:  # without a newline at the end: the last line of a shell's `printf`
            *lines, buffer[:] = bytes(buffer + (b"" if data else b"\n")).split(b"\n")
            for line in lines:
                if line.strip() and (request := _request(connection, line)) is not None:
                    yield request
        if not data or len(buffer) > MAX_LINE:
            if data:
                connection.answer(f"e a line has more than {MAX_LINE // 10**6} MB; use a checkpoint")
            self._drop(fd, connection)

    def _drop(self, fd: int, connection: ReporterLink) -> None:
        connection.is_open = False
        self._poller.forget(fd)
        del self._connections[fd]
        connection.socket.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        for fd, connection in list(self._connections.items()):
            self._drop(fd, connection)
        self._poller.forget(self._socket.fileno())
        self._socket.close()


def _request(connection: ReporterLink, line: bytes) -> ReportRequest | None:
    try:
        body = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        connection.answer(f"e not a line of JSON ({error}); send one object per line")
        return None
    if not isinstance(body, dict):
        connection.answer('e not a JSON object; send {"loss": 0.3}')
        return None
    if "ask" in body:
        return ReportRequest(connection, str(body["ask"]), {})
    if isinstance(body.get("metrics"), dict):
        return ReportRequest(connection, None, body["metrics"], body.get("checkpoint"), "rank" in body)
    return ReportRequest(connection, None, body)  # the line is the result itself


def _remove_stale(folder: str) -> None:
    """Remove the sockets of killed processes: nobody listens there."""
    names = os.listdir(folder)
    for name in names if len(names) > STALE else ():
        probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            probe.connect(os.path.join(folder, name))
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
        except OSError:
            continue
        finally:
            probe.close()


class Reporters:
    """Decides which process may report for a trial, and answers what processes ask."""

    def __init__(self, session: TrialSession) -> None:
        self.session = session
        self._owner: ReporterLink | None = None
        self.received = 0  # reports of children; the trial's process made all others

    def answer(self, request: ReportRequest) -> str:
        """Return the answer to a question, or why a process cannot report; "" when it may."""
        if request.question is not None:
            return self._reply(request.question)
        if getattr(self.session, "stopped", False):
            return "s"
        connection, owner = request.connection, self._owner
        if request.has_rank:
            return ""
        is_taken = owner is not None and owner is not connection and not owner.has_ended()
        own = self.session.progress.iterations_since_restore > self.received
        if is_taken or own:
            pid = os.getpid() if own or owner is None else owner.pid
            return (
                f"e process {pid} reports for this trial already, so process {connection.pid} cannot; "
                "report from one of them, or set RANK in each"
            )
        self._owner = connection
        return ""

    def _reply(self, question: str) -> str:
        if question == "context":
            return json.dumps(self.session.describe())
        if question == "notice":
            notice = self.session.get_preemption_info()  # a tuple
            return json.dumps({"notice": notice, "should_checkpoint": self.session.should_checkpoint()})
        return f"e {question!r} cannot be asked; ask context or notice"


class ReportThread:
    """Serves the socket of a function trial, whose own thread is in the user's code."""

    def __init__(self, path: str, session_of_trial: Callable[[], TrialSession | None]) -> None:
        self._poller = Poller()
        self._socket = ReportSocket(path, self._poller)
        self._session_of_trial = session_of_trial
        self._reporters: Reporters | None = None
        self._is_running = True
        atexit.register(self._unlink, os.getpid())
        threading.Thread(target=self._run, name="muster-reports", daemon=True).start()

    def _unlink(self, pid: int) -> None:
        if pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._socket.path)

    def close(self) -> None:
        """End the thread, and with it all connections."""
        self._is_running = False
        with contextlib.closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)) as waker:
            waker.connect(self._socket.path)

    def _run(self) -> None:
        while self._is_running:
            for fd, _ in self._poller.poll(3600.0):
                for request in self._socket.take(fd):
                    request.connection.answer(self._reply(request))
        self._socket.close()

    def _reply(self, request: ReportRequest) -> str:
        session = self._session_of_trial()
        if session is None:
            return "s"
        if self._reporters is None or self._reporters.session is not session:
            self._reporters = Reporters(session)
        if answer := self._reporters.answer(request):
            return answer
        try:
            saved = None if request.checkpoint is None else Checkpoint(request.checkpoint)
            self._reporters.received += 1
            session.report(request.metrics, saved)
        except TrialStopped:
            return "s"
        except Exception as error:  # noqa: BLE001 - the process that reported raises it
            return f"e {message_text(error)}"
        return "c"

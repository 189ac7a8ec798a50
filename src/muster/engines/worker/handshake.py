"""Connect driver and trials over TCP: both prove that they know the same key, which Ray or a file carried.

Nothing that a stranger sends is decoded before that. Both ends of a connection use this module; it does not
know Ray.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock, SystemClock
from muster.base.framing import FrameKind, FrameReader, frame, pack, unpack
from muster.engines.worker.handle import Poller

if TYPE_CHECKING:
    from muster.engines.ray.tls import TlsTunnel

NONCE = 16
PROOF = 32
MOST_HELLO = 1 << 16  # a stranger gets no more memory than this
CONNECT_S = 10.0
_AGAIN_S = (0.1, 0.5, 2.0)  # a driver with too many callers may have hung up

Address = tuple[str, int]


class DriverUnreachable(ConnectionError):
    """None of the driver's addresses leads to the driver from here."""


def proof(key: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, role + nonce, "sha256")


def call(
    addresses: Sequence[Address], key: bytes, hello: dict[str, Any], tls: TlsTunnel | None = None
) -> socket.socket:
    """Connect to the driver and check its proof; DriverUnreachable names all that was tried."""
    problems: list[str] = []
    for host, port in addresses:
        for wait_s in (*_AGAIN_S, None):
            try:
                return _call((host, port), key, hello, tls)
            except OSError as error:
                if wait_s is None or not isinstance(error, ConnectionResetError):
                    problems.append(f"{host}:{port}: {error}")
                    break
                SystemClock().sleep(wait_s)
    raise DriverUnreachable("; ".join(problems))


def _call(address: Address, key: bytes, hello: dict[str, Any], tls: TlsTunnel | None) -> socket.socket:
    connection = socket.create_connection(address, timeout=CONNECT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        encrypted = None if tls is None else tls.greet(connection)
        connection = encrypted or connection
        challenge, nonce = _exactly(connection, NONCE), os.urandom(NONCE)
        connection.sendall(frame(FrameKind.HELLO, proof(key, b"actor", challenge) + nonce + pack(hello)))
        if not hmac.compare_digest(_exactly(connection, PROOF), proof(key, b"driver", nonce)):
            raise ConnectionRefusedError("the process that answers there is not the driver")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection if tls is None or encrypted is None else tls.carry(encrypted)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("the other end hung up")
        data += more
    return data


class PendingConnection:
    """The driver's side of a connection that has proven nothing yet."""

    def __init__(self, connection: socket.socket, key: bytes, *, now: float) -> None:
        self.connection = connection
        self.since = now
        self._key = key
        self._challenge = os.urandom(NONCE)
        self._frames = FrameReader()
        self._size = 0
        connection.setblocking(False)
        connection.send(self._challenge)  # the buffer of a new connection takes it

    def read(self) -> dict[str, Any] | None:
        """Return the proven hello; None while it is incomplete; ConnectionError means to hang up."""
        try:
            data = self.connection.recv(MOST_HELLO)
        except BlockingIOError:
            return None
        self._size += len(data)
        if not data or self._size > MOST_HELLO:
            raise ConnectionResetError("no hello")
        found = self._frames.feed(data)
        return self._checked(*found[0]) if found else None

    def _checked(self, kind: int, payload: bytes) -> dict[str, Any]:
        given, nonce, body = payload[:PROOF], payload[PROOF : PROOF + NONCE], payload[PROOF + NONCE :]
        if kind != FrameKind.HELLO or not hmac.compare_digest(
            given, proof(self._key, b"actor", self._challenge)
        ):
            raise ConnectionRefusedError("a caller that does not know the key")
        self.connection.send(proof(self._key, b"driver", nonce))
        hello: dict[str, Any] = unpack(body)
        return hello


Hello = dict[str, Any]
PENDING_S = 10.0  # a connection without a hello is closed by then
MOST_PENDING = 64  # with more, the oldest is closed: strangers take no more descriptors than this
_AT_ONCE = 16  # connections accepted before those that wait are read again


class Listener:
    """Passes each connection that has proved itself to `admit`, which owns it from then on.

    With `tls`, connections are encrypted, and a plain socket stands for each.
    """

    tls: TlsTunnel | None = None

    def __init__(
        self, poller: Poller, key: bytes, clock: Clock, admit: Callable[[socket.socket, Hello], None]
    ) -> None:
        self._poller, self.key, self._clock, self._admit = poller, key, clock, admit
        self._servers: dict[int, socket.socket] = {}
        self._pending: dict[int, PendingConnection] = {}

    def listen(self, host: str) -> tuple[str, int]:
        """Listens, and returns the address for actors."""
        server = socket.create_server((host, 0), backlog=512)
        server.setblocking(False)
        self._servers[server.fileno()] = server
        self._poller.add_reader(server.fileno())
        return host, server.getsockname()[1]

    def accept(self, connection: socket.socket) -> None:
        """Take a new connection, from a server socket or a relay, which has to prove itself."""
        while len(self._pending) >= MOST_PENDING:
            self._hang_up(next(iter(self._pending)))
        try:
            if self.tls is not None:
                connection = self.tls.accept(connection)
            pending = PendingConnection(connection, self.key, now=self._clock.monotonic())
        except OSError:
            connection.close()
            return
        self._pending[connection.fileno()] = pending
        self._poller.add_reader(connection.fileno())

    def on_ready(self, fd: int) -> None:
        """Handle a ready descriptor; one of another owner is left alone."""
        pending, server = self._pending.get(fd), self._servers.get(fd)
        if pending is not None:
            self._on_hello(fd, pending)
        elif server is not None:
            self._accept_some(server)

    def close_expired(self, now: float) -> None:
        """Close connections that send no hello."""
        for fd, pending in list(self._pending.items()):
            if now >= pending.since + PENDING_S:
                self._hang_up(fd)

    def _hang_up(self, fd: int) -> None:
        self._poller.forget(fd)
        self._pending.pop(fd).connection.close()

    def close(self) -> None:
        for each in (*self._servers.values(), *(pending.connection for pending in self._pending.values())):
            each.close()
        if self.tls is not None:
            self.tls.close()

    def _accept_some(self, server: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accept(connection)

    def _on_hello(self, fd: int, pending: PendingConnection) -> None:
        try:
            hello = pending.read()
        except (OSError, ValueError, EOFError, TypeError):
            hello = {}
        if hello is None:
            return
        del self._pending[fd]
        self._poller.forget(fd)
        self._admit(pending.connection, hello)


class WakeupQueue:
    """Holds calls for the engine's thread; its descriptor is readable when there is one."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._waiting: deque[Callable[[], None]] = deque()
        self._closing = threading.Lock()
        self._is_closed = False

    def fileno(self) -> int:
        return self._read_fd

    def put(self, act: Callable[[], None]) -> bool:
        """Have this called in the engine's thread, from any thread; return False when the queue is closed."""
        with self._closing:
            if self._is_closed:
                return False
            self._waiting.append(act)
            if len(self._waiting) == 1:
                with contextlib.suppress(BlockingIOError):  # it is readable already
                    os.write(self._write_fd, b"!")
            return True

    def drain(self) -> None:
        """Call everything in the queue, in the engine's thread."""
        with self._closing:
            if self._is_closed:
                return
            with contextlib.suppress(BlockingIOError):
                os.read(self._read_fd, 4096)
            acts = list(self._waiting)
            self._waiting.clear()
        for act in acts:
            act()

    def close(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)


def mismatch(hello: Mapping[str, Any], *, python: str, ray: str = "") -> str | None:
    """Return what is wrong with the versions of that node, and what to do; None when nothing is."""
    there = str(hello["python"])
    if _minor(there) != _minor(python):
        return (
            f"the node {hello['hostname']} runs Python {there}, the driver {python}: give every node "
            f"Python {_minor(python)}, or start the driver with {_minor(there)}"
        )
    of_node = str(hello.get("ray", ray))  # an older muster does not send it
    if of_node != ray:
        return (
            f"the node {hello['hostname']} runs Ray {of_node}, the driver {ray}: install the same on both "
            f"(pip install ray=={ray})"
        )
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])

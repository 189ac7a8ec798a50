"""Encrypt the connections between driver and actors with the certificates that Ray uses (RAY_USE_TLS).

Both ends keep plain sockets inside their own process; one thread moves bytes between these and the encrypted
connections. Each verifies the certificate of the other against the CA; addresses are not compared with
certificates, because the key in the handshake already proves who answers.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Mapping

from muster.errors import EngineError

_NAMES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_CHUNK = 1 << 16
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def uses_tls(environment: Mapping[str, str]) -> bool:
    """Return whether Ray encrypts its connections here."""
    return environment.get("RAY_USE_TLS", "").lower() in ("1", "true")


class TlsLine:
    """One encrypted connection and the plain socket whose other half its user has."""

    def __init__(self, encrypted: ssl.SSLSocket, plain: socket.socket) -> None:
        self.encrypted, self.plain = encrypted, plain
        self._is_ready = self._is_over = False
        self._needs_write = False  # before anything can be read
        self._received = self._to_send = b""  # and not passed on yet
        encrypted.setblocking(False)
        plain.setblocking(False)

    def move(self) -> bool:
        """Move what can be moved; returns False when one end is closed and the other has got everything."""
        try:
            if not self._is_ready:
                # Takes what the user writes before anything can be sent: a few bytes, or that it hung up.
                with contextlib.suppress(BlockingIOError):
                    data = self.plain.recv(_CHUNK)
                    self._to_send, self._is_over = self._to_send + data, not data
                self._needs_write = False
                self.encrypted.do_handshake()
                self._is_ready = True
            while self._take_received() | self._take_to_send():
                pass
        except ssl.SSLWantReadError:
            return not self._is_over  # in the middle of the handshake
        except ssl.SSLWantWriteError:
            self._needs_write = True
            return not self._is_over
        except (OSError, ValueError):
            return False
        return not self._is_over or bool(self._received or self._to_send)

    def events(self) -> tuple[int, int]:
        """Return what to wait for on the encrypted and on the plain side."""
        sends = self._needs_write or (self._to_send and self._is_ready)
        encrypted = (0 if self._received else _READ) | (_WRITE if sends else 0)
        waits = not self._is_over and not (self._to_send and self._is_ready)
        return encrypted, (_READ if waits else 0) | (_WRITE if self._received else 0)

    @property
    def has_more_to_send(self) -> bool:
        return bool(self._to_send)

    def _take_received(self) -> bool:
        """Decrypts, and passes on; returns whether anything was passed on."""
        if not self._received and not self._is_over:
            with contextlib.suppress(ssl.SSLWantReadError):
                self._received = self.encrypted.recv(_CHUNK)
                self._is_over = not self._received
        if not self._received:
            return False
        try:
            self._received = self._received[self.plain.send(self._received) :]
        except BlockingIOError:
            return False
        return True

    def _take_to_send(self) -> bool:
        """Take what the user has written, and encrypts it; returns whether anything was sent."""
        if not self._to_send and not self._is_over:
            with contextlib.suppress(BlockingIOError):
                self._to_send = self.plain.recv(_CHUNK)
                self._is_over = not self._to_send
        if not self._to_send:
            return False
        try:
            self._to_send = self._to_send[self.encrypted.send(self._to_send) :]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        return True

    def close(self) -> None:
        self.encrypted.close()
        self.plain.close()


class TlsTunnel:
    """Encrypts all connections of one process, in a separate thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read Ray's certificates; EngineError names what is wrong with them."""
        missing = [name for name in _NAMES if not os.path.isfile(environment.get(name, ""))]
        if missing:
            raise EngineError(
                f"RAY_USE_TLS is set on {socket.gethostname()}, but {', '.join(missing)} name no file",
                fix=("set them as for Ray itself, on every machine of the cluster"),
            )
        try:
            self._server, self._client = (_context(environment, server_side=side) for side in (True, False))
        except OSError as error:
            raise EngineError(f"the certificates in {', '.join(_NAMES)} cannot be used: {error}") from error
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, _READ)
        self._new: deque[TlsLine] = deque()
        self._lines: dict[TlsLine, tuple[int, int]] = {}  # and what each waits for
        self._flushed = threading.Event()
        self._flushed.set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="muster-tls", daemon=True)
        self._thread.start()

    def greet(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return the encrypted connection of a caller, within its time limit."""
        try:
            return self._client.wrap_socket(connection)
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("the other end hung up") from error

    def accept(self, connection: socket.socket) -> socket.socket:
        """Return a plain socket that stands for the connection of a caller, who has still to greet."""
        connection.setblocking(False)
        return self.carry(
            self._server.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        )

    def carry(self, encrypted: ssl.SSLSocket) -> socket.socket:
        """Return a plain socket that stands for this connection, which belongs to the tunnel from now on."""
        ours, theirs = socket.socketpair()
        self._new.append(TlsLine(encrypted, ours))
        self._wake_write.send(b"!")
        return theirs

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was written so far is on its way."""
        self._flushed.clear()
        self._wake_write.send(b"!")
        self._flushed.wait(timeout_s)

    def close(self) -> None:
        self._is_closed = True
        self._wake_write.send(b"!")
        self._thread.join()
        for line in (*self._lines, *self._new):
            line.close()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def _run(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(_CHUNK)
                elif key.data in self._lines:
                    self._move(key.data)
            while self._new:
                line = self._new.popleft()
                self._lines[line] = (0, 0)
                self._move(line)
            if not self._flushed.is_set():
                for line in list(self._lines):
                    self._move(line)
                if not any(line.has_more_to_send for line in self._lines):
                    self._flushed.set()

    def _move(self, line: TlsLine) -> None:
        continues = line.move()
        before, after = self._lines[line], line.events() if continues else (0, 0)
        for side, old, new in zip((line.encrypted, line.plain), before, after, strict=True):
            if new and old:
                if new != old:
                    self._selector.modify(side, new, line)
            elif new:
                self._selector.register(side, new, line)
            elif old:
                self._selector.unregister(side)
        self._lines[line] = after
        if not continues:
            del self._lines[line]
            line.close()


def _context(environment: Mapping[str, str], *, server_side: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    cert, key, ca = (environment[name] for name in _NAMES)
    made.load_cert_chain(cert, key)
    made.load_verify_locations(ca)
    return made

"""Who calls: driver and actor prove to each other over TCP that they know the same key, which Ray carried.

Nothing that a stranger sends is decoded before that. Both ends of a connection use this; no Ray in it.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Sequence
from typing import Any

from muster.base.framing import FrameReader, Kind, frame, pack, unpack

NONCE = 16
PROOF = 32
MOST_HELLO = 1 << 16  # a stranger gets no more memory than this
CONNECT_S = 10.0

Address = tuple[str, int]


class DriverUnreachable(ConnectionError):
    """None of the driver's addresses leads to the driver from here."""


class NotTheDriver(ConnectionError):
    """Somebody listens there who does not know the key."""


def proof(key: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, role + nonce, "sha256")


def call(addresses: Sequence[Address], key: bytes, hello: dict[str, Any]) -> socket.socket:
    """The actor's side: connect, prove, be sure of the driver. DriverUnreachable names all that was tried."""
    problems: list[str] = []
    for host, port in addresses:
        try:
            return _call(host, port, key, hello)
        except OSError as error:
            problems.append(f"{host}:{port}: {error}")
    raise DriverUnreachable("; ".join(problems))


def _call(host: str, port: int, key: bytes, hello: dict[str, Any]) -> socket.socket:
    line = socket.create_connection((host, port), timeout=CONNECT_S)
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge, nonce = _exactly(line, NONCE), os.urandom(NONCE)
        line.sendall(frame(Kind.HELLO, proof(key, b"actor", challenge) + nonce + pack(hello)))
        if not hmac.compare_digest(_exactly(line, PROOF), proof(key, b"driver", nonce)):
            raise NotTheDriver("who answers there is not the driver")
        line.settimeout(None)
    except BaseException:
        line.close()
        raise
    return line


def _exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = line.recv(count - len(data))
        if not more:
            raise ConnectionResetError("the other end hung up")
        data += more
    return data


class Guest:
    """The driver's side of one call that has proven nothing yet. Never waits."""

    def __init__(self, line: socket.socket, key: bytes, *, now: float) -> None:
        self.line = line
        self.since = now
        self._key = key
        self._challenge = os.urandom(NONCE)
        self._frames = FrameReader()
        self._size = 0
        line.setblocking(False)
        line.send(self._challenge)  # a new connection has room for it

    def read(self) -> dict[str, Any] | None:
        """Its hello, proven and answered; None: not all there yet. ConnectionError: hang up."""
        try:
            data = self.line.recv(MOST_HELLO)
        except BlockingIOError:
            return None
        self._size += len(data)
        if not data or self._size > MOST_HELLO:
            raise ConnectionResetError("no hello")
        found = self._frames.feed(data)
        return self._checked(*found[0]) if found else None

    def _checked(self, kind: int, payload: bytes) -> dict[str, Any]:
        given, nonce, body = payload[:PROOF], payload[PROOF : PROOF + NONCE], payload[PROOF + NONCE :]
        if kind != Kind.HELLO or not hmac.compare_digest(given, proof(self._key, b"actor", self._challenge)):
            raise ConnectionRefusedError("a caller that does not know the key")
        self.line.send(proof(self._key, b"driver", nonce))
        hello: dict[str, Any] = unpack(body)
        return hello

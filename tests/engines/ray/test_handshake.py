from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from muster.base.framing import FrameKind, frame
from muster.engines.ray.handshake import MOST_HELLO, NONCE, DriverUnreachable, PendingConnection, call

KEY, OTHER = b"k" * 32, b"o" * 32


class Door:
    """A driver that greets one caller."""

    def __init__(self, key=KEY):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = self._socket.getsockname()
        self.found = None
        self._key = key
        self._thread = threading.Thread(target=self._greet)
        self._thread.start()

    def _greet(self):
        line, _ = self._socket.accept()
        guest = PendingConnection(line, self._key, now=0.0)
        try:
            line.settimeout(10)
            while (hello := guest.read()) is None:
                pass
            self.found = hello
        except OSError as error:
            self.found = error
        line.close()

    def close(self):
        self._thread.join(10)
        self._socket.close()
        return self.found


def test_both_sides_know_each_other():
    door = Door()
    call([door.address], KEY, {"number": 7}).close()
    assert door.close() == {"number": 7}


def test_a_caller_without_the_key_is_refused_before_anything_is_decoded():
    door = Door()
    with pytest.raises(DriverUnreachable, match=f"127.0.0.1:{door.address[1]}"):
        call([door.address], OTHER, {"number": 7})
    assert isinstance(door.close(), ConnectionRefusedError)


def test_a_listener_without_the_key_is_not_the_driver():
    impostor = socket.create_server(("127.0.0.1", 0))

    def answer():
        line, _ = impostor.accept()
        line.sendall(b"n" * NONCE)
        line.recv(4096)
        line.sendall(b"p" * 32)
        line.recv(1)
        line.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(DriverUnreachable, match="is not the driver"):
        call([impostor.getsockname()], KEY, {})
    thread.join(10)
    impostor.close()


def test_the_next_address_is_tried():
    door = Door()
    dead = socket.create_server(("127.0.0.1", 0))
    gone = dead.getsockname()
    dead.close()
    call([gone, door.address], KEY, {"number": 1}).close()
    assert door.close() == {"number": 1}


def test_a_stranger_gets_little_memory():
    ours, theirs = socket.socketpair()
    guest = PendingConnection(ours, KEY, now=0.0)
    theirs.setblocking(False)
    sent = 0
    with pytest.raises(ConnectionResetError):
        while True:
            with contextlib.suppress(BlockingIOError):
                sent += theirs.send(b"\xff" * 4096)
            guest.read()
    assert sent <= 4 * MOST_HELLO
    ours.close()
    theirs.close()


def test_what_is_not_a_hello_is_refused():
    ours, theirs = socket.socketpair()
    guest = PendingConnection(ours, KEY, now=0.0)
    theirs.sendall(frame(FrameKind.REPORT, b"x" * 64))
    with pytest.raises(ConnectionRefusedError):
        guest.read()
    ours.close()
    theirs.close()

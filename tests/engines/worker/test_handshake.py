from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from muster.base.clock import SystemClock
from muster.base.framing import FrameKind, frame
from muster.engines.worker.handle import Poller
from muster.engines.worker.handshake import (
    MOST_HELLO,
    MOST_PENDING,
    NONCE,
    PENDING_S,
    DriverUnreachable,
    Listener,
    PendingConnection,
    call,
)

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
        self._socket.close()
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
    with pytest.raises(DriverUnreachable, match=r"^127\.0\.0\.1:\d+: .*\bdriver$"):
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


class Reception:
    """A listener and its poller, served as the engine does."""

    def __init__(self):
        self.poller, self.admitted = Poller(), []
        self.listener = Listener(self.poller, KEY, SystemClock(), self._admit)
        self.address = self.listener.listen("127.0.0.1")

    def _admit(self, line, hello):
        if hello:
            self.admitted.append((line, hello))
        else:
            line.close()

    def serve(self, timeout_s=0.0):
        for fd, _ in self.poller.poll(timeout_s):
            self.listener.on_ready(fd)

    def close(self):
        for line, _ in self.admitted:
            line.close()
        self.listener.close()
        self.poller.close()


@pytest.fixture
def reception():
    made = Reception()
    yield made
    made.close()


def test_strangers_take_few_descriptors_and_the_oldest_goes_first(reception):
    strangers = []
    for _ in range(3 * MOST_PENDING):
        strangers.append(socket.create_connection(reception.address))
        reception.serve()
    for each in strangers:
        each.setblocking(False)
    gone = [is_closed(each) for each in strangers]
    for each in strangers:
        each.close()
    assert gone == [True] * (2 * MOST_PENDING) + [False] * MOST_PENDING


def is_closed(connection):
    try:
        while connection.recv(64):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_a_stranger_has_ten_seconds(reception):
    now = SystemClock().monotonic()
    with socket.create_connection(reception.address) as stranger:
        reception.serve(1.0)
        reception.listener.close_expired(now + PENDING_S - 1)
        stranger.setblocking(False)
        assert not is_closed(stranger)
        reception.listener.close_expired(now + PENDING_S + 1)
        stranger.settimeout(5)
        assert is_closed(stranger)


def test_an_actor_gets_through_a_flood_of_strangers(reception):
    is_over, strangers = threading.Event(), []

    def flood():
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                strangers.append(socket.create_connection(reception.address, timeout=5))
            for each in strangers[: -2 * MOST_PENDING]:
                each.close()
            del strangers[: -2 * MOST_PENDING]

    connected = []
    actors = [
        threading.Thread(target=lambda n=n: connected.append(call([reception.address], KEY, {"number": n})))
        for n in range(8)
    ]
    flooding = threading.Thread(target=flood)
    flooding.start()
    give_up = SystemClock().monotonic() + 30
    for each in actors:
        each.start()
    while len(reception.admitted) < 8 and SystemClock().monotonic() < give_up:
        reception.serve(0.1)
    is_over.set()
    for each in (flooding, *actors):
        while each.is_alive():
            reception.serve(0.05)
    for each in (*strangers, *connected):
        each.close()
    assert sorted(hello["number"] for _, hello in reception.admitted) == list(range(8))

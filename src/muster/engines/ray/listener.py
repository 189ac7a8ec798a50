"""Reception: where actors connect to the driver, directly or through a relay, and say who they are.

Part of RayStaff, which polls for it. Who says nothing, or nothing that the key proves, is hung up on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from muster.base.clock import Clock
from muster.engines.ray.handshake import Guest
from muster.engines.worker.poller import Watch

Hello = dict[str, Any]
GUEST_S = 10.0  # who has not said who it is by then is hung up on


class Reception:
    """`admit` is called with each connection that has proved itself, and owns it from then on."""

    def __init__(
        self, watch: Watch, key: bytes, clock: Clock, admit: Callable[[socket.socket, Hello], None]
    ) -> None:
        self._watch, self._key, self._clock, self._admit = watch, key, clock, admit
        self._doors: dict[int, socket.socket] = {}
        self._guests: dict[int, Guest] = {}

    def listen(self, host: str) -> tuple[str, int]:
        """Where actors reach us from now on."""
        door = socket.create_server((host, 0), backlog=512)
        door.setblocking(False)
        self._doors[door.fileno()] = door
        self._watch.reading(door.fileno())
        return host, door.getsockname()[1]

    def welcome(self, line: socket.socket) -> None:
        """A connection, from the door or brought by a relay; it has to say who it is."""
        try:
            guest = Guest(line, self._key, now=self._clock.monotonic())
        except OSError:
            line.close()
            return
        self._guests[line.fileno()] = guest
        self._watch.reading(line.fileno())

    def attend(self, fd: int) -> None:
        """Something is ready; what is not ours is left alone."""
        guest, door = self._guests.get(fd), self._doors.get(fd)
        if guest is not None:
            self._hear(fd, guest)
        elif door is not None:
            self._open(door)

    def send_away(self, now: float) -> None:
        """Guests that say nothing."""
        for fd, guest in list(self._guests.items()):
            if now >= guest.since + GUEST_S:
                del self._guests[fd]
                self._watch.forget(fd)
                guest.line.close()

    def close(self) -> None:
        for each in (*self._doors.values(), *(guest.line for guest in self._guests.values())):
            each.close()

    def _open(self, door: socket.socket) -> None:
        while True:
            try:
                line, _ = door.accept()
            except OSError:
                return
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.welcome(line)

    def _hear(self, fd: int, guest: Guest) -> None:
        try:
            hello = guest.read()
        except (OSError, ValueError, EOFError, TypeError):
            hello = {}
        if hello is None:
            return
        del self._guests[fd]
        self._watch.forget(fd)
        self._admit(guest.line, hello)


class Bell:
    """A queue of things to do, with a descriptor that becomes readable when there is one."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._waiting: deque[Callable[[], None]] = deque()
        self._closing = threading.Lock()
        self._is_closed = False

    def fileno(self) -> int:
        return self._read_fd

    def ring(self, act: Callable[[], None]) -> bool:
        """From any thread: have this done by the engine's; False when nobody is there any more."""
        with self._closing:
            if self._is_closed:
                return False
            self._waiting.append(act)
            if len(self._waiting) == 1:
                with contextlib.suppress(BlockingIOError):  # it rings already
                    os.write(self._write_fd, b"!")
            return True

    def answer(self) -> None:
        """In the engine's thread: do all of it."""
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

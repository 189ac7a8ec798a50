"""RelayActor: where driver and trials meet when trials cannot reach the driver. A Ray actor; knows nothing of
what it passes on, and has no key: who calls still has to prove itself to the driver.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque

_CHUNK = 1 << 16
_MOST_BYTES = 1 << 26  # per answer
_FULL = 1 << 28  # so much unfetched: stop reading until the driver has caught up

Parcel = tuple[int, "bytes | None"]  # connection, data; None: it is closed


class RelayActor:
    """Threads: one reads every connection, actor calls `push` and `pull` come in others."""

    def __init__(self) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        self._door = socket.create_server((host, 0), backlog=512)
        self._address: tuple[str, int] = (host, self._door.getsockname()[1])
        self._lines: dict[int, socket.socket] = {}
        self._next = 1
        self._parcels: deque[Parcel] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ, 0)
        threading.Thread(target=self._run, name="muster-relay", daemon=True).start()

    def address(self) -> tuple[str, int]:
        return self._address

    def push(self, parcels: list[Parcel]) -> None:
        """From the driver to the trials."""
        for number, data in parcels:
            line = self._lines.get(number)
            if line is None:
                continue
            try:
                if data is None:
                    line.shutdown(socket.SHUT_RDWR)
                else:
                    line.sendall(data)
            except OSError:
                continue  # the reader sees that it has ended

    def pull(self, wait_s: float) -> list[Parcel]:
        """From the trials to the driver: what there is, waiting up to `wait_s` for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._parcels, timeout=wait_s)
            found: list[Parcel] = []
            size = 0
            while self._parcels and size < _MOST_BYTES:
                parcel = self._parcels.popleft()
                size += len(parcel[1] or b"")
                found.append(parcel)
            self._size -= size
            self._changed.notify_all()
        return found

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data == 0:
                    self._accept()
                else:
                    self._read(key.data)

    def _accept(self) -> None:
        line, _ = self._door.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number, self._next = self._next, self._next + 1
        self._lines[number] = line
        self._selector.register(line, selectors.EVENT_READ, number)
        self._put((number, b""))

    def _read(self, number: int) -> None:
        line = self._lines[number]
        try:
            data = line.recv(_CHUNK)
        except OSError:
            data = b""
        if data:
            self._put((number, data))
            return
        self._selector.unregister(line)
        del self._lines[number]
        line.close()
        self._put((number, None))

    def _put(self, parcel: Parcel) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._size < _FULL)
            self._parcels.append(parcel)
            self._size += len(parcel[1] or b"")
            self._changed.notify_all()

"""Run in another process, of the head: RelayActor connects trials to a driver that they cannot reach.

The module is pickled by value, as the head may lack this package. The actor knows nothing of what it passes
on and has no key: a caller still has to prove itself to the driver.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque

_CHUNK = 1 << 16
_MOST_BYTES = 1 << 26  # per answer
_MOST_NEW = 256  # connections that the driver has not answered yet: no more are accepted until it has
_FULL = 1 << 28  # so much unfetched: stop reading until the driver has caught up

RelayedChunk = tuple[int, "bytes | None"]  # connection, data; None: the connection is closed


class RelayActor:
    """Reads every connection in one thread; its calls `push` and `pull` come in others."""

    def __init__(self) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        self._server = socket.create_server((host, 0), backlog=512)
        self._address: tuple[str, int] = (host, self._server.getsockname()[1])
        self._connections: dict[int, socket.socket] = {}
        self._next = 1
        self._new: set[int] = set()  # the driver has sent them nothing
        self._chunks: deque[RelayedChunk] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ, 0)
        threading.Thread(target=self._run, name="muster-relay", daemon=True).start()

    def address(self) -> tuple[str, int]:
        return self._address

    def push(self, chunks: list[RelayedChunk]) -> None:
        """Carry chunks from the driver to the trials."""
        for number, data in chunks:
            self._new.discard(number)
            connection = self._connections.get(number)
            if connection is None:
                continue
            try:
                if data is None:
                    connection.shutdown(socket.SHUT_RDWR)
                else:
                    connection.sendall(data)
            except OSError:
                continue  # the reader sees that the connection has ended

    def pull(self, wait_s: float) -> list[RelayedChunk]:
        """Return chunks from the trials for the driver, waiting up to `wait_s` for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks, timeout=wait_s)
            found: list[RelayedChunk] = []
            size = 0
            while self._chunks and size < _MOST_BYTES:
                chunk = self._chunks.popleft()
                size += len(chunk[1] or b"")
                found.append(chunk)
            self._size -= size
            self._changed.notify_all()
        return found

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data == 0:
                    self._accept_one()
                else:
                    self._read(key.data)

    def _accept_one(self) -> None:
        if len(self._new) >= _MOST_NEW:
            with self._changed:
                self._changed.wait(0.01)  # for the driver, which hangs up on those that prove nothing
            return
        try:
            connection, _ = self._server.accept()
        except OSError:
            return  # the caller has hung up
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number, self._next = self._next, self._next + 1
        self._connections[number] = connection
        self._new.add(number)
        self._selector.register(connection, selectors.EVENT_READ, number)
        self._put((number, b""))

    def _read(self, number: int) -> None:
        connection = self._connections[number]
        try:
            data = connection.recv(_CHUNK)
        except OSError:
            data = b""
        if data:
            self._put((number, data))
            return
        self._selector.unregister(connection)
        del self._connections[number]
        self._new.discard(number)
        connection.close()
        self._put((number, None))

    def _put(self, chunk: RelayedChunk) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._size < _FULL)
            self._chunks.append(chunk)
            self._size += len(chunk[1] or b"")
            self._changed.notify_all()

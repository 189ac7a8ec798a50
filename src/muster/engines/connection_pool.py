"""ConnectionPool is the pool of engines whose processes are elsewhere and connect back to this one."""

from __future__ import annotations

import select
import socket
from abc import abstractmethod
from typing import Any

from muster.base.clock import Clock
from muster.engines.process_engine import EngineTimeouts, ProcessPool, W
from muster.engines.worker.handshake import Hello, Listener, WakeupQueue
from muster.host import machine


class ConnectionPool(ProcessPool[W]):
    """Holds connections that have proved themselves; one poller serves all of them."""

    def __init__(self, clock: Clock, timeouts: EngineTimeouts, key: bytes) -> None:
        super().__init__(clock, timeouts)
        self._connections: dict[int, Any] = {}  # their handles, by descriptor
        self._hostname = machine.hostname()
        self.listener = Listener(self._poller, key, clock, self._receive)
        self.wakeups = WakeupQueue()
        self._poller.add_reader(self.wakeups.fileno())

    @abstractmethod
    def _receive(self, connection: socket.socket, hello: Hello) -> None:
        """Take a connection, or close it."""

    @abstractmethod
    def _read(self, handle: Any) -> None:  # noqa: ANN401 - a worker, or what hosts workers
        """Handle what has arrived on a connection."""

    def _add(self, handle: Any) -> None:  # noqa: ANN401
        self._connections[handle.read_fd] = handle
        self._poller.add_reader(handle.read_fd)

    def _forget_connection(self, handle: Any) -> None:  # noqa: ANN401
        if self._connections.pop(handle.read_fd, None) is not None:
            self._poller.forget(handle.read_fd)

    def send(self, worker: Any, data: bytes) -> None:  # noqa: ANN401
        if not worker.write(data) and worker.write_fd in self._connections:
            self._poller.set_writing(worker.write_fd, writing=True)

    def wait(self, timeout_s: float, now: float) -> None:
        poll = self._poller.poll
        ready = self._spinner.poll(poll) if timeout_s > 0 else None
        for fd, flags in ready or poll(timeout_s if timeout_s > 0 else 0):
            handle = self._connections.get(fd)
            if handle is None:
                self._on_ready(fd)
                continue
            handle.last_seen_at = now
            if flags & select.POLLOUT and handle.flush():
                self._poller.set_writing(fd, writing=False)
            if flags & ~select.POLLOUT:
                self._read(handle)

    def _on_ready(self, fd: int) -> None:
        """Handle a descriptor that is not a channel."""
        if fd == self.wakeups.fileno():
            self.wakeups.drain()
        else:
            self.listener.on_ready(fd)

    def _close_poller(self) -> None:
        self.listener.close()
        self.wakeups.close()
        self._poller.close()

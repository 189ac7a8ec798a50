"""Waiting for many descriptors at once: epoll where there is one, else poll. Selectors cost twice as much.

(Windows has neither for pipes; an engine there would wait on sockets with `selectors`, behind this class.)
"""

from __future__ import annotations

import select


class Watch:
    """Which descriptors are ready."""

    def __init__(self) -> None:
        self._is_epoll = hasattr(select, "epoll")
        self._poller = select.epoll() if self._is_epoll else select.poll()
        self._tick = 1.0 if self._is_epoll else 1000.0  # epoll takes seconds, poll milliseconds

    def reading(self, fd: int) -> None:
        self._poller.register(fd, select.POLLIN)

    def writing(self, fd: int) -> None:
        self._poller.register(fd, select.POLLOUT)

    def both(self, fd: int, *, writing: bool) -> None:
        """One descriptor both ways: read always, write when there is something to write."""
        self._poller.modify(fd, select.POLLIN | (select.POLLOUT if writing else 0))

    def forget(self, fd: int) -> None:
        try:
            self._poller.unregister(fd)
        except (KeyError, FileNotFoundError):
            return  # was not watched

    def ready(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._poller.poll(timeout_s * self._tick)

    def close(self) -> None:
        if self._is_epoll:
            self._poller.close()  # type: ignore[union-attr]

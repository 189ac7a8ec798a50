"""Bell: how other threads (Ray's callbacks, lookout, relay) tell the engine's one thread something."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable


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

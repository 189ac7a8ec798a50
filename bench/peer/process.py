"""Run the peer in a child process: its CPU is counted apart and a slow case can be ended.

The limit is in CPU seconds (`ITIMER_PROF`, whose signal ends the child); a generous wall-clock limit
stands behind it for a child that waits instead of working.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench.measure import CPU_LIMIT_S, Timed

WALL_FACTOR = 4.0
STOP_S = 5.0


class PeerError(RuntimeError):
    """The peer failed, and not because it was slow."""


class PeerProcess:
    """Calls `function(*arguments) -> Timed` in a child that stays alive between calls."""

    def __init__(self, cpu_limit_s: float = CPU_LIMIT_S) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._context = multiprocessing.get_context("spawn")
        self._child: Any = None
        self._pipe: Connection | None = None

    def call(self, function: Callable[..., Timed], *arguments: Any) -> Timed | None:
        """Return the result, or None when the limit was reached (the next call starts a fresh child)."""
        pipe = self._started()
        pipe.send((function, arguments))
        if not pipe.poll(self._cpu_limit_s * WALL_FACTOR):
            self.close()
            return None
        try:
            ok, answer = pipe.recv()
        except EOFError:
            return self._ended()
        if not ok:
            raise PeerError(answer)
        return answer

    def _ended(self) -> None:
        """Handle a child that is gone: fine if its CPU limit ended it, an error otherwise."""
        self._child.join(STOP_S)
        exit_code = self._child.exitcode
        self.close()
        if exit_code != -signal.SIGPROF:
            raise PeerError(f"the peer process ended with exit code {exit_code}")

    def _started(self) -> Connection:
        if self._pipe is None:
            self._pipe, theirs = self._context.Pipe()
            self._child = self._context.Process(target=serve, args=(theirs, self._cpu_limit_s), daemon=True)
            self._child.start()
            theirs.close()
        return self._pipe

    def close(self) -> None:
        """End the child."""
        if self._pipe is not None:
            self._pipe.close()
            self._child.kill()
            self._child.join(STOP_S)
            self._pipe = self._child = None


def serve(pipe: Connection, cpu_limit_s: float) -> None:
    """Run one call after another until the parent closes the pipe."""
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        try:
            answer = (True, function(*arguments))
        except Exception as error:  # noqa: BLE001  # reported to the parent, which decides
            answer = (False, f"{type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        pipe.send(answer)

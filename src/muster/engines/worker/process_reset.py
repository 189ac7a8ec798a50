"""What a process must be like again before it serves another trial: environment, directory, signals, timers.

Used by the worker between two trials of one process. What cannot be put back (threads and processes that a
function left running) is told, and such a process is not kept.
"""

from __future__ import annotations

import os
import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # without Enums
from _signal import signal as set_handler
from collections.abc import Mapping
from typing import Any

from muster.host import machine

_WATCHED = tuple(
    int(number)
    for number in signal.valid_signals()
    if number not in (getattr(signal, "SIGKILL", None), getattr(signal, "SIGSTOP", None))
)


class Tidy:
    """Remembers how this process is now; `restore` makes it so again. `own_threads` are the worker's."""

    def __init__(self, own_threads: int) -> None:
        self._environment = dict(_variables())
        self._handlers = [(number, getsignal(number)) for number in _WATCHED]
        self._threads = threading.active_count() - own_threads

    def restore(self) -> None:
        """Undo what the last trial changed."""
        if _variables() != self._environment:
            self._restore_environment()
        for number, handler in self._handlers:
            if getsignal(number) is not handler and handler is not None:  # None: not set by Python
                set_handler(number, handler)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _restore_environment(self) -> None:
        now, before = machine.environment(), _decoded(self._environment)
        for name in [name for name in now if name not in before]:
            del now[name]
        now.update(before)

    def left_running(self, own_threads: int) -> bool:
        """Whether the last trial left threads or processes."""
        return threading.active_count() > self._threads + own_threads or has_children()


def go_home(home: str) -> None:
    """Back to where the process started; somebody may have deleted that."""
    try:
        os.chdir(home)
    except OSError:
        os.chdir(os.path.sep)


def has_children() -> bool:
    """Whether this process has children, ended ones that nobody has waited for included."""
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _variables() -> Mapping[Any, Any]:
    """The environment as it is stored: comparing that is a hundred times faster than decoding it."""
    variables = machine.environment()
    return getattr(variables, "_data", variables)


def _decoded(stored: Mapping[Any, Any]) -> dict[str, str]:
    if all(isinstance(name, str) for name in stored):
        return dict(stored)
    return {os.fsdecode(name): os.fsdecode(value) for name, value in stored.items()}

"""Open the report socket of a trial when it starts its first process: most trials start none.

Every fork loads this file: few imports.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from muster.engines.worker.session import TrialSession

MAX_PATH = 100  # bytes; the kernel's limit is 108, and 104 on macOS


def sockets_of(variables: Mapping[str, str]) -> str:
    """Return the directory of this user's sockets; touches no file."""
    for place in (variables.get("TMPDIR", ""), "/tmp"):
        folder = os.path.join(place, f"muster-{os.getuid()}")
        if place and len(os.fsencode(folder)) <= MAX_PATH - 25:
            break
    return folder


def new_path(variables: Mapping[str, str]) -> str:
    """Return the path of a socket that this process may open later."""
    return path_in(sockets_of(variables))


def path_in(folder: str) -> str:
    return f"{folder}/{os.getpid()}-{os.urandom(4).hex()}.sock"


class ChildReports:
    """Passes the reports of a trial's processes to its session; the socket stays for the next trial."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._session: TrialSession | None = None
        self.own_threads = 0

    def serve(self, session: TrialSession | None) -> None:
        """Pass reports to this trial from now on; None: it has ended."""
        self._session = session
        call_before_child(None if session is None or self.own_threads else self.open)

    def open(self) -> None:
        """Open the socket, and start the thread that serves it."""
        from muster.engines.worker.report_socket import ReportThread

        try:
            ReportThread(self._path, lambda: self._session)
            self.own_threads = 1
        except OSError as error:
            warnings.warn(f"processes of this trial cannot report: {error}", stacklevel=2)


@contextmanager
def reports_to(session: TrialSession, path: str) -> Iterator[None]:
    """Pass the reports that come to another socket to another session, as long as the block runs."""
    from muster.engines.worker.report_socket import ReportThread

    thread = ReportThread(path, lambda: session)
    try:
        yield
    finally:
        thread.close()


# What to call before this process starts another one; at most one, and once.
_before_child: list[Callable[[], None]] = []
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn", "pty.spawn"})
_SPAWNS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
_is_hooked = False


def call_before_child(action: Callable[[], None] | None) -> None:
    """Call `action` when this process starts its next one, or has forked; None: nothing any more.

    An audit hook sees what a wrapper around one function would not; it cannot be removed, so it stays idle.
    """
    global _is_hooked  # noqa: PLW0603 - of the process, as the hook is
    _before_child[:] = [] if action is None else [action]
    if action is not None and not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_notice)
        os.register_at_fork(after_in_parent=_begin, after_in_child=_before_child.clear)
    if any(name in sys.modules for name in _SPAWNS):
        _begin()  # it raises no event when it starts a process


@contextmanager
def several_forks() -> Iterator[None]:
    """Wait with what `call_before_child` was given until all are made: no fork gets a thread's copy."""
    waiting, _before_child[:] = list(_before_child), []
    try:
        yield
    finally:
        _before_child[:] = waiting
        _begin()


# Only in processes of the fork server: what says why a fork is not safe, and what a fork does first.
fork_rules: list[tuple[Callable[[], str], Callable[[], None]]] = []


def _notice(event: str, args: tuple[Any, ...]) -> None:
    if _before_child and (event in _STARTS or (event == "import" and args[0] in _SPAWNS)):
        _begin()


def _begin() -> None:
    if _before_child:
        _before_child.pop()()

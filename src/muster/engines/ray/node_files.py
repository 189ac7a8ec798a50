"""Scratch: a directory of one actor on its node, for the files of its trials. Goes when the actor ends; what
an actor that was killed left behind goes when the next one starts.

No path of the driver's is used: here it may hold another experiment, or an older state of this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile

_PREFIX = "muster-node-"
_LOCK = ".in_use"


class Scratch:
    """Made when it is first asked for. TMPDIR says on which disk."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._lock: int | None = None

    def path(self, *names: str) -> str:
        if self._path is None:
            sweep()
            self._path = tempfile.mkdtemp(prefix=_PREFIX)
            self._lock = _locked(self._path)
        return os.path.join(self._path, *names)

    def remove(self, *names: str) -> None:
        """This directory in it, or all of it."""
        if self._path is None:
            return
        shutil.rmtree(os.path.join(self._path, *names), ignore_errors=True)
        if not names:
            self._path = None
            if self._lock is not None:
                os.close(self._lock)


def sweep() -> None:
    """Remove directories whose process is gone: nobody holds their lock."""
    for entry in os.scandir(tempfile.gettempdir()):
        if not entry.name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError):  # in use, or not ours
            lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(lock)


def _locked(folder: str) -> int:
    """Locked before it gets its name: nobody ever finds it unlocked while we live."""
    early = os.path.join(folder, f"{_LOCK}.new")
    lock = os.open(early, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(early, os.path.join(folder, _LOCK))
    return lock

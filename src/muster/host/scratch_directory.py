"""Make temporary directories that go with their process; the next one removes those of a killed process."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile

_LOCK = ".in_use"


class ScratchDirectory:
    """Made when it is first needed, on the disk of TMPDIR, and deleted at exit."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._path: str | None = None
        self._lock: int | None = None

    def path(self, *names: str) -> str:
        if self._path is None or not os.path.isdir(self._path):
            self._sweep()
            self._path, self._owner = tempfile.mkdtemp(prefix=self._prefix), os.getpid()
            # Locks the directory before its lock file gets its name: no process ever finds it unlocked.
            early = os.path.join(self._path, f"{_LOCK}.new")
            lock = os.open(early, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(early, os.path.join(self._path, _LOCK))
            self._lock = lock
            atexit.register(self.remove)
        return os.path.join(self._path, *names)

    def remove(self, *names: str) -> None:
        """Remove this directory in it, or all of it; a fork leaves what belongs to its parent."""
        if self._path is None or self._owner != os.getpid():
            return
        shutil.rmtree(os.path.join(self._path, *names), ignore_errors=True)
        if not names:
            self._path = None
            if self._lock is not None:
                os.close(self._lock)

    def _sweep(self) -> None:
        """Remove directories whose process is gone, and has released their lock."""
        for entry in os.scandir(tempfile.gettempdir()):
            if not entry.name.startswith(self._prefix) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):  # in use, or of another user
                lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(lock)

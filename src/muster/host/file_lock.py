"""FileLock admits one process at a time, through an OS lock on a side file that ends with its holder.

A store takes it before it opens its file for writing. The lock is never stale: the kernel drops it at kill
-9.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from muster.base.clock import Clock
from muster.errors import LedgerLocked, StoreError
from muster.host.regular_file import FLAGS, open_regular

try:
    import fcntl
except ImportError:  # what remains is SQLite's own lock and the version check of each commit
    fcntl = None  # type: ignore[assignment]

_HAS_LOCKS = fcntl is not None

RETRY_S = 0.05


class FileLock:
    """A held lock; its side file stays, or two processes could each lock one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, guarded: Path, *, clock: Clock, wait_s: float) -> FileLock:
        """Wait at most `wait_s` for the previous holder to go."""
        side = Path(f"{guarded}.lock")
        try:
            descriptor = os.open(side, os.O_RDWR | os.O_CREAT | FLAGS, 0o644)
        except OSError as error:
            raise StoreError(f"{side}: {error.strerror}", fix="this user must be able to write it") from error
        try:
            _wait(descriptor, guarded, clock, wait_s)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except OSError as error:
            os.close(descriptor)
            lacks_locks = error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
            fix = (
                "mount this file system with locks (Lustre: flock), or use another one" if lacks_locks else ""
            )
            raise StoreError(f"{side}: {error.strerror}", fix=fix) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Release the lock; harmless when repeated."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder_of(guarded: Path) -> int | None:
    """Return the process that holds the lock now; None when none does, 0 when that is unknown."""
    try:
        with open_regular(f"{guarded}.lock") as side:
            if not _HAS_LOCKS or _try(side.fileno(), shared=True):
                return None
            found = _holder(side.fileno())
            return int(found) if found.isdigit() else 0
    except OSError:
        return None


def _wait(descriptor: int, guarded: Path, clock: Clock, wait_s: float) -> None:
    deadline = clock.monotonic() + wait_s
    while not _try(descriptor):
        if clock.monotonic() >= deadline:
            raise LedgerLocked(
                f"{guarded}: in use by another muster (process {_holder(descriptor)})",
                fix="stop that one, or give this one its own path. Reading commands work while it runs",
            )
        clock.sleep(RETRY_S)


def _try(descriptor: int, *, shared: bool = False) -> bool:
    if not _HAS_LOCKS:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        return os.pread(descriptor, 20, 0).decode(errors="replace") or "unknown"
    return "unknown"

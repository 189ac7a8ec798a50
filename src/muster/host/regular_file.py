"""Read files that somebody else may have put into a directory: regular ones only, never through a link.

Every file of an experiment directory is read this way: a FIFO blocks, a device has no end, a link leads away.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 1 << 30  # of a file that is read whole
FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def refuse_irregular(path: str | Path, found: os.stat_result | None = None) -> None:
    """Raise OSError when there is something at this path and it is not a regular file."""
    try:
        mode = (found or os.lstat(path)).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        what = "symbolic link instead of a file" if stat.S_ISLNK(mode) else "not a regular file"
        raise OSError(errno.EINVAL, what, os.fspath(path))


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading without waiting; OSError when it is not a regular file."""
    refuse_irregular(path)  # opening a device may already do something
    return open(path, "rb", opener=_open)


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | FLAGS)
    try:
        refuse_irregular(path, os.fstat(descriptor))  # it may be another one by now
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | Path, *, beginning: int | None = None) -> bytes:
    """Return the content of a file, or only its beginning; OSError when it is too large to be read whole."""
    with open_regular(path) as stream:
        if beginning is None and os.fstat(stream.fileno()).st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MOST_BYTES >> 20} MiB", os.fspath(path))
        return stream.read(MOST_BYTES if beginning is None else beginning)

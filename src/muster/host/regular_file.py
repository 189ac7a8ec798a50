"""Reads files that somebody else may have put into a directory: regular ones only, never through a link.

Every file of an experiment directory is read through it: a FIFO would block, a device has no end, and a link
leads to files that the directory's owner must not read through us.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 1 << 30  # of a file that is read whole
FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def refuse_irregular(path: str | Path) -> None:
    """Raises OSError when there is something at this path and it is not a regular file."""
    try:
        _check(os.lstat(path).st_mode, path)
    except FileNotFoundError:
        return


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a file for reading without waiting; OSError when it is not a regular file."""
    refuse_irregular(path)  # opening a device may already do something
    descriptor = os.open(path, os.O_RDONLY | FLAGS)
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, *, beginning: int | None = None) -> bytes:
    """Returns the content of a file, or only its beginning; OSError when it is too large to be read whole."""
    with open_regular(path) as stream:
        if beginning is None and os.fstat(stream.fileno()).st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MOST_BYTES >> 20} MiB", os.fspath(path))
        return stream.read(MOST_BYTES if beginning is None else beginning)


def _check(mode: int, path: str | Path) -> None:
    if not stat.S_ISREG(mode):
        what = "symbolic link instead of a file" if stat.S_ISLNK(mode) else "not a regular file"
        raise OSError(errno.EINVAL, what, os.fspath(path))

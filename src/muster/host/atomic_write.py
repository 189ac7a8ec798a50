"""Replace files in one step: readers and crashes find the old content or the new one, never half of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)


def atomic_write(
    path: str | os.PathLike[str], data: bytes, *, mode: int = 0o666, fsync: bool = False
) -> None:
    """Give the file this content; OSError leaves the old content, and nothing beside it.

    Args:
        path: The file; its directory exists.
        data: The new content.
        mode: Permissions of the new file, before the umask.
        fsync: Whether the content must survive a power failure once this returns.
    """
    with replacing(path) as draft:
        descriptor = os.open(draft, _FLAGS, mode)
        try:
            done = os.write(descriptor, data)
            while done < len(data):
                done += os.write(descriptor, memoryview(data)[done:])
            if fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the name of a draft in the same directory, which replaces the file unless the block raises.

    The draft's name ends in `.partial`, which uploads leave out, and has the process id, so that two
    processes do not write into one draft.
    """
    folder, name = os.path.split(os.fspath(path))
    draft = os.path.join(folder, f".{name}.{os.getpid()}.partial")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        if os.path.exists(draft):
            os.unlink(draft)
        raise

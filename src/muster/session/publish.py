"""Atomic publishing of a checkpoint directory: it is there whole under its name, or not at all."""

from __future__ import annotations

import os

CHECKPOINT_NAME = "checkpoint_{index:06d}"


def checkpoint_name(index: int) -> str:
    """`checkpoint_000003`."""
    return CHECKPOINT_NAME.format(index=index)


def staging_path(trial_dir: str, name: str) -> str:
    """Where a directory grows before it gets its name: beside it, so that the rename is atomic."""
    return os.path.join(trial_dir, f".{name}.{os.getpid()}.partial")


def publish_copy(source: str, trial_dir: str, name: str) -> str:
    """Copy `source` to `trial_dir/name`; the source is left alone. Nothing is left behind on failure."""
    import shutil

    partial = staging_path(trial_dir, name)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
        return publish_staged(partial, trial_dir, name)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def publish_staged(partial: str, trial_dir: str, name: str) -> str:
    """Give a finished staging directory its name, durably. A directory of that name is replaced."""
    for folder, _, files in os.walk(partial):
        for file in files:
            _sync(os.path.join(folder, file))
        _sync(folder)
    target = os.path.join(trial_dir, name)
    _make_room(target)
    os.rename(partial, target)
    _sync(trial_dir)
    return target


def _make_room(target: str) -> None:
    """A report that nobody took note of may have left this name behind: its content is outdated."""
    if os.path.lexists(target):
        import shutil

        outdated = f"{target}.{os.getpid()}.outdated"
        os.rename(target, outdated)
        shutil.rmtree(outdated, ignore_errors=True)


def _sync(path: str) -> None:
    """Flush one file or directory to disk, where the platform can."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return  # a dangling link, or a directory on Windows: nothing to flush
    try:
        os.fsync(fd)
    except OSError as error:
        # Some filesystems refuse fsync (EINVAL); a full or broken disk (ENOSPC, EIO) must be heard.
        import errno

        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(fd)

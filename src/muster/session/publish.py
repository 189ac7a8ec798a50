"""Publishes a checkpoint directory atomically: it exists completely under its name, or not at all."""

from __future__ import annotations

import json
import os

MANIFEST = ".muster_manifest.json"  # the names and sizes of the files beside it
CHECKPOINT_NAME = "checkpoint_{index:06d}"


def checkpoint_name(index: int) -> str:
    """Returns the name of a checkpoint directory, such as `checkpoint_000003`."""
    return CHECKPOINT_NAME.format(index=index)


def staging_path(trial_dir: str, name: str) -> str:
    """Returns the path of a directory that is not complete yet: beside its name, for an atomic rename."""
    return os.path.join(trial_dir, f".{name}.{os.getpid()}.partial")


def publish_copy(source: str, trial_dir: str, name: str) -> str:
    """Copies `source` to `trial_dir/name` without changing the source. Leaves nothing behind on failure."""
    import shutil

    partial = staging_path(trial_dir, name)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
        return publish_staged(partial, trial_dir, name)
    except shutil.Error as error:  # its text is a list of everything that failed
        shutil.rmtree(partial, ignore_errors=True)
        _, _, reason = error.args[0][0]
        raise OSError(f"checkpoint {name} could not be kept: {str(reason).partition(': ')[0]}") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def publish_staged(partial: str, trial_dir: str, name: str) -> str:
    """Gives a finished staging directory its name, durably. A directory of that name is replaced.

    What is in it is written down inside, so that one that was damaged later is recognised.
    """
    _write_manifest(partial)
    for folder, _, files in os.walk(partial):
        for file in files:
            _sync(os.path.join(folder, file))
        _sync(folder)
    target = os.path.join(trial_dir, name)
    aside = set_aside(target)
    os.rename(partial, target)
    if aside is not None:
        import shutil

        shutil.rmtree(aside, ignore_errors=True)
    _sync(trial_dir)
    return target


def set_aside(place: str) -> str | None:
    """Renames a directory so that a part of it is not taken for the whole; None when there is none.

    A report that was lost in a crash may have left a directory of this name: its content is outdated.
    """
    folder, name = os.path.split(place)
    aside = os.path.join(folder, f".{name}.{os.getpid()}.deleted")
    try:
        os.rename(place, aside)
    except FileNotFoundError:
        return None
    return aside


def _write_manifest(directory: str) -> None:
    sizes: dict[str, int] = {}
    for folder, _, files in os.walk(directory):
        for name in files:
            file = os.path.join(folder, name)
            key = os.path.relpath(file, directory).replace(os.sep, "/")
            if key != MANIFEST and os.path.exists(file):
                sizes[key] = os.stat(file).st_size
    with open(os.path.join(directory, MANIFEST), "w", encoding="utf-8") as stream:
        json.dump({"files": sizes}, stream)


def _sync(path: str) -> None:
    """Flushes one file or directory to disk, where the platform can."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return  # a dangling link, or a directory on Windows: nothing to flush
    try:
        os.fsync(fd)
    except OSError as error:
        # Some filesystems refuse fsync (EINVAL); a full or broken disk (ENOSPC, EIO) must be reported.
        import errno

        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(fd)

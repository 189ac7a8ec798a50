"""Publish a checkpoint directory atomically: it exists completely under its name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

from muster.base.clock import Clock, SystemClock

T = TypeVar("T")

MANIFEST = ".muster_manifest.json"  # the names and sizes of the files beside it
CHECKPOINT_NAME = "checkpoint_{index:06d}"
_CHECKPOINT = re.compile(r"\.?checkpoint_\d{6,}(\.\d+\.(partial|deleted))?$")
FULL_DISK_S, FULL_DISK_PAUSE_S = 60.0, 0.5
LEFT_FREE = 1 << 20  # what a checkpoint leaves on a disk: results and logs of all trials need little, but now


def checkpoint_name(index: int) -> str:
    """Return the name of a checkpoint directory, such as `checkpoint_000003`."""
    return CHECKPOINT_NAME.format(index=index)


def staging_path(trial_dir: str, name: str) -> str:
    """Return the path of a directory that is not complete yet: beside its name, for an atomic rename."""
    return os.path.join(trial_dir, f".{name}.{os.getpid()}.partial")


def publish_copy(source: str, trial_dir: str, name: str, clock: Clock | None = None) -> str:
    """Copy `source` to `trial_dir/name` without changing the source. Leaves nothing behind on failure.

    On a full disk it waits for room, as the store of the experiment does.
    """
    partial = staging_path(trial_dir, name)

    def copy() -> str:
        with deleted_on_failure(partial):
            _copy_tree(source, partial, os.path.realpath(trial_dir))
            return publish_staged(partial, trial_dir, name)

    with explained(name, source):
        return when_there_is_room(copy, trial_dir, _size(source), clock)


@contextlib.contextmanager
def explained(name: str, source: str) -> Iterator[None]:
    """Add to an OSError of the body which checkpoint could not be kept."""
    try:
        yield
    except OSError as error:
        reason = f"checkpoint {name} could not be kept: {error.strerror or error}"
        raise OSError(error.errno, reason, error.filename or source) from error


@contextlib.contextmanager
def deleted_on_failure(place: str) -> Iterator[None]:
    """Delete a file or directory when the body fails: it would keep the room that a full disk lacks."""
    try:
        yield
    except BaseException:
        import shutil

        with contextlib.suppress(OSError):
            os.unlink(place)
        shutil.rmtree(place, ignore_errors=True)
        raise


def when_there_is_room(action: Callable[[], T], folder: str, size: int = 0, clock: Clock | None = None) -> T:
    """Return what `action` returns; on a full disk it is called again, for `FULL_DISK_S` at most.

    `size` bytes are about to be written in `folder`: before there is room for them it is not called.
    """
    deadline: float | None = None
    while True:
        try:
            _require_room(folder, size)
            return action()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            clock = clock or SystemClock()
            deadline = clock.monotonic() + FULL_DISK_S if deadline is None else deadline
            if clock.monotonic() >= deadline:
                raise
            clock.sleep(FULL_DISK_PAUSE_S)


def _require_room(folder: str, size: int) -> None:
    try:
        disk = os.statvfs(folder)
    except (OSError, AttributeError):  # a directory that is not there yet; no such call on Windows
        return
    # Some network file systems say 0 because they do not know: writing tells.
    if 0 < disk.f_bavail * disk.f_frsize < size + LEFT_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)


def _size(directory: str) -> int:
    """Return the bytes of the files in it; what cannot be read is found when it is copied."""
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _copy_tree(source: str, target: str, trial_dir: str, above: tuple[str, ...] = ()) -> None:
    """Copy files and what links lead to; OSError names a link that leads nowhere or around in a circle.

    A trial may save its whole directory: the checkpoints in `trial_dir` are left out. `above` are the true
    paths of the directories that are being copied.
    """
    import shutil

    above = (*above, os.path.realpath(source))
    os.makedirs(target)  # a trial may have deleted its own directory
    with os.scandir(source) as found:
        entries = [each for each in found if above[-1] != trial_dir or not _CHECKPOINT.match(each.name)]
    for entry in entries:
        place = os.path.join(target, entry.name)
        if entry.is_symlink():
            if not os.path.exists(entry.path):
                raise OSError(errno.ENOENT, "a link in it leads nowhere: remove it", entry.path)
            leads_to = os.path.realpath(entry.path)
            if any(os.path.commonpath([folder, leads_to]) == leads_to for folder in above):
                raise OSError(errno.ELOOP, "a link in it leads to a directory above: remove it", entry.path)
        if entry.is_dir():
            _copy_tree(entry.path, place, trial_dir, above)
        else:
            shutil.copy2(entry.path, place)
    shutil.copystat(source, target)


def publish_staged(partial: str, trial_dir: str, name: str) -> str:
    """Give a finished staging directory its name, durably. A directory of that name is replaced.

    A manifest inside lists the files, so that later damage is recognised.
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
    """Rename a directory so that a part of it is not taken for the whole; None when there is none.

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
    import json  # here, because most trials make no checkpoint, and each fork pays for its modules

    sizes: dict[str, int] = {}
    for folder, _, files in os.walk(directory):
        for name in files:
            file = os.path.join(folder, name)
            key = os.path.relpath(file, directory).replace(os.sep, "/")
            if key != MANIFEST and os.path.exists(file):
                sizes[key] = os.stat(file).st_size
    if not sizes:
        warnings.warn(
            "a checkpoint without any file was saved; nothing can be restored from it", stacklevel=2
        )
    with open(os.path.join(directory, MANIFEST), "w", encoding="utf-8") as stream:
        json.dump({"files": sizes}, stream)


def _sync(path: str) -> None:
    """Flush one file or directory to disk, where the platform can."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return  # a dangling link, or a directory on Windows: nothing to flush
    try:
        os.fsync(fd)
    except OSError as error:
        # Some filesystems refuse fsync (EINVAL); a full or broken disk (ENOSPC, EIO) must be reported.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(fd)

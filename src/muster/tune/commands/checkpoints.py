"""Find the checkpoints that a command writes: which is the newest, and whether it is complete."""

from __future__ import annotations

import glob
import os
import shutil
import stat
from typing import NamedTuple

from muster.session.checkpoint import Checkpoint

SETTLED_S = 1.0  # a checkpoint that has not changed for so long is complete
_FILE = "command_file"  # in the metadata: the checkpoint is this one file


class Seen(NamedTuple):
    """One file or directory as it was at one time."""

    path: str
    modified_ns: int
    files: tuple[tuple[str, int, int], ...]  # name, size, time
    was_renamed: bool  # its name is younger than its content: a rename changes only the time of the inode


class CheckpointFinder:
    """Looks at what a pattern matches; what was there before the command is not a checkpoint of it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        folder, name = os.path.split(pattern)
        self._folder = folder if name == "*" and not glob.has_magic(folder) else ""  # the usual case
        self._taken = {path: seen.modified_ns for path in self._paths() if (seen := _look(path)) is not None}
        self._watched: tuple[Seen, float] | None = None

    def _paths(self) -> list[str]:
        if not self._folder:
            return [path.rstrip("/") for path in glob.glob(self._pattern)]
        try:  # at every result, and `glob` takes three times as long
            return [f"{self._folder}/{name}" for name in os.listdir(self._folder) if name[0] != "."]
        except OSError:
            return []

    def newest(self) -> Seen | None:
        """Return the newest entry that was not taken as it is now."""
        seen = [each for path in self._paths() if (each := _look(path)) is not None]
        new = [each for each in seen if self._taken.get(each.path) != each.modified_ns]
        return max(new, key=lambda each: (each.modified_ns, each.path), default=None)

    def is_complete(self, seen: Seen, now: float) -> bool:
        """Return whether it was renamed into place, or has not changed for a second."""
        if seen.was_renamed:
            return True
        if self._watched is None or self._watched[0] != seen:
            self._watched = (seen, now)
        return now - self._watched[1] >= SETTLED_S

    def take(self, seen: Seen, staging: str) -> Checkpoint:
        """Return a checkpoint to publish; a single file gets a directory."""
        self._taken[seen.path] = seen.modified_ns
        if os.path.isdir(seen.path):
            return Checkpoint(seen.path)
        shutil.rmtree(staging, ignore_errors=True)
        os.makedirs(staging)
        shutil.copy2(seen.path, staging)
        made = Checkpoint(staging)
        made.set_metadata({_FILE: os.path.basename(seen.path)})
        return made


def resume_path(checkpoint: Checkpoint | None) -> str:
    """Return what a command continues from: the directory or file that it wrote; "" for none."""
    if checkpoint is None:
        return ""
    path = os.path.abspath(checkpoint.path if checkpoint._is_local else checkpoint.to_directory())
    name = Checkpoint(path).get_metadata().get(_FILE)
    return os.path.join(path, name) if name else path


def _look(path: str) -> Seen | None:
    try:
        itself, names = os.stat(path), [path]
        if stat.S_ISDIR(itself.st_mode):
            names = [f"{folder}/{name}" for folder, _, inner in os.walk(path) for name in sorted(inner)]
        found = [(name, os.stat(name)) for name in names]
    except OSError:
        return None  # it changes just now
    files = tuple((name, each.st_size, each.st_mtime_ns) for name, each in found)
    newest = max([itself.st_mtime_ns, *(each.st_mtime_ns for _, each in found)])
    return Seen(path, newest, files, itself.st_ctime_ns > itself.st_mtime_ns) if files else None

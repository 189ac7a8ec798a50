"""Redirects a trial's output to its files, by file descriptor: C code and child processes are captured too.

Used in the worker; nothing passes through memory, so nothing can fill it.
"""

from __future__ import annotations

import contextlib
import os
import sys


class Output:
    """An Output points descriptors 1 and 2 at a trial's files, and back."""

    def __init__(self) -> None:
        self._original: tuple[int, int] | None = None

    def redirect(self, trial_dir: str, files: tuple[str | None, str | None]) -> None:
        """Sends standard output and error to these files of the trial; None: where they went before."""
        if files == (None, None) and self._original is None:
            return
        flush()
        if self._original is None:
            self._original = (os.dup(1), os.dup(2))
        for target, file, before in zip((1, 2), files, self._original, strict=True):
            if file is None:
                os.dup2(before, target)
            else:
                _point(target, os.path.join(trial_dir, file))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def restore(self) -> None:
        self.redirect("", (None, None))


def _point(target: int, file: str) -> None:
    # Append: a trial that is tried again continues its file, and both streams may share one.
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(fd, target)
    os.close(fd)


def flush() -> None:
    """Writes out what Python still buffers; a closed or full target is ignored."""
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - `suppress` costs each new process more than the rest of this
            stream.flush()
        except (AttributeError, ValueError, OSError):
            pass

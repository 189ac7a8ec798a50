"""Redirect a trial's output to its files, or puts the trial's name before each line that it prints.

Files are redirected by descriptor: C code and child processes are captured too. Used in the worker; nothing
passes through memory, so nothing can fill it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any

_NEXT_LINE = re.compile(r"([\r\n]+)(?=[^\r\n])")


class NamedLines:
    """A text stream that puts a name before each line; all else is the stream's own."""

    def __init__(self, stream: Any, name: str) -> None:  # noqa: ANN401 - whatever sys.stdout is
        self._stream, self._name, self._is_new = stream, f"({name}) ", True

    def write(self, text: str) -> int:
        if text:
            first = self._name if self._is_new and text[0] not in "\r\n" else ""
            self._is_new = text[-1] in "\r\n"
            self._stream.write(first + _NEXT_LINE.sub(lambda end: end[1] + self._name, text))
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 - any iterable of texts
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)


class Output:
    """Points descriptors 1 and 2 at a trial's files, and back."""

    def __init__(self) -> None:
        self._original: tuple[int, int] | None = None
        self._streams: tuple[Any, Any] | None = None

    def begin(self, name: str, trial_dir: str, files: tuple[str | None, str | None]) -> None:
        """Send a trial's output to its files; what has no file stays, with the trial's name before it."""
        self.redirect(trial_dir, files)
        self._streams = streams = (sys.stdout, sys.stderr)
        if files[0] is None and streams[0] is not None:
            sys.stdout = NamedLines(streams[0], name)
        if files[1] is None and streams[1] is not None:
            sys.stderr = NamedLines(streams[1], name)

    def redirect(self, trial_dir: str, files: tuple[str | None, str | None]) -> None:
        """Send standard output and error to these files of the trial; None: where they went before."""
        if files == (None, None) and self._original is None:
            return
        flush()
        if self._original is None:
            self._original = (os.dup(1), os.dup(2))
        for target, file, before in zip((1, 2), files, self._original, strict=True):
            if file is None:
                os.dup2(before, target)
            else:
                # Append: a trial that is tried again continues its file, and both streams may share one.
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                fd = os.open(os.path.join(trial_dir, file), flags, 0o644)
                os.dup2(fd, target)
                os.close(fd)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def restore(self) -> None:
        if self._streams is not None:
            (sys.stdout, sys.stderr), self._streams = self._streams, None
        self.redirect("", (None, None))


def flush() -> None:
    """Write out what Python still buffers; a closed or full target is ignored."""
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - `suppress` costs each new process more than the rest of this
            stream.flush()
        except (AttributeError, ValueError, OSError):
            pass

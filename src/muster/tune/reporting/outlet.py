"""Outlet: lines to a stream that may go away. An experiment must not end because nobody reads along."""

from __future__ import annotations

import sys
from typing import TextIO


class Outlet:
    """Writes to `stream`, or to whatever standard output is at the moment; falls silent when that is gone."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._is_lost = False

    def say(self, text: str) -> None:
        stream = self._stream if self._stream is not None else sys.stdout
        if self._is_lost or stream is None:
            return
        try:
            try:
                stream.write(f"{text}\n")
            except UnicodeEncodeError:
                encoding = getattr(stream, "encoding", None) or "ascii"
                stream.write(f"{text}\n".encode(encoding, "replace").decode(encoding))
            stream.flush()
        except (OSError, ValueError):  # a pipe nobody reads, a full disk, a stream that was closed
            self._is_lost = True

"""Reads a history again and again, as the page does: only what has been written since the last time."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from muster.errors import StoreError
from muster.stores.history.files import TAIL, read_segment, read_tail, segments
from muster.stores.history.past import PastReader

MAX_BYTES = 6_000_000  # of segments, the newest: about a week of a busy cluster


class HistoryFollower:
    """A HistoryFollower holds the past of one history; `refresh` reads what is new.

    Several threads may share one: each holds `lock` from `refresh` until it has used the past.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lock = threading.Lock()
        self.past = PastReader()
        self.problem = ""
        self._read_to: dict[Path, int] = {}  # bytes of each segment

    def mark(self) -> str:
        """Returns a text that changes when there is something new."""
        return "-".join(_stamp(path) for path in (self._folder / TAIL, *segments(self._folder)[-1:]))

    def refresh(self) -> PastReader:
        """Returns the past until now; what cannot be read is named in `problem`, and the rest is there."""
        try:
            tail = list(read_tail(self._folder / TAIL))  # first: what is packed meanwhile is then there twice
        except FileNotFoundError:
            tail = []
        except StoreError as error:
            tail, self.problem = [], str(error)
        for path in self._wanted():
            self._follow(path)
        for entry in tail:
            if entry.seq > self.past.seq and (entry.is_whole or self.past.since is not None):
                self.past.add(entry)
        return self.past

    def _wanted(self) -> list[Path]:
        """Returns the newest segments within the limit, oldest first."""
        left = MAX_BYTES
        chosen: list[Path] = []
        for path in reversed(segments(self._folder)):
            with contextlib.suppress(FileNotFoundError):
                left -= path.stat().st_size
                if left >= 0 or not chosen:
                    chosen.append(path)
        return chosen[::-1]

    def _follow(self, path: Path) -> None:
        start = self._read_to.get(path, 0)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size <= start:
                return
            try:
                for entry, end in read_segment(path, start, is_newest=True):
                    if entry.seq > self.past.seq and (entry.is_whole or self.past.since is not None):
                        self.past.add(entry)
                    self._read_to[path] = end
            except StoreError as error:
                self.problem, self._read_to[path] = str(error), path.stat().st_size


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "none"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"

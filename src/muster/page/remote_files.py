"""Copy files of a remote experiment's trials to this computer: results first, logs on request.

The store was copied when the page started; what the curves need follows here, far apart trials first, so that
a part stands for the whole. Read-only on the remote side, and bounded on this one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from muster.errors import MusterError
from muster.page.result_curves import LastResult, scattered
from muster.stores.storage import Storage
from muster.tune.analysis.result_files import EXPR_ERROR_FILE, EXPR_RESULT_FILE

MAX_BYTES = 500_000_000  # of results; trials beyond it have no curve
MAX_LOG_BYTES = 2_000_000  # of one file of a trial's output
_OUTPUT = ("stdout", "stderr", "note.txt", EXPR_ERROR_FILE)
_AT_ONCE = 8  # most of the time goes into waiting for answers


class RemoteFiles:
    """RemoteFiles fetch in separate threads; `fetched` is called with each trial that is there."""

    def __init__(self, storage: Storage, copy: str) -> None:
        self._storage = storage
        self._copy = os.path.realpath(copy)
        self._lock = threading.Lock()
        self._wanted: dict[int, str] = {}
        self._known: set[str] = set()  # folders whose results were asked for
        self._bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._under_way = 0
        self.fetched: Callable[[int, str], None] = lambda row, folder: None

    @property
    def behind(self) -> int:
        """The number of trials whose results are still to be fetched."""
        with self._lock:
            return len(self._wanted) + self._under_way

    def want(
        self, row: int, folder: str, last: LastResult | None = None, *, is_running: bool = False
    ) -> None:
        """Ask for the results of a trial, once."""
        with self._lock:
            if folder not in self._known:
                self._known.add(folder)
                self._wanted[row] = folder

    def start(self) -> None:
        """Begin with what was asked for, unless that was done."""
        with self._lock:
            if self._is_closed or not self._wanted:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="page-remote")
            rows = list(scattered(list(self._wanted)))
            taken, self._wanted = self._wanted, {}
            self._under_way += len(taken)
            for row in rows:
                self._pool.submit(self._fetch, row, taken[row])

    def describe(self, folder: str) -> None:
        """Fetch what the drawer shows of a trial: the names of checkpoints, its output, its error."""
        try:
            sizes = self._storage.below(folder).sizes()
        except MusterError:
            return
        for name, size in sizes.items():
            top, _, rest = name.partition("/")
            if rest and top.startswith("checkpoint_"):
                place = self._place(folder, top)
                if place is not None:
                    place.mkdir(parents=True, exist_ok=True)
            elif not rest and size <= MAX_LOG_BYTES and (name in _OUTPUT or name.endswith(".log")):
                self._save(folder, name)

    def close(self) -> None:
        with self._lock:
            self._is_closed, pool = True, self._pool
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _fetch(self, row: int, folder: str) -> None:
        try:
            if not self._is_closed and self._bytes < MAX_BYTES and self._save(folder, EXPR_RESULT_FILE):
                self.fetched(row, folder)
        finally:
            with self._lock:
                self._under_way -= 1

    def _save(self, folder: str, name: str) -> bool:
        """Copy one file; returns whether it is there now."""
        place = self._place(folder, name)
        if place is None:
            return False
        try:
            content = self._storage.below(folder).read(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        except (MusterError, OSError, ValueError):
            return False  # not logged, or not there any more
        with self._lock:
            self._bytes += len(content)
        return True

    def _place(self, folder: str, name: str) -> Path | None:
        """Return where a file is copied to; None for a folder that leads out of the copy."""
        found = os.path.realpath(os.path.join(self._copy, folder, name))
        return Path(found) if found.startswith(f"{self._copy}/") else None

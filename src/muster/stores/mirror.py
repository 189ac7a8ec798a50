"""Copy the changed files of a local directory to its storage.

One thread (`uploads.Uploader`) calls `step`; any thread may mark what changed. Files are copied first and the
store of the experiment last, as a copy taken before them: what it refers to exists when it arrives. Results
leave the store once they are in their files: so all files that grew are copied first, marked or not. A
checkpoint's manifest is copied after its files: a node that waits for it finds all of them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from msgspec import Struct

from muster.base.clock import Clock
from muster.errors import StoreError
from muster.session.publish import MANIFEST
from muster.stores.checkpoints import delete_directory
from muster.stores.experiment.reader import STORE_NAME, open_trials
from muster.stores.storage import MARKER, Storage, local_sizes

SKIPPED = (f"{STORE_NAME}*", MARKER, "*.partial", "*.deleted")  # goes as a copy; its own; half done
NEEDED = ("checkpoint_", "result.json")  # the store is of little use without them
LOOKING_SHARE = 20.0  # of the time between two stores, looking through all files takes a twentieth at most
Print = tuple[int, int]  # size and time of change: enough for files that are written once or appended to


class MirrorInterval(Struct, frozen=True, kw_only=True):
    """Defines how often files are copied."""

    again_s: float = 5.0  # a file that grows is copied again after so long at the earliest
    store_s: float = 10.0  # so is the experiment's store
    retry_s: float = 1.0  # wait after a failure; doubles with each
    retry_max_s: float = 60.0


class _Trouble(Struct):
    failures: int = 0
    due_at: float = 0.0


class Mirror:
    """Copies changed files below `source` to `storage`."""

    def __init__(
        self,
        source: str | Path,
        storage: Storage,
        *,
        clock: Clock,
        pace: MirrorInterval | None = None,
        wanted: Callable[[str], bool] | None = None,
        shared: Callable[[str], bool] | None = None,
    ) -> None:
        """`wanted` returns whether a file, by its name below `source`, is copied; None: all are.

        `shared` returns whether others append to the file too; a longer one on the storage is kept.
        """
        self.source, self.storage = Path(source), storage
        self._wanted = wanted or (lambda name: True)
        self._shared = shared or (lambda name: False)
        self.clock, self._pace = clock, pace or MirrorInterval()
        self._lock = threading.Lock()
        self._changed: dict[str, None] = {"": None}  # ordered; everything, at first
        self._discarded: dict[str, _Trouble] = {}
        self._is_copying, self._kept_here = False, list[str]()  # to be deleted here after this pass
        self._copied: dict[str, tuple[Print, float]] = {}  # file -> what was copied, and when
        self._due: dict[str, float] = {}  # files that wait for their time
        self._trouble: dict[str, _Trouble] = {}
        self._store_s = self._pace.store_s
        self._problems: deque[str] = deque(maxlen=100)
        self.copied_files = 0

    def changed(self, name: str) -> None:
        """Mark this directory or file as changed.

        To be called before the fact about it is appended: then no store is ahead of its files.
        """
        with self._lock:
            self._changed[name] = None

    def discard(self, name: str) -> bool:
        """Delete a directory on the storage, once the store there knows; True: the caller deletes it here.

        False: the store that is being copied may name it, so it is copied as well and deleted here then.
        """
        with self._lock:
            self._discarded.setdefault(name, _Trouble())
            if self._is_copying:
                self._kept_here.append(name)
            return not self._is_copying

    def poll_problems(self) -> tuple[str, ...]:
        """Return what failed since the last call, one line each; it will be tried again."""
        with self._lock:
            found = tuple(self._problems)
            self._problems.clear()
        return found

    def next_due(self) -> float | None:
        """Return when `step` has something to do, by the monotonic clock; None: when something changes."""
        with self._lock:
            if self._changed:
                return self.clock.monotonic()
            troubles = [*self._trouble.values(), *self._discarded.values()]
        return min([*self._due.values(), *(trouble.due_at for trouble in troubles)], default=None)

    def missing(self) -> tuple[str, ...]:
        """Return the files that the storage lacks in their current state. Any thread may call this."""
        files = [name for name in local_sizes(self.source) if not _is_skipped(name) and self._wanted(name)]
        lacking = []
        for name in [*files, STORE_NAME]:
            print_, copied = self._print(name), self._copied.get(name)
            if print_ is not None and (copied is None or copied[0] != print_):
                lacking.append(name)
        return tuple(lacking)

    def step(self, *, everything: bool = False) -> bool:
        """Copy what changed and is due; with `everything`, all. Returns whether nothing is left."""
        with self._lock:
            discarded = list(self._discarded)  # the store's copy is taken after these were marked
            self._is_copying = True
        try:
            with self._store_copy(everything) as store:
                for name in self._files(everything, with_store=store is not None):
                    self._copy(name, self.source / name, self._print(name))
                if store is not None:
                    self._copy_store(*store, everything)
        finally:
            self._delete_here()
        if everything or STORE_NAME not in {**self._due, **self._trouble}:
            self._delete(discarded, everything)
        with self._lock:
            return not (self._due or self._trouble or self._discarded or self._changed)

    def _delete_here(self) -> None:
        with self._lock:
            self._is_copying = False
            names, self._kept_here = self._kept_here, []
        for name in names:
            delete_directory(self.source / name)

    def _files(self, everything: bool, *, with_store: bool) -> list[str]:
        """Return the files to copy now, sorted; the others get a time."""
        began = self.clock.monotonic()
        found = set(self._due) | set(self._trouble)
        with self._lock:
            names = [""] if everything or with_store or "" in self._changed else list(self._changed)
            self._changed.clear()
        for name in names:
            place = self.source / name
            inside = local_sizes(place) if place.is_dir() else {"": 0}
            found.update("/".join(part for part in (name, file) if part) for file in inside)
        found.discard(STORE_NAME)
        in_order = sorted(found, key=_manifests_last)
        wanted = [file for file in in_order if not _is_skipped(file) and self._wanted(file)]
        again_s = 0.0 if with_store else self._pace.again_s
        due = [file for file in wanted if self._is_due(file, again_s, everything)]
        if with_store:  # all files were looked at
            self._store_s = max(self._pace.store_s, LOOKING_SHARE * (self.clock.monotonic() - began))
        return due

    def _is_due(self, name: str, again_s: float, everything: bool) -> bool:
        now, print_ = self.clock.monotonic(), self._print(name)
        known = self._copied.get(name)
        if print_ is None or (known is not None and known[0] == print_):
            self._settled(name)
            return False
        trouble = self._trouble.get(name)
        due_at = trouble.due_at if trouble is not None else known[1] + again_s if known is not None else now
        if everything or due_at <= now:
            return True
        self._due[name] = due_at
        return False

    def _settled(self, name: str) -> None:
        self._due.pop(name, None)
        self._trouble.pop(name, None)

    def _print(self, name: str) -> Print | None:
        """Return size and time of a file; None when there is none. The log of the store is included."""
        logs = [f"{name}-wal"] if name == STORE_NAME else []
        size = changed = 0
        for index, each in enumerate([name, *logs]):
            try:
                found = os.stat(self.source / each)
            except OSError:
                if index == 0:
                    return None
                continue
            size, changed = size + found.st_size, max(changed, found.st_mtime_ns)
        return size, changed

    @contextlib.contextmanager
    def _store_copy(self, everything: bool) -> Iterator[tuple[Path, Print | None] | None]:
        if not self._is_due(STORE_NAME, self._store_s, everything):
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="muster-") as folder:
            copy, print_ = Path(folder, STORE_NAME), self._print(STORE_NAME)
            try:
                with open_trials(self.source / STORE_NAME) as reader:
                    reader.copy_to(copy)
            except StoreError as error:
                self._failed(STORE_NAME, error)
                yield None
                return
            yield copy, print_

    def _copy_store(self, copy: Path, print_: Print | None, everything: bool) -> None:
        # A store whose checkpoints and results are not there yet would be worse than an older one.
        if not everything and any(part in name for name in self._trouble for part in NEEDED):
            self._due[STORE_NAME] = self.clock.monotonic() + self._pace.again_s
        else:
            self._copy(STORE_NAME, copy, print_)

    def _copy(self, name: str, file: Path, print_: Print | None) -> None:
        if print_ is None:
            return
        folder, _, last = name.rpartition("/")
        if last == MANIFEST and any(each.startswith(f"{folder}/") for each in self._trouble):
            self._due[name] = self.clock.monotonic() + self._pace.retry_s
            return
        try:
            if not (self._shared(name) and (self.storage.size(name) or 0) > print_[0]):
                self.storage.upload_file(file, name)
        except StoreError as error:
            if file.exists():  # else it was deleted under our hands, which is not a failure
                self._failed(name, error)
            else:
                self._settled(name)
            return
        self._settled(name)
        self._copied[name] = (print_, self.clock.monotonic())
        self.copied_files += 1

    def _failed(self, name: str, error: StoreError) -> None:
        self._due.pop(name, None)
        self._put_off(self._trouble.setdefault(name, _Trouble()), error)

    def _put_off(self, trouble: _Trouble, error: StoreError) -> None:
        wait = min(self._pace.retry_max_s, self._pace.retry_s * 2.0 ** min(trouble.failures, 30))
        trouble.failures += 1
        trouble.due_at = self.clock.monotonic() + wait
        with self._lock:
            self._problems.append(f"{error} (failure {trouble.failures}; trying again in {wait:g} s)")

    def _delete(self, names: list[str], everything: bool) -> None:
        for name in names:
            trouble = self._discarded[name]
            if everything or trouble.due_at <= self.clock.monotonic():
                try:
                    self.storage.delete_dir(name)
                except StoreError as error:
                    self._put_off(trouble, error)
                else:
                    with self._lock:
                        self._discarded.pop(name, None)
                    for file in [file for file in self._copied if file.startswith(f"{name}/")]:
                        del self._copied[file]


def _manifests_last(name: str) -> tuple[bool, str]:
    return name.endswith(f"/{MANIFEST}"), name


def _is_skipped(name: str) -> bool:
    return any(fnmatch(part, pattern) for part in name.split("/") for pattern in SKIPPED)

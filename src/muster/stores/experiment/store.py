"""Store the facts of one experiment in one file; the implementation of `trials.ports.TrialStore`.

One INSERT per append. A snapshot replaces all facts before it: they are deleted, and what readers need is
kept in one small row per trial; so the file grows with the number of trials, not of results.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.base.clock import Clock, SystemClock
from muster.errors import StoreError, StoreFull
from muster.stores.experiment import values
from muster.stores.experiment.codec import ExperimentLocation, pack_batch
from muster.stores.experiment.reader import STORE_NAME, TrialReader, store_path
from muster.stores.experiment.trial_rows import ARRAYS, TRIALS_SCHEMA, RowBuffer, compress
from muster.stores.sqlite import Closing, Database
from muster.trials.events import Fact
from muster.trials.ports import SavedExperiment, TrialStore

__all__ = ["STORE_NAME", "SqliteTrialStore"]

_APPEND = "INSERT INTO batches VALUES (?, ?, ?)"


class SqliteTrialStore(Closing):
    """The one writer of the file; LedgerLocked while another one is alive.

    Args:
        path: The file, or the experiment's directory, which gets `experiment.sqlite`.
        root: What checkpoint paths are relative to; the file's directory unless storage is remote.
        trust_pickles: Whether `load` unpickles values that are not data, which runs code from the file.
            Without it they come back as `Pickled`. True only when the user asks to resume this experiment.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        root: str | None = None,
        trust_pickles: bool = False,
        wait_s: float = 1.0,
    ) -> None:
        place = store_path(path)
        self._database = Database.open(place, TRIALS_SCHEMA, clock=clock or SystemClock(), wait_s=wait_s)
        self._place = place_of(place, root)
        self.reader = TrialReader(self._database, self._place)
        self._trust = trust_pickles
        self._is_open = True
        self._fold = RowBuffer()
        self._arrays: set[bytes] = set()  # those that this process has stored
        try:
            self.appended = self.reader.appended()  # facts, in this process and before: all survive kill -9
            # Facts of an earlier process that no snapshot stands for: read only when they are folded.
            self._has_inherited = self.appended > 0
            self._plugins = {name: _digest(state) for name, state in self.reader.plugins().items()}
        except BaseException:
            self._database.close()
            raise

    @property
    def path(self) -> Path:
        return self._database.path

    def append(self, facts: Sequence[Fact]) -> None:
        """Store the facts, all or none; they survive kill -9 once this returns. StoreError: none stored."""
        if not facts:
            return
        data, pickles, stored = pack_batch(facts, self._place)
        self._keep_arrays()
        last = self.appended + len(facts)
        self._database.execute(_APPEND, (last, data, pickles))
        self.appended = last
        self._fold.note(stored)

    def snapshot(
        self,
        trials: bytes,
        plugins: Mapping[str, bytes],
        statuses: Mapping[str, str] | None = None,
        ended: Sequence[bytes] = (),
    ) -> None:
        """Replace the saved state in one transaction; the facts before it are removed, `ended` is added.

        `statuses` may name Ray's status of trials that does not follow from the facts: paused, to be retried.
        """
        digests = {name: _digest(state) for name, state in plugins.items()}
        changed = [name for name in plugins if self._plugins.get(name) != digests[name]]
        gone = [name for name in self._plugins if name not in plugins]
        rows = [(name, compress(plugins[name])) for name in changed]
        fold = self._whole_fold()
        self._keep_arrays()
        with self._database.transaction():
            self._database.execute(
                "UPDATE experiment SET saved = ?, snapshot = ?", (self.appended, compress(trials))
            )
            self._database.execute_many("REPLACE INTO plugins VALUES (?, ?)", rows)
            self._database.execute_many("DELETE FROM plugins WHERE name = ?", [(name,) for name in gone])
            archives = ((compress(each),) for each in ended)  # one by one: they are large
            self._database.execute_many("INSERT INTO archives (records) VALUES (?)", archives)
            fold.write(self._database, statuses or {})
            self._database.execute("DELETE FROM batches")
        self._fold, self._has_inherited = RowBuffer(), False
        self._plugins = digests
        self._database.shrink(beyond=0.7)

    def _keep_arrays(self) -> None:
        """Store each large array once, before what refers to it."""
        for digest, array in [each for each in values.large_arrays.items() if each[0] not in self._arrays]:
            self._database.execute(ARRAYS)
            self._database.execute("INSERT OR IGNORE INTO arrays VALUES (?, ?)", (digest, array.tobytes()))
            self._arrays.add(digest)

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        """Store what the experiment is started with; `load` returns it."""
        data, pickles = values.encode(dict(settings))
        self._database.execute("UPDATE experiment SET settings = ?, settings_pickles = ?", (data, pickles))

    def load(self) -> SavedExperiment:
        return self.reader.saved(trust_pickles=self._trust)

    def sync(self) -> None:
        """Make every append safe from a power cut too. Blocks; any thread may call it.

        Flushing the file flushes everything in the log: no statement, no lock.
        """
        for name in (f"{self.path}-wal", str(self.path)):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(name, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._is_open:
            self._is_open = False
            try:
                with contextlib.suppress(StoreError):  # a full disk: the file just stays as large as it is
                    self._database.shrink()
            finally:
                self._database.close()

    def _whole_fold(self) -> RowBuffer:
        """Return everything since the last snapshot, including facts of an earlier process."""
        if not self._has_inherited:
            return self._fold
        fold = RowBuffer()
        fold.note(self.reader.tail())
        return fold


def _digest(state: bytes) -> bytes:
    """Return a hash that shows whether the state of a plug-in, which may be large, has changed."""
    return hashlib.blake2b(state, digest_size=16).digest()


def place_of(path: Path, root: str | None) -> ExperimentLocation:
    """Return how checkpoint paths of this store are stored; a link to the directory is resolved."""
    if root is not None:
        return ExperimentLocation(root)
    directory = path.parent
    return ExperimentLocation(os.path.abspath(directory), os.path.realpath(directory))


PATIENCE_S = 60.0
PAUSE_S = 0.5
RESERVE_BYTES = 1 << 20  # some thousand results
RESERVE_NAME = "experiment.sqlite.reserve"


class FullDiskStore:
    """Notifies the user of what it waits for, and raises after `PATIENCE_S` or on a stop."""

    def __init__(
        self,
        store: TrialStore,
        clock: Clock,
        notify: Callable[[str], None],
        should_stop: Callable[[], bool],
        directory: Path,
    ) -> None:
        self._store, self._clock, self._notify, self._should_stop = store, clock, notify, should_stop
        self._reserve = directory / RESERVE_NAME
        self.load, self.snapshot = store.load, store.snapshot
        with contextlib.suppress(OSError):  # no room for a reserve: then there is none
            _fill(self._reserve, RESERVE_BYTES)

    def append(self, facts: Sequence[Fact]) -> None:
        try:
            self._store.append(facts)
        except StoreFull as error:
            if not self._append_with_reserve(facts):
                self._append_later(facts, error)

    def close(self) -> None:
        """Give the reserve back; the store is closed by its owner."""
        self._reserve.unlink(missing_ok=True)

    def _append_with_reserve(self, facts: Sequence[Fact]) -> bool:
        try:
            os.unlink(self._reserve)
            self._store.append(facts)
        except (OSError, StoreFull):
            return False
        self._notify(f"the disk of {self._reserve.parent} is full; make room soon, little is left in reserve")
        return True

    def _append_later(self, facts: Sequence[Fact], first: StoreFull) -> None:
        self._notify(f"{first}. The experiment waits up to {PATIENCE_S:.0f} s for it.")
        deadline = self._clock.monotonic() + PATIENCE_S
        while self._clock.monotonic() < deadline and not self._should_stop():
            self._clock.sleep(PAUSE_S)
            try:
                self._store.append(facts)
            except StoreFull:
                continue
            self._notify("there is room again; the experiment continues")
            return
        raise StoreFull(
            f"{first}. What was written before is safe: make room, then resume with Tuner.restore(...) or "
            "`muster tune resume`"
        ) from first


def _fill(file: Path, size: int) -> None:
    """Allocate disk space for real, without a hole in the file."""
    with open(file, "wb") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:
            stream.write(bytes(size))

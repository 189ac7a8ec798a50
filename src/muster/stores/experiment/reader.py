"""Read the file of an experiment, while it runs or after; never writes, unpickles only on request."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import MsgspecError, Struct, msgpack

from muster.errors import LedgerCorrupt, MusterError, StoreError
from muster.host.file_lock import holder_of
from muster.stores.experiment import values
from muster.stores.experiment.codec import (
    ENDED,
    EXHAUSTED,
    ExperimentLocation,
    StoredFact,
    unpack,
    unpack_batch,
)
from muster.stores.experiment.summary import TrialSummary
from muster.stores.experiment.trial_rows import TRIALS_SCHEMA, RowBuffer, decompress, read_digests
from muster.stores.sqlite import Closing, Database
from muster.stores.storage import Storage
from muster.trials.ports import SavedExperiment

STORE_NAME = "experiment.sqlite"


def store_path(path: str | Path) -> Path:
    """Return the file of an experiment, given it or its directory."""
    place = Path(path)
    return place / STORE_NAME if place.is_dir() else place


def is_experiment(place: str) -> bool:
    """Return whether the directory holds an experiment's store."""
    return os.path.isfile(os.path.join(place, STORE_NAME))


def experiments_below(place: str) -> tuple[str, ...]:
    """Return the directories of experiments right below this one, by name."""
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return ()
    return tuple(full for full in (os.path.join(place, name) for name in names) if is_experiment(full))


def open_trials(
    path: str | Path,
    *,
    root: str | None = None,
    filesystem: Any = None,  # noqa: ANN401 - untyped fsspec
) -> TrialReader:
    """Open an experiment for reading, even while another process runs it; the caller closes it.

    On another `filesystem`, a copy of the file is read. Paths in facts are below `root` (default: `path`).

    Example:
        with open_trials("results/my_experiment") as experiment:
            for trial in experiment.trials():
                print(trial.trial_id, trial.status, trial.result.get("loss"))
    """
    copy = None if filesystem is None else copy_of(Storage(str(path), filesystem), root or str(path))
    place = store_path(path if copy is None else copy.name)
    database = Database.open_read_only(place, TRIALS_SCHEMA)
    own = os.path.abspath(place.parent) if copy is None else str(path)
    return TrialReader(database, ExperimentLocation(root or own), copy)


def copy_of(storage: Storage, address: str) -> tempfile.TemporaryDirectory[str]:
    """Return a directory with a copy of an experiment's file; StoreError when there is none."""
    try:
        content = storage.read(STORE_NAME)
    except MusterError as error:
        raise StoreError(
            f"{address} is not an experiment directory: its {STORE_NAME} cannot be read ({error})"
        ) from error
    copy = tempfile.TemporaryDirectory(prefix="muster-")
    Path(copy.name, STORE_NAME).write_bytes(content)
    return copy


class _Snapshot(Struct):
    """The part of a saved snapshot that shows whether there is more to run."""

    exhausted: bool = True
    stopping: bool = False


_STATE = msgpack.Decoder(_Snapshot)
_SNAPSHOT = msgpack.Decoder(tuple[bytes, bytes | None])


class TrialReader(Closing):
    """Answers questions about the file of an experiment; each answer is one committed state."""

    def __init__(
        self,
        database: Database,
        place: ExperimentLocation,
        copy: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self._database = database
        self._place = place
        self._copy = copy  # is removed with the reader

    def trials(self) -> tuple[TrialSummary, ...]:
        """Return the trials in the order of their creation."""
        with self._database.read_transaction(), self._explained():
            self._read_arrays()
            digests = read_digests(self._database)
            later = RowBuffer()
            later.note(self.tail())
            for trial_id, digest in later.digests.items():
                known = digests.get(trial_id)
                digests[trial_id] = digest if known is None else digest.after(known)
            return tuple(digest.summary(self._place) for digest in digests.values())

    def settings(self, *, trust_pickles: bool = False) -> Mapping[str, Any]:
        """Return what the experiment was started with."""
        rows = self._database.execute("SELECT settings, settings_pickles FROM experiment")
        with self._explained():
            found: dict[str, Any] = values.decode(*rows[0], trust=trust_pickles)
            return found

    def saved(self, *, trust_pickles: bool = False) -> SavedExperiment:
        """Return everything a restore needs."""
        with self._database.read_transaction(), self._explained():
            self._read_arrays()
            rows = self._database.execute("SELECT records FROM archives ORDER BY number")
            return SavedExperiment(
                settings=self.settings(trust_pickles=trust_pickles),
                snapshot=self.snapshot(),
                plugins=self.plugins(),
                ended=tuple(decompress(records) for (records,) in rows),
                facts=tuple(unpack(fact, self._place, trust=trust_pickles) for fact in self.tail()),
            )

    def _read_arrays(self) -> None:
        """Read the large arrays that facts refer to; they are known as long as this reader exists."""
        if self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'arrays'"):
            import numpy as np

            rows = self._database.execute("SELECT digest, content FROM arrays")
            self._arrays = {digest: np.frombuffer(bytearray(content), np.uint8) for digest, content in rows}
            values.large_arrays.update(self._arrays)

    def snapshot(self) -> bytes | None:
        """Return the last snapshot as it was given; None before the first."""
        found = self._database.execute("SELECT snapshot FROM experiment")[0][0]
        with self._explained():
            return None if found is None else decompress(found)

    def is_exhausted(self) -> bool:
        """Return whether nothing is left to suggest; True also when it is unknown: the trials decide."""
        snapshot = self.snapshot()
        if snapshot is not None:
            try:
                seen = _STATE.decode(_SNAPSHOT.decode(snapshot)[0])
            except (ValueError, MsgspecError):
                return True
            if seen.exhausted or seen.stopping:
                return True
        return any(fact.kind in (EXHAUSTED, ENDED) for fact in self.tail())

    def plugins(self) -> dict[str, bytes]:
        """Return the saved state of the plug-ins, by name."""
        rows = self._database.execute("SELECT name, state FROM plugins")
        with self._explained():
            return {name: decompress(state) for name, state in rows}

    def appended(self) -> int:
        """Return how many facts were ever appended."""
        sql = "SELECT max(saved, coalesce((SELECT max(last) FROM batches), 0)) FROM experiment"
        return int(self._database.execute(sql)[0][0])

    def tail(self) -> Iterator[StoredFact]:
        """Return the facts after the snapshot, as they are stored."""
        for last, data, pickles in self._database.execute("SELECT * FROM batches ORDER BY last"):
            try:
                yield from unpack_batch(data, pickles)
            except ValueError as error:
                raise self._damaged(f"the batch that ends with fact {last}: {error}") from error

    def writer(self) -> int | None:
        """Return the process that runs the experiment now; None when none does, 0 when it is not known."""
        return holder_of(self._database.path)

    def copy_to(self, target: str | Path) -> None:
        """Write this state to a separate file, for an upload or a bug report."""
        self._database.copy_to(target)

    def integrity(self) -> str:
        """SQLite's full check; "ok" when nothing is wrong."""
        return self._database.integrity()

    def close(self) -> None:
        self._database.close()
        if self._copy is not None:
            self._copy.cleanup()

    def _damaged(self, what: str) -> LedgerCorrupt:
        return LedgerCorrupt(
            f"{self._database.path}: damaged ({what}). Nothing was changed. {TRIALS_SCHEMA.repair}"
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn a decoding error into one that names the file."""
        try:
            yield
        except ValueError as error:
            raise self._damaged(str(error)) from error

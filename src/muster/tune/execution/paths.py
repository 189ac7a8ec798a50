"""Locate the files of one experiment: on this machine, and on a remote storage.

Local storage is written in place. Remote storage has a directory here that is copied there in the background;
a restore continues with the one of the two that holds more facts of the experiment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from muster.base.clock import Clock
from muster.base.ids import RandomIds
from muster.errors import StoreError, TuneError
from muster.host.atomic_write import atomic_write
from muster.session.checkpoint import Checkpoint
from muster.stores.checkpoints import CheckpointStore
from muster.stores.experiment.reader import STORE_NAME, open_trials
from muster.stores.storage import MARKER, Storage
from muster.trials.model import Trial
from muster.tune.search.paths import trial_dirname, unique_dirname


class ExperimentPaths:
    """The places of experiment `name` at `storage_path`, a path or an fsspec URL."""

    flush_logs: Callable[[], object] = staticmethod(lambda: None)  # set by the run that writes logs

    def __init__(self, storage_path: str, name: str, filesystem: Any = None) -> None:  # noqa: ANN401 - fsspec
        outer = Storage(storage_path, filesystem)
        self.parent = outer.uri
        self.storage = outer.below(name)
        self.filesystem, self._name = filesystem, name
        self.is_remote = not self.storage.is_local

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "flush_logs"}

    @cached_property
    def directory(self) -> Path:
        """The directory on this machine: of a remote experiment, by its address and its identity.

        The address alone would not do: another account has the same paths, and a storage may be emptied.
        """
        if not self.is_remote:
            return self.storage.path
        key = f"{self.storage.uri}\n{self._identity}".encode()
        # Where this system keeps what can be fetched again: `~/.cache/muster/experiments` on Linux.
        from platformdirs import user_cache_path  # only for remote storage: importing it takes 10 ms

        return user_cache_path("muster") / "experiments" / hashlib.sha256(key).hexdigest()[:16] / self._name

    @cached_property
    def _identity(self) -> str:
        """What the marker file on the storage holds; a fresh one for an experiment that is not there yet."""
        found = self.storage.read(MARKER) if self.storage.exists(MARKER) else b""
        return found.decode("utf-8", "replace") or RandomIds().fresh("exp")

    @property
    def local(self) -> Storage:
        """The directory here, as a storage."""
        return Storage(self.directory)

    @property
    def address(self) -> str:
        """The address that users are shown, and that `restore` takes."""
        return self.storage.uri

    @property
    def elsewhere(self) -> Storage | None:
        """The storage of checkpoints that were never here: nodes of a cluster may have made them."""
        return self.storage if self.is_remote else None

    def for_trials(self) -> bytes | None:
        """Return a remote storage as `session.session.TrialStorage` takes it; None for a local one."""
        if not self.is_remote:
            return None
        import cloudpickle  # type: ignore[import-untyped]  # it has no types

        filesystem, path = self.storage.opened()
        try:
            return bytes(cloudpickle.dumps((path.rstrip("/"), filesystem)))
        except Exception:  # noqa: BLE001 - a user's file system, which few trials ask for
            return bytes(cloudpickle.dumps((path.rstrip("/"), None)))

    def checkpoints(self) -> CheckpointStore:
        """Return the checkpoints of the experiment, here or on the storage."""
        return CheckpointStore(self.local, self.elsewhere)

    def checkpoint(self, path: str) -> Checkpoint:
        """Return a handle on a checkpoint of this experiment: here, or where it is."""
        inner = Path(path)
        if not self.is_remote or inner.is_dir() or not inner.is_relative_to(self.directory):
            return Checkpoint(path)
        there = self.storage.join(inner.relative_to(self.directory).as_posix())
        return Checkpoint(there, filesystem=self.filesystem)

    def content(self, name: str) -> bytes | None:
        """Return what a file of the experiment here holds; None when it is not there."""
        self.flush_logs()
        try:
            return self.local.read(name)
        except StoreError:
            return None

    def prepare(self) -> None:
        """Make the directory, and check at the start whether both places can be written."""
        try:
            self.storage.validate(self._identity.encode() if self.is_remote else b"")
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / f".muster_probe_{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except (OSError, StoreError) as error:
            raise TuneError(
                f"the experiment cannot be written to {self.address}: {error}. Choose another place with "
                "RunConfig(storage_path=...), or make this one writable"
            ) from error

    def fetch(self) -> None:
        """Copy the state from the storage before a restore, unless this machine has a newer one.

        The store is written last: a store that is here tells that everything else is here, too.
        """
        if not self.is_remote or not self.storage.exists():
            return
        store = self.storage.read(STORE_NAME) if self.storage.exists(STORE_NAME) else b""
        here = _seen(self.directory)
        if 0 <= here >= _seen_in(store):
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-shm"):
            Path(self.directory, STORE_NAME + suffix).unlink(missing_ok=True)
        self.storage.download_dir("", self.directory, skipped=STORE_NAME)
        if store:
            atomic_write(self.directory / STORE_NAME, store)


def _seen_in(store: bytes) -> int:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        Path(folder, STORE_NAME).write_bytes(store)
        return _seen(Path(folder))


def _seen(directory: Path) -> int:
    """Return how many facts a copy of the store holds; -1 when there is none that can be read."""
    try:
        with open_trials(directory) as reader:
            return reader.appended()
    except StoreError:
        return -1


DATE = "%Y-%m-%d_%H-%M-%S"


def dated(at: float) -> str:
    return datetime.fromtimestamp(at).strftime(DATE)


_of_second = lru_cache(maxsize=1)(dated)  # trials come many at a time


def dated_name(trainable: str, at: float, environment: Mapping[str, str]) -> str:
    """Return `train_2026-11-16_02-10-00_4f1c09`; without a date when TUNE_DISABLE_DATED_SUBDIR=1.

    A long name is cut. The last part is random: experiments of the same second, here or elsewhere, differ.
    """
    if environment.get("TUNE_DISABLE_DATED_SUBDIR") == "1":
        return trainable
    trainable = trainable.encode()[:200].decode(errors="ignore")
    return f"{trainable}_{dated(at)}_{RandomIds().fresh('')[-6:]}"


def directory_namer(
    experiment: Path, clock: Clock, max_len: int = 130, elsewhere: Iterable[str] = ()
) -> Callable[[Trial], str]:
    """Return a function that gives each trial a unique directory name of `max_len` characters and a date.

    An experiment has one writer at a time, so names that are free at first are taken only here.
    """
    # A dict: of many names, a set takes up to five times the memory.
    taken = dict.fromkeys([*elsewhere, *(os.listdir(experiment) if experiment.is_dir() else ())])
    ids = RandomIds()

    def name(trial: Trial) -> str:
        wanted = trial_dirname(trial, _of_second(int(clock.now())), max_len)
        chosen = unique_dirname(wanted, taken.__contains__, lambda: ids.fresh("x")[-4:])
        taken[chosen] = None
        return chosen

    return name

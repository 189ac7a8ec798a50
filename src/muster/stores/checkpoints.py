"""Publish, check and delete checkpoint directories, so that an incomplete one is never used.

`trials.checkpoints` decides which ones are kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from muster.base.clock import Clock
from muster.errors import MusterError, StoreError
from muster.session.publish import MANIFEST, publish_copy, set_aside, staging_path
from muster.stores.storage import Storage
from muster.trials.model import CheckpointRef

_NAME = re.compile(r"checkpoint_(\d{6,})")
_INCOMPLETE = re.compile(r"\..+\.\d+\.(partial|deleted)")  # with the id of the process that made it
_log = logging.getLogger(__name__)


def publish(source: str | Path, target: str | Path) -> None:
    """Copy a directory to `target` so that it is complete or absent at any moment, even at a power cut.

    An existing directory is replaced: a trial that continues from an older checkpoint makes the later
    ones again. The source is not changed. StoreError names what failed; then nothing is left behind.
    """
    place = Path(target)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        publish_copy(os.fspath(source), os.fspath(place.parent), place.name)
    except OSError as error:
        raise StoreError(f"cannot publish checkpoint {place}: {error}") from error


def delete_directory(place: Path) -> None:
    """Delete a directory so that a part of it is never taken for the whole; a missing one is not an error."""
    aside = set_aside(os.fspath(place))
    if aside is not None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(aside)


def sweep(folder: str | Path) -> int:
    """Remove what a killed process left incomplete, and returns how many; only while no trial runs."""
    remains = [each for each in Path(folder).iterdir() if _INCOMPLETE.fullmatch(each.name)]
    for each in remains:
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
    return len(remains)


class CheckpointStore:
    """Holds the checkpoints of one storage; `elsewhere` has those of other machines."""

    def __init__(self, storage: Storage, elsewhere: Storage | None = None) -> None:
        self._storage, self._elsewhere = storage, elsewhere

    def listed(self, trial_dir: str) -> tuple[tuple[int, str], ...]:
        """Return index and path of each published checkpoint of a trial, oldest first."""
        names = self._storage.listing(trial_dir)
        found = [(int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))]
        return tuple((index, self._storage.join(trial_dir, name)) for index, name in sorted(found))

    def problem(self, ref: CheckpointRef) -> str | None:
        """Return why a checkpoint cannot be used; None when the names and sizes of its files are right."""
        place, name = self._place(ref)
        try:
            if not place.exists(name):
                return "it does not exist"
            sizes = place.sizes(name)
            if MANIFEST not in sizes and place is self._elsewhere:
                return "it is not complete"  # there the manifest comes last
            if MANIFEST not in sizes:
                return None  # made by another program: only its existence is known
            manifest = msgspec.json.decode(place.read(f"{name}/{MANIFEST}" if name else MANIFEST))
            content = {file: length for file, length in sizes.items() if file != MANIFEST}
            return _difference(manifest["files"], content)
        except (MusterError, msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            if place is self._elsewhere and isinstance(error, MusterError):
                # No progress is given up because a network is down: who needs the files waits for them.
                _log.warning(
                    "cannot check a checkpoint, assuming that it is complete path=%s why=%s", ref.path, error
                )
                return None
            return f"it cannot be read: {error}"

    def bring_here(self, ref: CheckpointRef) -> None:
        """Copy a checkpoint that is only elsewhere to its path here, completely or not at all."""
        place, name = self._place(ref)
        if place is not self._elsewhere:
            return
        partial = staging_path(os.path.dirname(ref.path), os.path.basename(ref.path))
        place.download_dir(name, partial)
        try:
            os.rename(partial, ref.path)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise StoreError(f"cannot keep checkpoint {ref.path}: {error}") from error

    def newest_usable(self, refs: Sequence[CheckpointRef]) -> CheckpointRef | None:
        """Return the newest complete one; a damaged or missing one is skipped with a warning."""
        for ref in sorted(refs, key=lambda each: each.index, reverse=True):
            problem = self.problem(ref)
            if problem is None:
                return ref
            _log.warning("checkpoint cannot be used, trying an older one path=%s why=%s", ref.path, problem)
        return None

    def fetch(self, ref: CheckpointRef, target: str | Path) -> None:
        """Copy a checkpoint to a local directory; a target that did not exist is removed on failure."""
        place, name = self._place(ref)
        place.download_dir(name, target)
        with contextlib.suppress(FileNotFoundError):
            Path(target, MANIFEST).unlink()

    def delete(self, ref: CheckpointRef) -> None:
        """Delete a checkpoint; a missing one is not an error. StoreError for any other failure."""
        place, name = self._place(ref)
        if not place.is_local:
            place.delete_dir(name)
            return
        try:
            delete_directory(Path(place.join(name)))
        except OSError as error:
            raise StoreError(f"cannot delete checkpoint {ref.path}: {error}") from error

    def _place(self, ref: CheckpointRef) -> tuple[Storage, str]:
        """Return the storage and the name in it; a checkpoint of the user elsewhere is its own storage."""
        prefix = f"{self._storage.uri}/"
        if ref.path.startswith(prefix):
            name = ref.path[len(prefix) :]
            if self._elsewhere is not None and not os.path.isdir(ref.path):
                return self._elsewhere, name
            return self._storage, name
        parent, _, name = ref.path.rstrip("/").rpartition("/")
        return Storage(parent or "/"), name


def _difference(wanted: dict[str, int], found: dict[str, int]) -> str | None:
    for name, size in wanted.items():
        if name not in found:
            return f"its file {name} is missing"
        if found[name] != size:
            return f"its file {name} has {found[name]} bytes instead of {size}"
    return None


class DeletionQueue:
    """Deletes checkpoints in its own thread. Failures are logged, never raised.

    Args:
        delete: Deletes one checkpoint: `CheckpointStore.delete`, or `Uploader.discard` besides it.
        sync: Called before each round: `SqliteTrialStore.sync`, so that not even a power cut can bring back
            a state that refers to what was deleted.
    """

    def __init__(
        self, delete: Callable[[CheckpointRef], None], sync: Callable[[], None], *, clock: Clock
    ) -> None:
        self._delete, self._sync, self._clock = delete, sync, clock
        self._ready: deque[CheckpointRef] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._is_busy = False
        self._thread: threading.Thread | None = None  # most experiments delete nothing

    def discard(self, refs: Iterable[CheckpointRef]) -> None:
        """Queue checkpoints that are safe to delete, see `trials.checkpoints.deletable`. Never blocks."""
        with self._wake:
            self._ready.extend(refs)
            self._wake.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="muster-deletions", daemon=True)
            self._thread.start()

    def drain(self, timeout_s: float) -> bool:
        """Wait for what was queued; False when the time was not enough."""
        deadline = self._clock.monotonic() + timeout_s
        with self._wake:
            while self._ready or self._is_busy:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(left)
        return True

    def close(self, timeout_s: float = 10.0) -> bool:
        """Drain the queue, then end its thread."""
        is_done = self.drain(timeout_s)
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        return is_done

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._ready and not self._is_closing:
                    self._wake.wait()
                if self._is_closing:
                    return
                round_, self._is_busy = list(self._ready), True
                self._ready.clear()
            self._delete_all(round_)
            with self._wake:
                self._is_busy = False
                self._wake.notify_all()

    def _delete_all(self, refs: list[CheckpointRef]) -> None:
        try:
            self._sync()
        except (OSError, MusterError) as error:
            _log.warning(
                "checkpoints are kept, the store cannot be flushed count=%d why=%s", len(refs), error
            )
            return
        for ref in refs:
            try:
                self._delete(ref)
            except Exception as error:  # noqa: BLE001 - a thread's body
                _log.warning("checkpoint could not be deleted path=%s why=%s", ref.path, error)

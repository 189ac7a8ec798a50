"""StorageTransfer stores checkpoints of trials on nodes that share no directory with the driver.

The actor makes it when the experiment's storage is remote; its worker calls it. A checkpoint is in the
storage before the driver learns of it, its manifest last. On a node that sees the driver's directory, only a
checkpoint that was made elsewhere is fetched: the driver copies the rest.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from muster.base.clock import Clock
from muster.engines.worker.protocol import StartOrder
from muster.errors import MusterError, StoreError
from muster.host import machine
from muster.host.scratch_directory import ScratchDirectory
from muster.session.publish import MANIFEST
from muster.stores.storage import MARKER, Storage, local_sizes, with_retries


class RemoteStorage(NamedTuple):
    """A storage that every machine reaches, and the directory that is copied there."""

    uri: str  # of the experiment
    filesystem: Any  # the user's own, or None
    root: str  # the driver's directory of the experiment
    with_artifacts: bool = False  # what trials write beside their checkpoints is copied too
    reserved: tuple[str, ...] = ()  # files of a trial's directory that only the driver writes

    def pickled(self) -> bytes:
        """Return this value as bytes; raises what pickling the user's file system raises."""
        import cloudpickle  # type: ignore[import-untyped]

        blob: bytes = cloudpickle.dumps(tuple(self))
        return blob

    @staticmethod
    def unpickled(blob: bytes) -> RemoteStorage:
        return RemoteStorage(*pickle.loads(blob))

    def storage(self) -> Storage:
        return Storage(self.uri, self.filesystem)

    def name_of(self, path: str) -> str | None:
        """Return the name in the storage of a path of the driver's; None for one that is not copied."""
        prefix = f"{self.root.rstrip(os.sep)}{os.sep}"
        return path[len(prefix) :].replace(os.sep, "/") if path.startswith(prefix) else None

    def problem(self) -> str:
        """Return why this node cannot use the storage; empty when it can."""
        try:
            if self.storage().exists(MARKER):
                return ""
        except MusterError as error:
            return str(error)
        return (
            f"what the driver wrote to {self.uri} is not there: it is not the same storage on every machine"
        )


CHECKPOINT = re.compile(r"checkpoint_(\d{6,})")


class TrialFiles:
    """Copies the files of one attempt; `name` is the trial's directory in the storage."""

    def __init__(self, remote: RemoteStorage, name: str, order: StartOrder) -> None:
        self._remote, self._storage, self._name = remote, remote.storage(), name
        self._folder = order.trial_dir
        self._logs = {file for file in order.log_to_file if file}
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of change

    def fetch_logs(self) -> None:
        """Fetch the log files of an earlier attempt elsewhere, which the trial continues."""
        for file in self._logs:
            place, name = os.path.join(self._folder, file), f"{self._name}/{file}"
            try:
                if not os.path.exists(place) and self._storage.size(name) is not None:
                    earlier = self._storage.read(name)
                    with open(place, "xb") as stream:
                        stream.write(earlier)
            except (MusterError, OSError) as error:
                _log.warning("the log of an earlier attempt is not continued: %s", error)

    def send(self) -> None:
        """Copy logs, and artifacts where they are wanted, as far as they have changed."""
        for file in local_sizes(self._folder):
            place = os.path.join(self._folder, file)
            try:
                seen = os.stat(place)
                print_ = (seen.st_size, seen.st_mtime_ns)
                first = file.partition("/")[0]
                is_checkpoint = CHECKPOINT.fullmatch(first) or first.endswith((".partial", ".deleted"))
                is_sent = not (is_checkpoint or file in self._remote.reserved) and (
                    self._remote.with_artifacts or file in self._logs
                )
                if is_sent and self._sent.get(file) != print_:
                    self._storage.upload_file(place, f"{self._name}/{file}")
                    self._sent[file] = print_
            except (MusterError, OSError) as error:
                _log.warning("a file of trial %s is not copied: %s", self._name, error)


_log = logging.getLogger(__name__)
_THREADS = ("fsspecIO", "asyncio_")  # in which file systems work
_FILES = "files"  # the part of the scratch directory that goes with a trial
_FIX = "Make sure that this node reaches the storage (network, credentials); Tuner.restore continues"


class Waits(NamedTuple):
    """Holds how long and how often a transfer is tried."""

    whole_s: float = 120.0  # for a checkpoint that the driver may still be copying
    look_s: float = 1.0  # between two tries to read it
    tries: int = 4  # of each transfer
    again_s: float = 1.0  # before the second; doubles


class StorageTransfer:
    """Serves one actor; `sees` is whether this node sees the driver's directory."""

    def __init__(
        self, remote: RemoteStorage, *, sees: bool, clock: Clock, waits: Waits | None = None
    ) -> None:
        self._remote, self._storage, self._sees = remote, remote.storage(), sees
        self._clock, self._waits = clock, waits or Waits()
        self._scratch = ScratchDirectory("muster-node-")
        self._trial = ""  # the name of the trial's directory in the storage
        self._files: TrialFiles | None = None
        self._newest: str | None = None  # the checkpoint that was made last
        self._may_have_leftovers = False

    def prepare(self, order: StartOrder) -> StartOrder:
        trial = self._remote.name_of(order.trial_dir)
        if trial is None:
            return order
        self._trial, self._newest = trial, None
        self._may_have_leftovers = order.has_leftovers or not self._sees
        folder = order.trial_dir if self._sees else self._scratch.path(_FILES, trial)
        os.makedirs(folder, exist_ok=True)
        checkpoint = None if order.checkpoint_path is None else self._fetched(order.checkpoint_path)
        settled = order._replace(trial_dir=folder, checkpoint_path=checkpoint)
        self._files = TrialFiles(self._remote, trial, settled)
        if self._may_have_leftovers:
            self._files.fetch_logs()
        return settled

    def clear_leftovers(self, name: str) -> None:
        if not self._may_have_leftovers:
            return
        self._may_have_leftovers = False  # once per attempt: no other process makes checkpoints of this trial
        try:
            self._with_retries(lambda: self._clear_from(name))
        except MusterError as error:
            if not self._sees:
                raise self._not_kept(name, error) from error
            _log.warning("what an earlier attempt left in the storage stays for now: %s", error)

    def keep(self, path: str) -> None:
        if not self._trial or self._sees:
            return
        name = os.path.basename(path)
        try:
            for file in sorted(local_sizes(path), key=lambda each: (each == MANIFEST, each)):
                source, target = os.path.join(path, file), f"{self._trial}/{name}/{file}"
                self._with_retries(partial(self._storage.upload_file, source, target))
        except MusterError as error:
            raise self._not_kept(name, error) from error
        older, self._newest = self._newest, path
        if older is not None and older != path:
            shutil.rmtree(older, ignore_errors=True)
        if self._files is not None:
            self._files.send()

    def finish(self) -> None:
        files, self._files, self._trial = self._files, None, ""
        if files is not None and not self._sees:
            files.send()
        self._scratch.remove(_FILES)

    def close(self) -> None:
        """Remove the scratch directory, because the actor ends."""
        self._scratch.remove()

    def own_threads(self) -> int:
        return sum(each.name.startswith(_THREADS) for each in threading.enumerate())

    def _fetched(self, path: str) -> str:
        """Return where the checkpoint is on this node, after fetching it if necessary."""
        name = self._remote.name_of(path)
        if name is None or (self._sees and os.path.isdir(path)):
            return path
        give_up = self._clock.monotonic() + self._waits.whole_s
        target = self._scratch.path(_FILES, name)
        while why := self._why_not_fetched(name, target):
            if self._clock.monotonic() >= give_up:
                raise StoreError(
                    f"node {machine.hostname()}: the checkpoint {self._storage.join(name)}, from which "
                    f"the trial continues, was not there within {self._waits.whole_s:g} s: {why}. {_FIX}"
                )
            self._clock.sleep(self._waits.look_s)
        return target

    def _why_not_fetched(self, name: str, target: str) -> str:
        """Return why the checkpoint is not complete at `target`; empty when it is."""
        draft = f"{target}.partial"
        try:
            wanted = msgspec.json.decode(self._storage.read(f"{name}/{MANIFEST}"))["files"]
            self._storage.download_dir(name, draft)
            found = local_sizes(draft)
            wrong = [file for file, size in wanted.items() if found.get(file) != size]
            if not wrong:
                os.rename(draft, target)
                return ""
            why = f"its file {wrong[0]} is missing or of another size"
        except (MusterError, OSError, msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            why = str(error)
        shutil.rmtree(draft, ignore_errors=True)
        return why

    def _clear_from(self, name: str) -> None:
        """Delete this name and later ones of an unfinished attempt: contents must not mix."""
        for each in self._storage.listing(self._trial):
            if CHECKPOINT.fullmatch(each) and _number(each) >= _number(name):
                self._storage.delete_dir(f"{self._trial}/{each}")

    def _with_retries(self, act: Callable[[], None]) -> None:
        with_retries(act, self._clock, tries=self._waits.tries, again_s=self._waits.again_s)

    def _not_kept(self, name: str, error: MusterError) -> StoreError:
        place = self._storage.join(self._trial, name)
        return StoreError(
            f"node {machine.hostname()}: the checkpoint {place} could not be kept, tried "
            f"{self._waits.tries} times: {error}. {_FIX}"
        )


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])

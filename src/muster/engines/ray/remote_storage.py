"""StorageCarrier: checkpoints of trials on nodes that have no directory in common with the driver.

Made by the actor when the experiment's storage is remote; called by its worker. A checkpoint is in the
storage before the driver hears of it, its manifest last. On a node that sees the driver's directory, only a
checkpoint that was made elsewhere is fetched: the driver copies the rest.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from muster.base.clock import Clock
from muster.engines.ray.node_files import CHECKPOINT, Scratch, TrialFiles
from muster.engines.ray.reach import Reach
from muster.engines.worker.protocol import Order
from muster.errors import MusterError, StoreError
from muster.host import machine
from muster.session.publish import MANIFEST
from muster.stores.storage import local_sizes

_log = logging.getLogger(__name__)
_THREADS = ("fsspecIO", "asyncio_")  # in which file systems work
_FILES = "files"  # the part of the scratch directory that goes with a trial
_FIX = "See that this node reaches the storage (network, credentials); Tuner.restore goes on"


class Waits(NamedTuple):
    """How patient it is."""

    whole_s: float = 120.0  # for a checkpoint that the driver may still be copying
    look_s: float = 1.0  # between two looks
    tries: int = 4  # of each transfer
    again_s: float = 1.0  # before the second; doubles


class StorageCarrier:
    """One per actor; `sees`: whether this node sees the driver's directory."""

    def __init__(self, reach: Reach, *, sees: bool, clock: Clock, waits: Waits | None = None) -> None:
        self._reach, self._storage, self._sees = reach, reach.storage(), sees
        self._clock, self._waits = clock, waits or Waits()
        self._scratch = Scratch()
        self._trial = ""  # the name of its directory in the storage
        self._files: TrialFiles | None = None
        self._newest: str | None = None  # the checkpoint that was made last
        self._needs_way = False

    def settle(self, order: Order) -> Order:
        trial = self._reach.name_of(order.trial_dir)
        if trial is None:
            return order
        self._trial, self._newest, self._needs_way = trial, None, order.has_remains or not self._sees
        folder = order.trial_dir if self._sees else self._scratch.path(_FILES, trial)
        os.makedirs(folder, exist_ok=True)
        checkpoint = None if order.checkpoint_path is None else self._brought(order.checkpoint_path)
        settled = order._replace(trial_dir=folder, checkpoint_path=checkpoint)
        self._files = TrialFiles(self._reach, trial, settled)
        if self._needs_way:
            self._files.fetch_logs()
        return settled

    def make_way(self, name: str) -> None:
        if not self._needs_way:
            return
        self._needs_way = False  # once per attempt: nobody else makes checkpoints of this trial
        try:
            self._insistently(lambda: self._clear_from(name))
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
                self._upload(os.path.join(path, file), f"{self._trial}/{name}/{file}")
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
        """The actor ends."""
        self._scratch.remove()

    def own_threads(self) -> int:
        return sum(each.name.startswith(_THREADS) for each in threading.enumerate())

    def _brought(self, path: str) -> str:
        """Where the checkpoint is on this node; fetched unless it is there already."""
        name = self._reach.name_of(path)
        if name is None or (self._sees and os.path.isdir(path)):
            return path
        give_up = self._clock.monotonic() + self._waits.whole_s
        target = self._scratch.path(_FILES, name)
        while why := self._why_not_fetched(name, target):
            if self._clock.monotonic() >= give_up:
                raise StoreError(
                    f"node {machine.hostname()}: the checkpoint {self._storage.join(name)}, from which "
                    f"the trial goes on, was not there within {self._waits.whole_s:g} s: {why}. {_FIX}"
                )
            self._clock.sleep(self._waits.look_s)
        return target

    def _why_not_fetched(self, name: str, target: str) -> str:
        """Empty when it is at `target` now, with everything that its manifest names."""
        partial = f"{target}.partial"
        try:
            wanted = msgspec.json.decode(self._storage.read(f"{name}/{MANIFEST}"))["files"]
            self._storage.download_dir(name, partial)
            found = local_sizes(partial)
            wrong = [file for file, size in wanted.items() if found.get(file) != size]
            if not wrong:
                os.rename(partial, target)
                return ""
            why = f"its file {wrong[0]} is missing or of another size"
        except (MusterError, OSError, msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            why = str(error)
        shutil.rmtree(partial, ignore_errors=True)
        return why

    def _clear_from(self, name: str) -> None:
        """An attempt that nobody heard of may have left this name and later ones: contents must not mix."""
        for each in self._storage.listing(self._trial):
            if CHECKPOINT.fullmatch(each) and _number(each) >= _number(name):
                self._storage.delete_dir(f"{self._trial}/{each}")

    def _upload(self, file: str, name: str) -> None:
        self._insistently(lambda: self._storage.upload_file(file, name))

    def _insistently(self, act: Callable[[], None]) -> None:
        for failures in range(self._waits.tries - 1):
            try:
                return act()
            except StoreError:
                self._clock.sleep(self._waits.again_s * 2.0**failures)
        return act()

    def _not_kept(self, name: str, error: MusterError) -> StoreError:
        place = self._storage.join(self._trial, name)
        return StoreError(
            f"node {machine.hostname()}: the checkpoint {place} could not be kept, tried "
            f"{self._waits.tries} times: {error}. {_FIX}"
        )


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])

"""Wraps a trial store: on a full disk it frees space or waits for it before it fails.

A small reserve lets trials that need no room continue beside one that filled the disk.
Nothing is decided or started while it waits: what follows from a fact is done only when the fact is durable.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster.base.clock import Clock
from muster.errors import StoreFull
from muster.trials.events import Fact
from muster.trials.ports import SavedExperiment, TrialStore

PATIENCE_S = 60.0
PAUSE_S = 0.5
RESERVE_BYTES = 1 << 20  # some thousand results
RESERVE_NAME = "experiment.sqlite.reserve"


class FullDiskStore:
    """A FullDiskStore notifies the user of what it waits for, and raises after `PATIENCE_S` or on a stop."""

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
        self.load: Callable[[], SavedExperiment] = store.load
        with contextlib.suppress(OSError):  # no room for a reserve: then there is none
            _fill(self._reserve, RESERVE_BYTES)

    def append(self, facts: Sequence[Fact]) -> None:
        try:
            self._store.append(facts)
        except StoreFull as error:
            if not self._append_with_reserve(facts):
                self._append_later(facts, error)

    def close(self) -> None:
        """Gives the reserve back; the store is closed by its owner."""
        self._reserve.unlink(missing_ok=True)

    def snapshot(
        self,
        trials: bytes,
        plugins: Mapping[str, bytes],
        statuses: Mapping[str, str] | None = None,
        ended: Sequence[bytes] = (),
    ) -> None:
        self._store.snapshot(trials, plugins, statuses, ended)

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
    """Allocates disk space for real, without a hole in the file."""
    with open(file, "wb") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:
            stream.write(bytes(size))

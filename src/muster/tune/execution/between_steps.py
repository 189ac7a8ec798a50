"""Saves an experiment now and then, and restores it after a crash.

The longer a save takes, the rarer it is done: saving costs at most a twentieth of the time. Its share for
trials that have ended is not counted: each is saved once, sooner or later, and waits in memory until then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from muster.base.clock import Clock
from muster.errors import RestoreError, StoreFull
from muster.stores.experiment import values
from muster.trials.experiment import ExperimentState
from muster.trials.plugins import Hooks
from muster.trials.ports import SavedExperiment, TrialStore
from muster.trials.restore import MakeTrial, ended_records, restore, snapshot
from muster.tune.plugin_state import PluginState

logger = logging.getLogger(__name__)

SAVE_SHARE = 20.0  # times the duration of the last save
MANY_ENDED = 500  # trials that wait to be saved: a save comes early, because they take memory until then
LOG_TIMEOUT_S = 2.0
LAST_LOG_TIMEOUT_S = 30.0  # nothing else is left to do, and without this save the next start is slow


class Logs(Protocol):
    """Logs write the result files outside the control thread."""

    def mark(self) -> threading.Event:
        """Returns an event that is set once everything handed over so far is written, or has failed."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything is written; False when something is not."""
        ...


class ExperimentSaver:
    """An ExperimentSaver writes snapshots of one experiment to its store, and restores it from them."""

    min_period_s = 1.0

    def __init__(
        self, state: ExperimentState, *, store: TrialStore, clock: Clock, logs: Logs | None = None
    ) -> None:
        """`logs` writes the result files: a snapshot, which drops results from the store, waits for it."""
        self._state, self._store, self._clock, self._logs = state, store, clock, logs
        self._callbacks = state.plugins.hooks  # the state has other hooks while facts are replayed
        self._mark: threading.Event | None = None  # set once the rows before it are in their files
        self._save_at = self._early_at = float("-inf")  # the second: when many trials have ended

    def restore(self, saved: SavedExperiment, make_trial: MakeTrial, observer: Hooks | None = None) -> None:
        """Brings the experiment to where an earlier process left it; its new plug-ins are restored too."""
        seen = None if saved.snapshot is None else decode_snapshot(saved.snapshot, saved.ended)
        restore(self._state, seen, saved.facts, make_trial, observer, lambda: self._restore_plugins(saved))

    def _restore_plugins(self, saved: SavedExperiment) -> None:
        self._state.index.note_archived()  # the store holds these; later facts may end others
        for name, plugin in self._plugins().items():
            if name not in saved.plugins:
                continue
            if isinstance(plugin, PluginState):  # a user's scheduler may hold trials
                plugin.restore_state(saved.plugins[name], self._state.index.trials)
            else:
                plugin.restore_state(saved.plugins[name])

    def is_due(self) -> bool:
        """Returns whether a snapshot is due and the log writer has nearly caught up.

        Does not wait for the log writer, so that `save` has little to wait for.
        """
        is_early = len(self._state.index.unarchived) >= MANY_ENDED
        if self._clock.monotonic() < (self._early_at if is_early else self._save_at):
            return False
        if self._logs is None:
            return True
        if self._mark is None:
            self._mark = self._logs.mark()
        return self._mark.is_set()

    def save(self, flush: Callable[[], None], *, is_last: bool = False) -> None:
        """Writes a snapshot for a restore.

        Skipped when results cannot be written to their files, or when the disk is full: then the store keeps
        the facts, and a restore has more of them to replay.
        """
        began = self._clock.monotonic()
        self._mark = None
        if self._logs is not None:
            self._logs.mark()  # it catches up while the snapshot is made
        saved = {name: plugin.save_state() for name, plugin in self._plugins().items()}
        prepared = self._clock.monotonic()
        states = {name: state for name, state in saved.items() if state is not None}
        # From facts alone, readers cannot know which trials are paused, wait for a retry, or were stopped.
        index = self._state.index
        changed = (*index.live.values(), *index.unarchived.values())
        statuses = {trial.trial_id: trial.status for trial in changed}
        seen = encode_snapshot(snapshot(self._state, with_ended=False))
        ended = _archives(self._state)
        encoded = self._clock.monotonic()
        if self._logs is not None and not self._logs.flush(LAST_LOG_TIMEOUT_S if is_last else LOG_TIMEOUT_S):
            self._save_at = self._early_at = began + SAVE_SHARE * LOG_TIMEOUT_S
            return
        waited_s = self._clock.monotonic() - encoded
        try:
            flush()
            self._store.snapshot(seen, states, statuses, ended)
        except StoreFull as error:
            logger.warning("no snapshot, the facts are kept instead: %s", error)
            self._save_at = self._early_at = began + SAVE_SHARE * LOG_TIMEOUT_S
            return
        index.note_archived()
        now = self._clock.monotonic()
        live_share = (1 + len(index.live)) / (1 + len(changed))
        # What the next save repeats:
        again_s = prepared - began + waited_s + (now - prepared - waited_s) * live_share
        self._early_at = now + SAVE_SHARE * again_s
        self._save_at = max(self._early_at, now + self.min_period_s)

    def _plugins(self) -> dict[str, Any]:
        """Returns the plug-ins that have a state; a user's scheduler may lack `save_state`."""
        plugins = self._state.plugins
        candidates: dict[str, object] = {"search": plugins.search, "scheduler": plugins.scheduler}
        if plugins.stopper is not None:
            candidates["stopper"] = plugins.stopper
        candidates["callbacks"] = self._callbacks
        return {name: each for name, each in candidates.items() if hasattr(each, "save_state")}


def _archives(state: ExperimentState) -> list[bytes]:
    """Returns the trials that have ended, encoded a hundred at a time: all at once take much memory."""
    records = ended_records(state)
    chunks = iter(lambda: list(islice(records, 100)), [])
    return [encode_snapshot({"ended": chunk}) for chunk in chunks]


def encode_snapshot(seen: Mapping[str, Any]) -> bytes:
    """Returns the data and, beside it, the pickles of users' objects in configurations."""
    return msgspec.msgpack.encode(values.encode(dict(seen)))


def decode_snapshot(data: bytes, ended: Sequence[bytes] = ()) -> dict[str, Any]:
    """Returns the snapshot, with the trials that were archived when they ended."""
    seen = _decoded(data)
    seen["ended"] = [record for each in ended for record in _decoded(each)["ended"]]
    return seen


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        content, pickles = msgspec.msgpack.decode(data, type=tuple[bytes, bytes | None])
        seen = values.decode(content, pickles, trust=True)
    except (ValueError, msgspec.MsgspecError) as error:
        raise RestoreError(f"the saved state of the experiment cannot be read: {error}") from error
    if not isinstance(seen, dict):
        raise RestoreError("the saved state of the experiment is not a snapshot of trials")
    return seen

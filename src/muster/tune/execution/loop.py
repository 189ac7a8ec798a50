"""Execution: one experiment joined to an engine and a store, run to its end, resumed after any crash.

Built by Tuner and run(); owns no decisions. Saves a new starting point now and then: the longer a save takes,
the rarer it is done, so that it never costs more than a twentieth of the time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from muster.base.clock import Clock
from muster.errors import RestoreError, StoreFull
from muster.stores.experiment import values
from muster.trials.controller import TrialController
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef
from muster.trials.plugins import Hooks
from muster.trials.ports import Engine, SavedExperiment, TrialStore
from muster.trials.restore import MakeTrial, restore, snapshot
from muster.tune.plugin_state import PluginState

logger = logging.getLogger(__name__)

SAVE_SHARE = 20.0  # times the duration of the last save
MIN_SAVE_PERIOD_S = 1.0
LOG_PATIENCE_S = 2.0
LAST_LOG_PATIENCE_S = 30.0  # nothing else is left to do, and what is not saved now makes the next start slow
LINGER_S = 0.005  # a commit costs as much as handling a result: results that follow each other share one


class Logs(Protocol):
    """Whoever writes the result files, off the control thread."""

    def mark(self) -> threading.Event:
        """Set once everything that was handed over so far is written, or could not be."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait for it; False: something is not written."""
        ...


class Execution:
    """Drives one experiment. `should_stop` is looked at between two steps (Ctrl-C)."""

    def __init__(
        self,
        state: ExperimentState,
        *,
        engine: Engine,
        store: TrialStore,
        clock: Clock,
        discard: Callable[[Sequence[CheckpointRef]], None] = lambda refs: None,
        logs: Logs | None = None,
    ) -> None:
        """`discard` is given checkpoints that nothing can need again; it must not block.

        `logs` writes the results to files: a snapshot, which drops results from the store, waits for it.
        """
        self._logs = logs
        self._mark: threading.Event | None = None  # set once the rows before it are in their files
        self._state = state
        self._callbacks = state.plugins.hooks  # those of the state are others while facts are replayed
        self._discard = discard
        self._engine = engine
        self._store = store
        self._clock = clock
        self._controller = TrialController(state, engine=engine, store=store, clock=clock)
        self._save_at = float("-inf")

    def resume(self, saved: SavedExperiment, make_trial: MakeTrial, witness: Hooks | None = None) -> None:
        """Stand where an earlier process stood; its plug-ins were built anew and are restored here."""
        seen = None if saved.snapshot is None else decode_snapshot(saved.snapshot, saved.ended)
        restore(self._state, seen, saved.facts, make_trial, witness, lambda: self._restore(saved))

    def _restore(self, saved: SavedExperiment) -> None:
        self._state.index.unarchived.clear()  # those of the store's archives; later facts may end others
        for name, plugin in self._plugins().items():
            if name not in saved.plugins:
                continue
            if isinstance(plugin, PluginState):  # a user's scheduler may hold trials
                plugin.restore_state(saved.plugins[name], self._state.index.trials)
            else:
                plugin.restore_state(saved.plugins[name])

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> ExperimentState:
        """To the end, or until somebody wants to stop; either way everything is saved."""
        self.save()  # before the first suggestion: replay starts from the searcher's first random state
        self._controller.linger_s = LINGER_S
        try:
            while not should_stop() and self.step():
                pass
        finally:  # a callback may have raised: what came before is safe
            self._controller.write_down()
        self.save(LAST_LOG_PATIENCE_S)
        self._give_up()
        return self._state

    def step(self, timeout_s: float = 0.1, *, admits: bool = True) -> bool:
        """One round, and a save when it is due; False once the experiment is over."""
        goes_on = self._round(timeout_s, admits)
        if goes_on and self._clock.monotonic() >= self._save_at and self._logs_are_near():
            self.save()
        return goes_on

    def _round(self, timeout_s: float, admits: bool) -> bool:
        state = self._state
        state.plugins.fire("on_step_begin")
        goes_on = self._controller.step(timeout_s, admits=admits)
        state.plugins.fire("on_step_end")
        self._give_up()
        return goes_on

    def _give_up(self) -> None:
        superfluous = self._controller.take_deletable()
        if superfluous:
            self._discard(superfluous)

    def _logs_are_near(self) -> bool:
        """Let the log writer come close first, without waiting, so that `save` has little to wait for."""
        if self._logs is None:
            return True
        if self._mark is None:
            self._mark = self._logs.mark()
        return self._mark.is_set()

    def save(self, patience_s: float = LOG_PATIENCE_S) -> None:
        """A new starting point for restore.

        Skipped when results cannot be brought to their files, or when there is no room for it: then the store
        keeps the facts, and a restore has more of them to go through.
        """
        began = self._clock.monotonic()
        self._mark = None
        if self._logs is not None and not self._logs.flush(patience_s):
            self._save_at = began + SAVE_SHARE * LOG_PATIENCE_S
            return
        saved = {name: plugin.save_state() for name, plugin in self._plugins().items()}
        states = {name: state for name, state in saved.items() if state is not None}
        # Facts alone cannot tell readers who is paused, waits for another try, or was stopped waiting.
        index = self._state.index
        changed = (*index.live.values(), *index.unarchived.values())
        statuses = {trial.trial_id: trial.status for trial in changed}
        seen = snapshot(self._state)
        ended = seen.pop("ended")
        try:
            self._controller.save(
                encode_snapshot(seen), states, statuses, encode_snapshot({"ended": ended}) if ended else b""
            )
        except StoreFull as error:
            logger.warning("no snapshot, the facts are kept instead: %s", error)
            self._save_at = began + SAVE_SHARE * LOG_PATIENCE_S
            return
        self._state.index.unarchived.clear()
        now = self._clock.monotonic()
        self._save_at = now + max(MIN_SAVE_PERIOD_S, SAVE_SHARE * (now - began))

    def _plugins(self) -> dict[str, Any]:
        """What has a state of its own; a scheduler without `save_state` is the user's risk."""
        candidates: dict[str, object] = {
            "search": self._state.plugins.search,
            "scheduler": self._state.plugins.scheduler,
        }
        if self._state.plugins.stopper is not None:
            candidates["stopper"] = self._state.plugins.stopper
        candidates["callbacks"] = self._callbacks
        return {name: each for name, each in candidates.items() if hasattr(each, "save_state")}


def encode_snapshot(seen: Mapping[str, Any]) -> bytes:
    """Data, and beside it the pickles of users' objects in configurations."""
    return msgspec.msgpack.encode(values.encode(dict(seen)))


def decode_snapshot(data: bytes, ended: Sequence[bytes] = ()) -> dict[str, Any]:
    """The picture, with the trials that were saved for good when they ended."""
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
        raise RestoreError("the saved state of the experiment is not a picture of trials")
    return seen

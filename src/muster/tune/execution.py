"""Execution: one experiment joined to an engine and a store, run to its end, resumed after any crash.

Built by Tuner and run(); owns no decisions. Saves a new starting point now and then: the longer a save takes,
the rarer it is done, so that it never costs more than a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from muster.base.clock import Clock
from muster.errors import RestoreError
from muster.stores import trial_values
from muster.trials.controller import TrialController
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef
from muster.trials.ports import Engine, SavedExperiment, TrialStore
from muster.trials.restore import MakeTrial, picture, revive

SAVE_SHARE = 20.0  # times the duration of the last save
MIN_SAVE_PERIOD_S = 1.0


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
    ) -> None:
        """`discard` is given checkpoints that nothing can need again; it must not block."""
        self._state = state
        self._discard = discard
        self._engine = engine
        self._store = store
        self._clock = clock
        self._controller = TrialController(state, engine=engine, store=store, clock=clock)
        self._save_at = float("-inf")

    def resume(self, saved: SavedExperiment, make_trial: MakeTrial) -> None:
        """Stand where an earlier process stood; its plug-ins were built anew and are restored here."""
        for name, plugin in self._plugins().items():
            if name in saved.plugins:
                plugin.restore_state(saved.plugins[name])
        seen = None if saved.snapshot is None else decode_picture(saved.snapshot)
        revive(self._state, seen, saved.facts, make_trial)

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> ExperimentState:
        """To the end, or until somebody wants to stop; either way everything is saved."""
        self._save()  # before the first suggestion: replay starts from the searcher's first random state
        while not should_stop() and self._step():
            if self._clock.monotonic() >= self._save_at:
                self._save()
        self._save()
        return self._state

    def _step(self) -> bool:
        state = self._state
        state.hooks.fire("on_step_begin", iteration=state.iteration, trials=state.roster.order)
        goes_on = self._controller.step()
        state.hooks.fire("on_step_end", iteration=state.iteration, trials=state.roster.order)
        superfluous = self._controller.take_deletable()
        if superfluous:
            self._discard(superfluous)
        return goes_on

    def _save(self) -> None:
        began = self._clock.monotonic()
        states = {name: plugin.save_state() for name, plugin in self._plugins().items()}
        self._controller.save(encode_picture(picture(self._state)), states)
        now = self._clock.monotonic()
        self._save_at = now + max(MIN_SAVE_PERIOD_S, SAVE_SHARE * (now - began))

    def _plugins(self) -> dict[str, Any]:
        """What has a state of its own; a scheduler without `save_state` is the user's risk."""
        candidates: dict[str, object] = {"search": self._state.search, "scheduler": self._state.scheduler}
        if self._state.stopper is not None:
            candidates["stopper"] = self._state.stopper
        return {name: each for name, each in candidates.items() if hasattr(each, "save_state")}


def encode_picture(seen: Mapping[str, Any]) -> bytes:
    """Data, and beside it the pickles of users' objects in configurations."""
    return msgspec.msgpack.encode(trial_values.encode(dict(seen)))


def decode_picture(data: bytes) -> dict[str, Any]:
    try:
        content, pickles = msgspec.msgpack.decode(data, type=tuple[bytes, bytes | None])
        seen = trial_values.decode(content, pickles, trust=True)
    except (ValueError, msgspec.MsgspecError) as error:
        raise RestoreError(f"the saved state of the experiment cannot be read: {error}") from error
    if not isinstance(seen, dict):
        raise RestoreError("the saved state of the experiment is not a picture of trials")
    return seen

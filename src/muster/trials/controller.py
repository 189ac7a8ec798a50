"""TrialController.step(): poll, handle, note, submit. The whole loop; it decides nothing.

A trial that may simply go on is told so before its result is on disk: its process dies with ours, so after a
crash it repeats the step. Everything else is done only after the facts that led to it are durable. So facts
that led to nothing else may wait a moment for others, and are written together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from muster.base.clock import Clock
from muster.trials.checkpoints import deletable
from muster.trials.commands import ContinueTrial, EngineCommand, StartTrial
from muster.trials.events import Fact
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef
from muster.trials.ports import Engine, TrialStore

logger = logging.getLogger(__name__)
_MOST_HELD = 512  # facts


class TrialController:
    """Drives one experiment to its end, one step at a time."""

    def __init__(self, state: ExperimentState, *, engine: Engine, store: TrialStore, clock: Clock) -> None:
        self._state = state
        self._engine = engine
        self._store = store
        self._clock = clock
        self._durable = self._noted = 0  # facts, of those ever noted
        # For how long facts may wait for others when nothing but ContinueTrial follows from them.
        self.linger_s = 0.0
        self._is_filling = False  # trials are being started, and nothing says that these were the last
        self._held: list[Fact] = []  # of whole steps; not durable yet
        self._write_at = float("inf")  # when the first of them has waited long enough

    @property
    def state(self) -> ExperimentState:
        return self._state

    def step(self, timeout_s: float = 0.1, *, admits: bool = True) -> bool:
        """One round over everything that is ready; False once the experiment is over.

        Without `admits` no trial is suggested or started: whoever drives by hand asks for that separately.
        """
        state = self._state
        later: list[EngineCommand] = []
        for event in self._engine.poll(self._patience(timeout_s)):
            for command in state.handle(event):
                if isinstance(command, ContinueTrial):
                    self._engine.submit(command)
                else:
                    later.append(command)
        later.extend(state.advance(self._clock.now(), admits=admits))
        self._hold()
        if later or self._is_due():
            self.write_down()
            for command in later:
                self._engine.submit(command)
        self._is_filling = state.takes_more and any(isinstance(command, StartTrial) for command in later)
        state.plugins.iteration += 1
        self._log_warnings()
        return not state.is_finished

    def save(
        self,
        trials: bytes,
        plugins: Mapping[str, bytes],
        statuses: Mapping[str, str] | None = None,
        ended: bytes = b"",
    ) -> None:
        """A new starting point for restore; stands for everything handled so far."""
        self._hold()
        self.write_down()
        self._store.snapshot(trials, plugins, statuses, ended)

    def take_deletable(self) -> tuple[CheckpointRef, ...]:
        """Checkpoints nothing can need again, for whoever deletes directories."""
        if not self._state.facts.checkpoints_to_delete:
            return ()
        in_use = {c.path for trial in self._state.index.live.values() for c in trial.checkpoints}
        in_use |= self._state.index.borrowed
        now, self._state.facts.checkpoints_to_delete[:] = deletable(
            self._state.facts.checkpoints_to_delete, self._durable, in_use
        )
        return now

    def write_down(self) -> None:
        """Make the facts of all steps that were completed durable."""
        if self._held:
            self._store.append(self._held)
            self._held = []
        self._durable = self._noted

    def _hold(self) -> None:
        self._noted = self._state.facts.count
        facts = self._state.facts.take()
        if facts:
            if not self._held:
                self._write_at = self._clock.monotonic() + self.linger_s
            self._held.extend(facts)

    def _is_due(self) -> bool:
        held = len(self._held)
        return held > 0 and (held >= _MOST_HELD or self._clock.monotonic() >= self._write_at)

    def _patience(self, timeout_s: float) -> float:
        """How long to wait for events: not beyond the moment when something has to be written.

        Not at all while more trials may be started: a searcher is asked for a few of them per step.
        """
        if self._is_filling:
            return 0.0
        if not self._held:
            return timeout_s
        return min(timeout_s, max(0.0, self._write_at - self._clock.monotonic()))

    def _log_warnings(self) -> None:
        for text in self._state.facts.warnings:
            logger.warning("%s", text)
        self._state.facts.warnings.clear()

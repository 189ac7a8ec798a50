"""Run an experiment step by step: poll events, handle them, store the facts, submit the commands.

The controller decides nothing. A trial that may continue gets its command before its result is durable: its
process ends with this one, so after a crash it repeats the steps since its checkpoint. A new checkpoint is
durable before its trial continues: a crash costs only the step in progress then. Every other command, too, is
submitted only after the facts that led to it are durable. Facts that led to no such command may therefore
wait a moment and be written together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from muster.base.clock import Clock
from muster.trials.checkpoints import deletable
from muster.trials.events import ContinueTrial, EngineCommand, Fact, StartTrial
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef
from muster.trials.ports import CheckpointFiles, Engine, Saver, TrialStore

logger = logging.getLogger(__name__)
# A commit costs as much as handling ten results: those that follow each other share one. Nothing is lost by
# waiting: the process of a trial that continued ends with this one, and its steps are repeated.
BATCH_DELAY_S = 0.02
_MAX_BUFFERED = 512  # facts


class TrialController:
    """Drives one experiment to its end, one step at a time."""

    def __init__(
        self,
        state: ExperimentState,
        *,
        engine: Engine,
        store: TrialStore,
        clock: Clock,
        saver: Saver | None = None,
        files: CheckpointFiles | None = None,
    ) -> None:
        self._state, self._engine, self._store, self._clock = state, engine, store, clock
        self._saver, self._files = saver, files
        self._durable = self._noted = 0  # facts, of those ever noted
        # How long facts may wait for others when nothing but ContinueTrial follows from them.
        self.batch_delay_s = 0.0
        self._is_filling = True  # trials are being started, and more may follow; also before the first
        self._buffered: list[Fact] = []  # of completed steps; not durable yet
        self._flush_at = float("inf")  # when the first of them has waited long enough

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> ExperimentState:
        """Run to the end, or until `should_stop`, which is called between steps; then save everything."""
        self.save()  # before the first suggestion: a replay starts from the searcher's first random state
        self.batch_delay_s = BATCH_DELAY_S
        try:
            while not should_stop() and self.step():
                pass
        finally:  # a callback may have raised: the completed steps are kept
            self.flush()
        self._state.charge_all(self._clock.now())
        self.save(is_last=True)
        self._discard_checkpoints()
        return self._state

    def step(self, timeout_s: float = 0.1, *, admits: bool = True) -> bool:
        """Handle everything that is ready, and saves when that is due; False once the experiment is over.

        Without `admits` no trial is suggested or started: an ask-and-tell loop requests that separately.
        """
        plugins, facts = self._state.plugins, self._state.facts
        fire, trials = plugins.hooks.fire, plugins.trials
        fire("on_step_begin", iteration=plugins.iteration, trials=trials)
        self._handle_events(timeout_s, admits)
        plugins.iteration += 1
        for text in facts.warnings:
            logger.warning("%s", text)
        facts.warnings.clear()
        continues = not self._state.is_finished
        fire("on_step_end", iteration=plugins.iteration, trials=trials)
        self._discard_checkpoints()
        if continues and self._saver is not None and self._saver.is_due():
            self.save()
        return continues

    def _handle_events(self, timeout_s: float, admits: bool) -> None:
        state = self._state
        later: list[EngineCommand] = []
        for event in self._engine.poll(self._poll_timeout(timeout_s)):
            has_checkpoint = getattr(event, "checkpoint", None) is not None
            for command in state.handle(event):
                if isinstance(command, ContinueTrial) and not has_checkpoint:
                    self._engine.submit(command)
                else:
                    later.append(command)
        later.extend(state.advance(self._clock.now(), admits=admits))
        self._buffer()
        count = len(self._buffered)
        is_due = count > 0 and (count >= _MAX_BUFFERED or self._clock.monotonic() >= self._flush_at)
        if later or is_due:
            self.flush()
            for command in later:
                if self._files is not None and isinstance(command, StartTrial):
                    command = self._files.check(command)  # noqa: PLW2901
                self._engine.submit(command)
        started = bool(later) and any(isinstance(command, StartTrial) for command in later)
        self._is_filling = started and state.takes_more

    def save(self, *, is_last: bool = False) -> None:
        """Write a snapshot that includes everything handled so far."""
        if self._saver is not None:
            self._saver.save(self._flush_all, is_last=is_last)

    def take_deletable(self) -> tuple[CheckpointRef, ...]:
        """Return the checkpoints that nothing can need again, even after a crash."""
        facts, index = self._state.facts, self._state.index
        in_use = {c.path for trial in index.live.values() for c in trial.checkpoints}
        in_use |= index.borrowed
        now, facts.checkpoints_to_delete[:] = deletable(facts.checkpoints_to_delete, self._durable, in_use)
        return now

    def flush(self) -> None:
        """Make the facts of all completed steps durable."""
        if self._buffered:
            self._store.append(self._buffered)
            self._buffered = []
        self._durable = self._noted

    def _flush_all(self) -> None:
        self._buffer()
        self.flush()

    def _buffer(self) -> None:
        self._noted = self._state.facts.count
        facts = self._state.facts.take()
        if facts:
            if not self._buffered:
                self._flush_at = self._clock.monotonic() + self.batch_delay_s
            self._buffered.extend(facts)

    def _poll_timeout(self, timeout_s: float) -> float:
        """Return how long to wait for events: not beyond the moment when facts have to be written.

        Zero while more trials may be started: a searcher is asked for a few of them per step.
        """
        if self._is_filling:
            return 0.0
        if not self._buffered:
            return timeout_s
        left_s = self._flush_at - self._clock.monotonic()
        return 0.0 if left_s < 0 else left_s if left_s < timeout_s else timeout_s

    def _discard_checkpoints(self) -> None:
        superfluous = self.take_deletable() if self._state.facts.checkpoints_to_delete else ()
        if superfluous and self._files is not None:
            self._files.discard(superfluous)

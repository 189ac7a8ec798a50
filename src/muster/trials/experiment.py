"""ExperimentState: events in, commands out. The only place where trials change; does no I/O.

Deterministic given its plug-ins: searcher, scheduler, stopper and callbacks are user objects with hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import assert_never

from muster.errors import MusterError, TuneError
from muster.trials.checkpoints import CheckpointToDelete
from muster.trials.commands import EngineCommand
from muster.trials.controller_view import ControllerView
from muster.trials.decide import decide
from muster.trials.events import (
    CapacityChanged,
    CheckpointSaved,
    Event,
    ExperimentEnded,
    Fact,
    SearchExhausted,
    TrialAdmitted,
    TrialExited,
    TrialReported,
    TrialStarted,
    Woke,
)
from muster.trials.lifecycle import Lifecycle
from muster.trials.model import CheckpointRef, Trial
from muster.trials.plugins import Plugins
from muster.trials.states import FINISHED, TrialState
from muster.trials.template import Settings
from muster.trials.trial_index import TrialIndex

_BUNCH = 16  # trials


class ExperimentState:
    """One experiment between two events."""

    def __init__(
        self,
        settings: Settings,
        plugins: Plugins,
        *,
        capacity: Mapping[str, float],
        directory_for: Callable[[Trial], str] = lambda trial: trial.trial_id,
    ) -> None:
        self.settings = settings
        self.search = plugins.search
        self.scheduler = plugins.scheduler
        self.stopper = plugins.stopper
        self.hooks = plugins.hooks
        self.directory_for = directory_for  # below the experiment's; asked once per trial
        self.roster = TrialIndex(capacity, settings.experiment_dir)
        self.view = ControllerView(self.roster, plugins.search)
        self.iteration = 0
        self.is_stopping = False  # no new trials; the running ones are being ended
        self.first_failure: Trial | None = None
        self.lifecycle = Lifecycle(self)
        self.warnings: list[str] = []  # for the controller to log, then clear
        self.doomed: list[
            CheckpointToDelete
        ] = []  # checkpoints that may go once the facts so far are durable
        self.facts_noted = 0
        self._facts: list[Fact] = []
        self.is_exhausted = False  # the searcher has no more trials

    @property
    def trials(self) -> Mapping[str, Trial]:
        return self.roster.trials

    @property
    def is_finished(self) -> bool:
        return not self.roster.live and (self.is_stopping or self.search.is_finished())

    def handle(self, event: Event) -> list[EngineCommand]:
        """What follows from one event, for the trial it is about. Events of unknown trials are ignored."""
        match event:
            case TrialReported() | TrialStarted() | TrialExited() | CheckpointSaved():
                trial = self.roster.trials.get(event.trial_id)
                if trial is None or trial.state in FINISHED:
                    return []
                if isinstance(event, TrialReported) and self.lifecycle.is_to_stop(trial):
                    self._drop(trial, event)
                    return []
                self.note(event)
                self._dispatch(trial, event)
                return self.lifecycle.take()
            case CapacityChanged():
                self.roster.resize(event.capacity, is_bounded=event.is_bounded)
                return []
            case Woke():
                return []
            case _:
                assert_never(event)

    def advance(self, at: float, *, admits: bool = True) -> list[EngineCommand]:
        """Once per step, after its events: the end of everything, new trials, and who starts next."""
        if not self.is_stopping and self._should_end():
            self.end(at)
        if admits and not self.is_stopping:
            self._take_in(at)
            self._admit(at)
        return self.lifecycle.take()

    def end(self, at: float) -> None:
        """Stop everything in the ordinary way, so that searcher, scheduler and loggers are told."""
        self.is_stopping = True
        self.note(ExperimentEnded(at=at))
        self.search.set_finished()
        for trial in tuple(self.roster.live.values()):
            self.lifecycle.stop(trial, at)

    def admit_again(self, fact: TrialAdmitted) -> None:
        """Restore: the scheduler makes the same choice once more, so that it remembers having made it."""
        chosen = self.scheduler.choose_trial_to_run(self.view)
        if not fact.trial_id:
            self.note(fact)
            self.lifecycle.obey_wishes(fact.at)
            return
        trial = self.roster.trials[fact.trial_id]
        if chosen is not trial and (chosen is None or chosen.state is not TrialState.STARTING):
            self.warn(f"the scheduler {type(self.scheduler).__name__} chose {chosen}, recorded is {trial}")
        if trial.state in (TrialState.PENDING, TrialState.PAUSED):
            self.lifecycle.start(trial, fact.at)

    def exhaust_again(self, fact: SearchExhausted) -> None:
        """Restore: ask the searcher the question to which it had no answer."""
        if not self.search.is_finished() and (extra := self.search.next_trial()) is not None:
            self.warn(
                f"the searcher {type(self.search).__name__} had ended, and now gave trial {extra}: left out"
            )
        self.is_exhausted = True
        self.note(fact)

    def abandon(self, trial: Trial) -> None:
        """Restore: its process died with the driver. It waits again, or is what it was about to become."""
        self.lifecycle.abandon(trial)

    def forget_commands(self) -> None:
        """Restore: nothing is done twice."""
        self.lifecycle.take()

    def take_facts(self) -> Sequence[Fact]:
        """What was handled since the last call, in order; to be made durable."""
        facts, self._facts = self._facts, []
        return facts

    def note(self, fact: Fact) -> None:
        self._facts.append(fact)
        self.facts_noted += 1

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def give_up(self, checkpoints: Sequence[CheckpointRef]) -> None:
        """These are no longer kept; their directories wait until a crash cannot bring them back."""
        self.doomed.extend(CheckpointToDelete(ref=ref, after=self.facts_noted) for ref in checkpoints)

    def _drop(self, trial: Trial, event: TrialReported) -> None:
        """It was told to stop while this was on the way: everybody has heard of its last result already."""
        if event.checkpoint is not None:
            trial.checkpoint_index = max(trial.checkpoint_index, event.checkpoint.index)
            self.give_up([event.checkpoint])

    def _dispatch(
        self, trial: Trial, event: TrialStarted | TrialReported | CheckpointSaved | TrialExited
    ) -> None:
        match event:
            case TrialReported():
                self.lifecycle.obey(trial, decide(self, trial, event), event.at)
            case TrialStarted():
                self.lifecycle.started(trial, event)
            case CheckpointSaved():
                self.lifecycle.saved(trial, event)
            case TrialExited():
                self.lifecycle.exited(trial, event)

    def _should_end(self) -> bool:
        failed = self.settings.failure.fail_fast and self.first_failure is not None
        return failed or (self.stopper is not None and bool(self.stopper.stop_all()))

    def _take_in(self, at: float) -> None:
        """Ask the searcher while there is room in the queue: for a few at a time, as that costs less each.

        Not for all at once: those that could start would wait for it.
        """
        most, waiting = self.settings.max_pending, len(self.roster.pending)
        bunch = max(1, min(_BUNCH, most // 8))
        if 0 < waiting > most - bunch:
            return
        while not self.is_exhausted and len(self.roster.pending) < min(most, waiting + bunch):
            trial = None if self.search.is_finished() else self.search.next_trial()
            if trial is not None:
                self.add(trial, at)
                continue
            self.is_exhausted = self.search.is_finished()  # some know it only after they were asked once more
            if self.is_exhausted:
                self.note(SearchExhausted(at=at))
            return

    def add(self, trial: Trial, at: float) -> None:
        """A trial that was just suggested."""
        if trial.trial_id in self.roster.trials:
            raise TuneError(f"the searcher gave trial id {trial.trial_id!r} twice: ids must be unique")
        self.lifecycle.added(trial, at)

    def _admit(self, at: float) -> None:
        """The scheduler's choice starts as long as it fits; a choice that does not fit waits for its turn."""
        while self.roster.pending or self.roster.paused:
            trial = self._choice()
            if self.view.has_wishes:
                self.note(TrialAdmitted(trial_id="", at=at))
                self.lifecycle.obey_wishes(at)
            if trial is not None and trial.state is TrialState.STARTING:
                # A scheduler that goes by `status` cannot see that its choice is under way: the next in line.
                trial = next(iter(self.roster.pending.values()), None)
            if trial is None or trial.state not in (TrialState.PENDING, TrialState.PAUSED):
                return
            if not self.roster.can_ever_fit(trial):
                self.lifecycle.refuse(trial, at)
            elif self._has_room(trial) and not self.lifecycle.has_process_soon(trial):
                self.lifecycle.start(trial, at)
            else:
                return

    def _has_room(self, trial: Trial) -> bool:
        """Of an engine that may grow without a known bound, so many wait for room as from a searcher."""
        roster = self.roster
        if roster.fits(trial):
            return True
        return not roster.is_bounded and len(roster.starting) < self.settings.max_pending

    @property
    def takes_more(self) -> bool:
        """Everybody who was suggested so far found room: another one may as well."""
        return not (self.roster.pending or self.is_exhausted or self.is_stopping)

    def _choice(self) -> Trial | None:
        try:
            trial: Any = self.scheduler.choose_trial_to_run(self.view)
        except MusterError:
            raise
        except Exception as error:
            raise TuneError(
                f"{self._chooser} raised {type(error).__name__}: {error}. "
                "The experiment ends here; fix it and resume"
            ) from error
        if trial is None or isinstance(trial, Trial):
            return trial
        raise TuneError(f"{self._chooser} answered {trial!r}: it must be one of the trials, or None")

    @property
    def _chooser(self) -> str:
        return f"{type(self.scheduler).__name__}.choose_trial_to_run"

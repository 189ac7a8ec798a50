"""Turn events into commands. Trials change only here; the module does no I/O.

The outcome is deterministic, given the plug-ins: searcher, scheduler, stopper and callbacks are user objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING

from typing_extensions import assert_never

from muster.errors import TuneError
from muster.trials.decide import FactLog, PluginCalls, decide
from muster.trials.events import (
    CapacityChanged,
    CheckpointSaved,
    EngineCommand,
    Event,
    ExperimentEnded,
    LimitsChanged,
    SearchExhausted,
    StopTrial,
    TrialAdmitted,
    TrialCharged,
    TrialExited,
    TrialMoved,
    TrialNoticed,
    TrialPriced,
    TrialReported,
    TrialStarted,
    TrialStopRequested,
    Woke,
)
from muster.trials.lifecycle import Lifecycle
from muster.trials.model import ExperimentPlace, Trial
from muster.trials.plugins import STOPPED, STOPS, Plugins
from muster.trials.spend import COST_KEY, NOTE_S, SpendBook, cost_of
from muster.trials.states import FINISHED, HAS_PROCESS, TrialState
from muster.trials.template import Limits, Settings
from muster.trials.trial_index import TrialIndex

if TYPE_CHECKING:
    from muster.trials.budget import BudgetGuard

_BATCH = 16  # trials
ENDLESS = 2**31  # a search that is given no number of samples has more than these


class ExperimentState:
    """One experiment between two events."""

    def __init__(
        self,
        settings: Settings,
        plugins: Plugins,
        *,
        capacity: Mapping[str, float],
        directory_for: Callable[[Trial], str] = lambda trial: trial.trial_id,
        place: ExperimentPlace | None = None,
    ) -> None:
        """`directory_for` returns the directory of a trial below the experiment's; called once per trial."""
        self.settings = settings
        self.index = TrialIndex(capacity, settings.experiment_dir, place)
        self.plugins = PluginCalls(plugins, self.index)
        self.facts = FactLog()
        self.plugins.view.warn = self.facts.warn
        self._commands: list[EngineCommand] = []
        self.lifecycle = Lifecycle(
            self.index,
            self.plugins,
            self.facts,
            self._commands,
            settings=settings,
            directory_for=directory_for,
        )
        self.is_exhausted = False  # the searcher has no more trials
        self._hurries = False  # only stopping trials are left, with little time
        self.spend = SpendBook()
        self.limits = settings.limits  # its deadline is by the clock of the events
        self.guard = self._make_guard()
        self.idle_since: float | None = None  # nothing runs, and the experiment is not over
        self._warn_at = inf
        self.ended_by = ""  # "budget" or "deadline": what ended this run; its trials can be resumed
        self._noted = (0, -inf)  # facts, and when there were so many for the first time

    def _make_guard(self) -> BudgetGuard | None:
        if not self.settings.limits:
            return None
        from muster.trials.budget import BudgetGuard

        return BudgetGuard(self.settings.limits, self.spend)

    @property
    def trials(self) -> Mapping[str, Trial]:
        return self.index.trials

    @property
    def is_finished(self) -> bool:
        if self.ended_by and not self.index.with_process:
            return True
        return not self.index.live and (self.is_stopping or self.plugins.search.is_finished())

    @property
    def is_stopping(self) -> bool:
        """Whether no new trials start and the running ones are being ended."""
        return self.lifecycle.is_stopping

    def handle(self, event: Event) -> list[EngineCommand]:
        """Handle one event and returns the commands that follow; events of unknown trials are ignored."""
        if isinstance(event, TrialReported):  # nearly every event
            return self._handle_report(event)
        match event:
            case TrialStarted() | TrialExited() | CheckpointSaved() | TrialNoticed():
                trial = self.index.trials.get(event.trial_id)
                if trial is None or trial.state in FINISHED:
                    return []
                self.facts.note(event)
                self._dispatch(trial, event)
                return self.take_commands()
            case TrialPriced():
                self._price(event)
                return []
            case CapacityChanged():
                self.index.resize(event.capacity, is_bounded=event.is_bounded)
                return []
            case Woke():
                return []
            case _:
                assert_never(event)

    def _handle_report(self, event: TrialReported) -> list[EngineCommand]:
        trial = self.index.trials.get(event.trial_id)
        if trial is None or trial.state in FINISHED:
            return []
        if trial.usd_per_hour is not None:
            event.result.setdefault(COST_KEY, cost_of(trial, event.at))
        if trial.state is not TrialState.RUNNING:
            if trial.live.repeats:
                self.facts.note(event)
                self.lifecycle.repeated(trial, event)
                return self.take_commands()
            is_last_save = trial.state is TrialState.SAVING and trial.live.after_save in STOPS
            if is_last_save or trial.state is TrialState.STOPPING:
                # Drops a report that arrives after its trial was stopped: the plug-ins have its last result.
                if event.checkpoint is not None:
                    trial.checkpoint_index = max(trial.checkpoint_index, event.checkpoint.index)
                    self.facts.schedule_deletion([event.checkpoint])
                return []
        self.facts.note(event)
        decided = decide(self.plugins, self.settings, trial, event)
        self.lifecycle.apply(trial, decided, event.at)
        if self.guard is not None:
            self._check_limits(self.guard, trial, event)
        return self.take_commands()

    def advance(self, at: float, *, admits: bool = True) -> list[EngineCommand]:
        """End the experiment, take new trials and start waiting ones; once per step, after its events."""
        lifecycle, index, guard = self.lifecycle, self.index, self.guard
        self.spend.seen_at = at
        self._note_time(at)
        waits = index.pending or index.paused or lifecycle.first_failure or lifecycle.preemptions.announced
        if self.is_exhausted and not waits and self.plugins.stopper is None and guard is None:
            self.idle_since = None
            self._hurry_last()
            return self.take_commands()  # nearly every step: nothing waits that could be started
        has_begun = self.index.order or self.plugins.iteration  # as in Ray, the first trials come first
        if has_begun and not lifecycle.is_stopping and (why := self._why_to_end()):
            self.end(at, why)
        if lifecycle.preemptions.announced:
            self._move_overdue(at)
        if guard is not None and not lifecycle.is_stopping:
            self._hold_limits(guard, at)
            admits = admits and not guard.is_closing
        if admits and not lifecycle.is_stopping:
            if lifecycle.is_owed:
                # Starts the trials that owe a checkpoint since before the restore, before anything is chosen.
                for trial in [each for each in self.index.pending.values() if each.live.owed]:
                    if self._has_room(trial):
                        self.lifecycle.start_owing(trial, at)
                self.lifecycle.cancel_owed()
            self._take_suggestions(at)
            self._admit(at)
            self.plugins.view.reasons.clear()  # of a choice that found no room
            self._watch_idle(at)
        is_over = self.ended_by or self.is_stopping or self.index.with_process or self.is_finished
        if guard is not None and not is_over and (guard.is_closing or guard.has_refused):
            self.ended_by = guard.reason  # nothing runs, and the limits let nothing start
        self._hurry_last()
        return self.take_commands()

    def _watch_idle(self, at: float) -> None:
        """Note since when nothing runs; warns after a while, and again each time that has doubled."""
        index, plugins = self.index, self.plugins
        if index.with_process or self.is_finished:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since, self._warn_at = at, at + self.settings.idle_warning_s[not index.is_bounded]
        elif at >= self._warn_at:
            idle_s = at - self.idle_since
            self._warn_at = at + idle_s
            search = getattr(plugins.search, "searcher", plugins.search)
            who = type(plugins.scheduler if index.live else search).__name__
            starts = "starts none of the waiting trials" if index.live else "suggests none"
            self.facts.warn(
                f"no trial has run for {idle_s:.0f} s: {who} {starts} ({len(index.pending)} PENDING, "
                f"{len(index.paused)} PAUSED); if this lasts, press Ctrl-C, fix {who} and resume"
            )

    def _hurry_last(self) -> None:
        """Shorten the grace of the trials that stop, once nothing else runs or will."""
        index, settings = self.index, self.settings
        if not index.stopping:  # nearly always
            self._hurries = False
            return
        waits = index.pending or index.paused or not self.is_exhausted
        is_last = len(index.stopping) == index.with_process
        hurries = is_last and bool(not waits or self.is_stopping or self.ended_by)
        if hurries and not self._hurries and settings.stop_grace_s < settings.force_cleanup_s:
            grace_s = settings.stop_grace_s
            self._commands += [StopTrial(trial_id=trial_id, grace_s=grace_s) for trial_id in index.stopping]
        self._hurries = hurries

    def wake_at(self, at: float) -> float:
        """Return when `advance` must be called although nothing happens; inf when it need not be."""
        if self.guard is None or self.ended_by or self.is_stopping:
            return inf
        return self.guard.wake_at(at)

    def _check_limits(self, guard: BudgetGuard, trial: Trial, event: TrialReported) -> None:
        """Suspend the trial that has just reported if the limits leave it no room until its next report."""
        has_checkpoint = event.checkpoint is not None
        guard.note_report(trial, event.at, has_checkpoint=has_checkpoint)
        is_asked = trial.state in (TrialState.RUNNING, TrialState.SAVING) and not self.lifecycle.is_stopping
        if is_asked and not guard.may_continue(trial, event.at):
            guard.is_closing = True
            self.suspend(trial, event.at, saves=not has_checkpoint)

    def _hold_limits(self, guard: BudgetGuard, at: float) -> None:
        """Stop everything when money or time is nearly gone; warns early when they will not do."""
        if not self.ended_by and guard.is_over(at) and not self.is_finished:
            guard.is_closing, self.ended_by = True, guard.reason
            self.lifecycle.suspend_grace_s = guard.grace_s(at)
            for trial in self.index.holders():
                self.suspend(trial, at, saves=False)
        elif (running := self.index.with_process) and (
            text := guard.warning(at, next(iter(self.index.holders())), self._trials_left(), running)
        ):
            self.facts.warn(text)

    def _trials_left(self) -> int | None:
        """Return how many trials have not ended, with those that are not suggested yet; None: no end."""
        total = getattr(self.plugins.search, "total_samples", None)
        if not isinstance(total, int) or not 0 < total < ENDLESS:
            return len(self.index.live) if self.is_exhausted else None
        return total - (len(self.index.order) - len(self.index.live))

    def suspend(self, trial: Trial, at: float, *, saves: bool) -> None:
        """Take the process of a trial, which then waits again; also during a restore."""
        self.lifecycle.suspend(trial, at, saves=saves)

    def charge(self, trial: Trial, at: float, *, has_run: bool = True) -> None:
        """End what a trial costs, when its process has ended or will be left alone."""
        if self.spend.close(trial, at) or (has_run and self.spend.leave_unknown(trial)):
            cost = cost_of(trial, at)
            self.facts.note(TrialCharged(trial_id=trial.trial_id, at=at, cost_usd=cost))

    def charge_all(self, at: float) -> None:
        """End what all trials cost: their processes are ended, by a driver that stops early."""
        for trial in self.index.holders() if self.spend.is_used else ():
            self.charge(trial, at, has_run=bool(trial.location))

    def _note_time(self, at: float) -> None:
        """Make it a fact that time has passed, now and then: after a kill, trials are charged until then."""
        count, since = self._noted
        is_stale = at - since > 8 * NOTE_S  # the driver was stopped: ends of trials may wait to be handled
        if count == self.facts.count and self.spend.open and at - since >= NOTE_S and not is_stale:
            trial = next(iter(self.spend.open.values()))
            event = TrialPriced(trial_id=trial.trial_id, at=at, usd_per_hour=trial.usd_per_hour or 0.0)
            self.facts.note(event)
            self.spend.price(trial, at, event.usd_per_hour)
        if is_stale or count != self.facts.count:
            self._noted = (self.facts.count, at)

    def _price(self, event: TrialPriced) -> None:
        trial = self.index.trials.get(event.trial_id)
        if trial is None or trial.state not in HAS_PROCESS:
            return
        self.facts.note(event)
        self.spend.price(trial, event.at, event.usd_per_hour)
        if self.guard is not None:
            self.guard.note_price(trial, event.at, event.usd_per_hour)

    def end(self, at: float, why: str = "the experiment was ended") -> None:
        """Stop all trials in the ordinary way, so that searcher, scheduler and loggers are notified."""
        self.lifecycle.is_stopping = True
        self.facts.note(ExperimentEnded(at=at))
        self.plugins.search.set_finished()
        for trial in tuple(self.index.live.values()):
            if not trial.is_finished():
                self.plugins.view.explain(trial.trial_id, STOPPED, why)
            self.lifecycle.stop(trial, at)

    def stop_on_request(self, trial_id: str, at: float) -> bool:
        """Stop a trial because the user asked for it; False when it has ended or is not known."""
        trial = self.index.trials.get(trial_id)
        if trial is None or trial.is_finished():
            return False
        self.facts.note(TrialStopRequested(trial_id=trial_id, at=at))
        self.plugins.view.explain(trial_id, STOPPED, "the user asked for it")
        self.lifecycle.stop(trial, at, early=True)
        return True

    def change_limits(self, limits: Limits, at: float) -> bool:
        """Hold other limits from now on; False where the experiment has no limit of that kind."""
        guard, before = self.guard, self.limits
        has_new = (limits.cost_budget is not None and before.cost_budget is None) or (
            limits.deadline is not None and before.deadline is None
        )
        if guard is None or has_new:
            return False
        self.facts.note(LimitsChanged(at=at, cost_budget=limits.cost_budget, deadline=limits.deadline))
        self.limits = guard.limits = limits
        guard.is_closing = guard.has_refused = False
        self.ended_by = ""
        return True

    def _move_overdue(self, at: float) -> None:
        """Move the trials whose machine should be gone; a save that is under way may still end."""
        for trial_id, info in self.lifecycle.preemptions.overdue(at):
            trial = self.index.trials[trial_id]
            if trial.state in (TrialState.STARTING, TrialState.RUNNING):
                self.facts.note(TrialMoved(trial_id=trial_id, at=at))
                done = 0 if trial.newest is None else trial.newest.metrics.get("training_iteration", "?")
                self.facts.warn(
                    f"trial {trial_id}: the time of its machine {info.node_id or '?'} is over; it continues "
                    f"elsewhere from iteration {done}"
                )
                self.lifecycle.move_away(trial)

    def move_again(self, fact: TrialMoved) -> None:
        """Repeat a move during a restore."""
        self.facts.note(fact)
        self.lifecycle.move_away(self.index.trials[fact.trial_id])

    def admit_again(self, fact: TrialAdmitted) -> None:
        """Repeat an admission during a restore, so that the scheduler records the same choice again."""
        if fact.repeats and self.index.trials[fact.trial_id].live.owed:
            self.lifecycle.start_owing(self.index.trials[fact.trial_id], fact.at)
            return
        self.lifecycle.cancel_owed()
        self.plugins.view.reasons.clear()
        chosen = self.plugins.choose()
        if not fact.trial_id:
            self.facts.note(fact)
            self.lifecycle.apply_plugin_requests(fact.at)
            return
        trial = self.index.trials[fact.trial_id]
        if chosen is not trial and (chosen is None or not _only_looks_pending(chosen)):
            name = type(self.plugins.scheduler).__name__
            self.facts.warn(f"the scheduler {name} chose {chosen}, recorded is {trial}")
        if trial.state in (TrialState.PENDING, TrialState.PAUSED):
            self.lifecycle.start(trial, fact.at)

    def exhaust_again(self, fact: SearchExhausted) -> None:
        """Repeat the end of the search during a restore: asks the searcher for one more trial."""
        search = self.plugins.search
        if not search.is_finished() and (extra := search.next_trial()) is not None:
            self.facts.warn(
                f"the searcher {type(search).__name__} had ended, and now returns trial {extra}: left out"
            )
        self.is_exhausted = True
        self.facts.note(fact)

    def take_commands(self) -> list[EngineCommand]:
        """Return the commands since the last call, in order."""
        if not self._commands:
            return []
        commands = self._commands.copy()
        self._commands.clear()
        return commands

    def _dispatch(
        self, trial: Trial, event: TrialStarted | CheckpointSaved | TrialExited | TrialNoticed
    ) -> None:
        match event:
            case TrialNoticed():
                self.lifecycle.noticed(trial, event)
            case TrialStarted():
                if self.guard is not None:
                    self.guard.note_running(trial, event.at)
                self.lifecycle.started(trial, event)
            case CheckpointSaved():
                if self.guard is not None:
                    self.guard.note_saved(trial, event.at)
                self.lifecycle.saved(trial, event)
            case TrialExited():
                self.charge(trial, event.at, has_run=bool(trial.location))
                self.lifecycle.exited(trial, event)
                if self.guard is not None:
                    is_over = trial.state is TrialState.TERMINATED
                    self.guard.note_exit(trial, event.at, is_over=is_over)

    @property
    def failed_fast(self) -> Trial | None:
        """The trial whose failure ends the experiment."""
        return self.lifecycle.first_failure if self.settings.failure.fail_fast else None

    def _why_to_end(self) -> str:
        """Return why the experiment ends now, in words; "" while it does not."""
        failed = self.lifecycle.first_failure
        if failed is not None and self.settings.failure.fail_fast:
            return f"the experiment ended, because trial {failed.trial_id} failed and fail_fast is set"
        if failed is not None and self.lifecycle.is_same_for_all:
            return f"the experiment ended, because trial {failed.trial_id} reported no metric, like any other"
        return f"the experiment ended: {self.plugins.why_all()}" if self.plugins.stops_all() else ""

    def _take_suggestions(self, at: float) -> None:
        """Ask the searcher for trials while there is room in the queue.

        A few at a time, as that costs less for each; not all at once, because the first ones could start.
        """
        if self.is_exhausted:
            return
        search = self.plugins.search
        most, waiting = self.settings.max_pending, len(self.index.pending)
        batch = max(1, min(_BATCH, most // 8))
        if 0 < waiting > most - batch:
            return
        while not self.is_exhausted and len(self.index.pending) < min(most, waiting + batch):
            trial = None if search.is_finished() else search.next_trial()
            if trial is not None:
                self.add(trial, at)
                continue
            self._note_exhausted(at)  # some know it only after one more call
            return

    def _note_exhausted(self, at: float) -> None:
        self.is_exhausted = self.plugins.search.is_finished()
        if self.is_exhausted:
            self.facts.note(SearchExhausted(at=at))

    def add(self, trial: Trial, at: float) -> None:
        """Add a trial that the searcher has just suggested."""
        if trial.trial_id in self.index.trials:
            raise TuneError(
                f"the searcher returned trial id {trial.trial_id!r} twice: give each trial its own id"
            )
        self.lifecycle.add(trial, at)

    def _admit(self, at: float) -> None:
        """Start the choices of the scheduler as long as they fit; a choice that does not fit waits."""
        while self.index.pending or self.index.paused:
            trial = self.plugins.choose()
            if self.plugins.view.requests:
                self.facts.note(TrialAdmitted(trial_id="", at=at))
                self.lifecycle.apply_plugin_requests(at)
            if trial is not None and _only_looks_pending(trial):
                # A scheduler that reads `status` cannot see that its choice is starting, or still on a
                # machine that it leaves: take the next one.
                trial = next(iter(self.index.pending.values()), None)
            if trial is None or trial.state not in (TrialState.PENDING, TrialState.PAUSED):
                return
            if not self.index.can_ever_fit(trial):
                self.lifecycle.refuse(trial, at)
            elif self._has_room(trial) and not self.lifecycle.has_process_soon(trial):
                if self.guard is not None:
                    if not self.guard.may_start(trial, at):
                        return
                    self.guard.note_start(trial, at)
                self.lifecycle.start(trial, at)
            else:
                return
        if not (self.is_exhausted or self.index.live):  # every trial may have been refused
            self._note_exhausted(at)

    def _has_room(self, trial: Trial) -> bool:
        """Return whether the trial may be handed to the engine now.

        An engine that may grow without a known bound gets as many waiting trials as the queue holds.
        """
        index = self.index
        if index.fits(trial):
            return True
        return not index.is_bounded and len(index.starting) < self.settings.max_pending

    @property
    def takes_more(self) -> bool:
        """Whether every suggested trial has been started, so that one more may start as well."""
        return not (self.index.pending or self.is_exhausted or self.is_stopping)


def _only_looks_pending(trial: Trial) -> bool:
    is_leaving = trial.state is TrialState.STOPPING and trial.intent is TrialState.PENDING
    return is_leaving or trial.state is TrialState.STARTING

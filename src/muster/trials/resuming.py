"""What a restored experiment does with trials that had ended, or had not: resume, restart or leave them.

Called once after `restore.revive`; the snapshot that follows makes it durable. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from muster.trials.experiment import ExperimentState
from muster.trials.metrics import Statistics
from muster.trials.model import Trial
from muster.trials.states import TrialState

RESUME, RESTART, SKIP = "resume", "restart", "skip"


class ResumeRules(Struct, frozen=True, kw_only=True):
    """One answer for each way in which the earlier run left a trial."""

    finished: str = SKIP
    unfinished: str = RESUME
    errored: str = SKIP

    def for_trial(self, trial: Trial) -> str:
        if trial.state is TrialState.ERROR:
            return self.errored
        return self.finished if trial.state is TrialState.TERMINATED else self.unfinished


def apply_rules(
    state: ExperimentState,
    rules: ResumeRules,
    at: float,
    forget: Callable[[Trial], None] = lambda trial: None,
) -> tuple[Trial, ...]:
    """The trials that run again. `forget` is told of each whose earlier end no longer stands."""
    again = []
    for trial in tuple(state.roster.order):
        rule = rules.for_trial(trial)
        was_finished = trial.is_finished()
        if rule == SKIP:
            if not was_finished:
                state.lifecycle.stop(trial, at)
            continue
        if rule == RESTART:
            begin_anew(state, trial)
        if was_finished:
            trial.error_filename = trial.pickled_error_filename = None
            forget(trial)
            state.roster.move(trial, TrialState.PENDING)
            state.scheduler.on_trial_add(state.view, trial)
        if was_finished or rule == RESTART:
            again.append(trial)
    if again:  # an earlier end (fail_fast, a budget) does not hold for what was asked to run again
        state.is_stopping = False
        state.first_failure = None
    state.forget_commands()
    return tuple(again)


def begin_anew(state: ExperimentState, trial: Trial) -> None:
    """As if it had never run. Its id and directory stay, its results and checkpoints do not."""
    state.give_up(trial.checkpoints)
    trial.checkpoints = ()
    trial.adopted = None
    trial.restore_path = None
    trial.last_result = {"trial_id": trial.trial_id}
    trial.last_result_time = float("-inf")
    trial.statistics = Statistics()
    trial.start_time = None

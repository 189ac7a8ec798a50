"""The hops of a trial's life: who is told, which command leaves, what the trial becomes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from muster.trials.checkpoints import register
from muster.trials.commands import ContinueTrial, EngineCommand, SaveTrial, StartTrial, StopTrial
from muster.trials.controller_view import PluginRequest
from muster.trials.decide import TrialDecision
from muster.trials.events import (
    CheckpointSaved,
    TrialAdmitted,
    TrialCreated,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialStarted,
)
from muster.trials.model import CheckpointPolicy, CheckpointRef, FailurePolicy, Trial
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.plugins import CONTINUE, NOOP, PAUSE, STOP
from muster.trials.results import flatten
from muster.trials.states import TrialState
from muster.trials.template import Settings

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState


# Nothing the trial did: the machine was taken away. Counted only when the user says so.
_NOT_ITS_FAULT = frozenset({TrialFailureKind.PREEMPTED})
# Trying again would end the same way.
_FINAL = frozenset({TrialFailureKind.RESET_REFUSED, TrialFailureKind.UNPICKLABLE, TrialFailureKind.START})


def counts(trial: Trial, failure: TrialFailure, policy: FailurePolicy, was_restoring: bool) -> bool:
    """Whether the failure uses up one of the trial's retries; restore failures have a budget of their own."""
    if was_restoring and trial.num_restore_failures < policy.restore_retries:
        return False
    return failure.kind not in _NOT_ITS_FAULT or policy.count_preemption


def may_retry(trial: Trial, failure: TrialFailure) -> bool:
    """`num_failures` has been brought up to date before."""
    if failure.kind in _FINAL:
        return False
    return trial.max_failures < 0 or trial.num_failures <= trial.max_failures


_S = TrialState
_PAUSE_IF_SAVED = "PAUSE_IF_SAVED"  # in `after_save` only: without a checkpoint its steps would be lost


class Lifecycle:
    """Carries decisions out on the roster; commands collect until `take`."""

    def __init__(self, state: ExperimentState) -> None:
        self._state = state
        self._commands: list[EngineCommand] = []
        self.after_save: dict[str, str] = {}  # what happens to a trial once its checkpoint is there
        self.restoring: set[str] = set()  # started from a checkpoint, not heard from since
        self._freeing: dict[str, PlacementGroupFactory] = {}  # whose process will be free in a moment

    def take(self) -> list[EngineCommand]:
        commands, self._commands = self._commands, []
        return commands

    def added(self, trial: Trial, at: float) -> None:
        self._state.roster.add(trial)
        if trial.relative_logdir is None:
            trial.relative_logdir = self._state.directory_for(trial)
        self._state.note(
            TrialCreated(
                trial_id=trial.trial_id,
                at=at,
                config=trial.config,
                evaluated_params=trial.evaluated_params,
                experiment_tag=trial.experiment_tag,
                trial_name=str(trial),
                relative_logdir=trial.relative_logdir or "",
            )
        )
        self._state.scheduler.on_trial_add(self._state.view, trial)
        self.obey_wishes(at)

    def start(self, trial: Trial, at: float) -> None:
        """Hand it to the engine, from its newest checkpoint when it has one."""
        settings, roster = self._state.settings, self._state.roster
        self._state.note(TrialAdmitted(trial_id=trial.trial_id, at=at))
        if trial.state is _S.PAUSED:
            roster.move(trial, _S.PENDING)
        roster.move(trial, _S.STARTING)
        if trial.checkpoint is not None:
            self.restoring.add(trial.trial_id)
        self._commands.append(
            StartTrial(
                trial_id=trial.trial_id,
                trial_name=str(trial),
                trainable_name=trial.trainable_name,
                config=trial.config,
                resources=trial.placement_group_factory,
                trial_dir=f"{settings.experiment_dir}/{trial.relative_logdir}",
                experiment_name=settings.name,
                experiment_tag=trial.experiment_tag,
                checkpoint=trial.checkpoint or _given(trial.restore_path),
                checkpoint_index=trial.checkpoint_index,
                log_to_file=trial.log_to_file,
                may_reuse=settings.reuse_actors,
                time_limit_s=settings.trial_time_limit_s,
                buffering=_buffering(settings, trial.checkpoint_policy),
            )
        )

    def is_to_stop(self, trial: Trial) -> bool:
        """Told to stop, or going to be once its checkpoint is there."""
        return trial.state is _S.STOPPING or (
            trial.state is _S.SAVING and self.after_save.get(trial.trial_id) == STOP
        )

    def has_process_soon(self, trial: Trial) -> bool:
        """Whether a process that it may take over is just being handed back: cheaper than a new one."""
        return bool(self._freeing) and trial.placement_group_factory in self._freeing.values()

    def refuse(self, trial: Trial, at: float) -> None:
        """It can never start here: say so now instead of waiting for ever."""
        needs, has = self._state.roster.size(trial), self._state.roster.capacity
        message = f"trial {trial.trial_id} needs ({needs}), but there is only ({has}) in all"
        failure = TrialFailure(kind=TrialFailureKind.START, message=message)
        self._state.note(TrialExited(trial_id=trial.trial_id, at=at, failure=failure))
        self._fail(trial, failure, at)

    def started(self, trial: Trial, event: TrialStarted) -> None:
        if trial.state is not _S.STARTING:
            return
        trial.location = event.location
        if trial.start_time is None:
            trial.start_time = event.at
        self._state.roster.move(trial, _S.RUNNING)
        self.restoring.discard(trial.trial_id)
        _stand_at_checkpoint(trial)
        self._tell("on_trial_start", trial)

    def obey(self, trial: Trial, judgement: TrialDecision, at: float) -> None:
        """Carry out what was decided on a report, after the checkpoint that is due."""
        if judgement.checkpoint is not None:
            self._keep(trial, judgement.checkpoint)
        if trial.state is _S.SAVING and judgement.decision in (STOP, PAUSE):
            self.after_save[trial.trial_id] = judgement.decision  # it came with the one that saves
        if trial.state is not _S.RUNNING:
            return  # its report met another order
        if self._must_save(trial, judgement):
            careful = judgement.decision == PAUSE and self._state.view.withdraw(
                trial, PluginRequest.KEEP_STEPS
            )
            self._save_then(trial, _PAUSE_IF_SAVED if careful else judgement.decision)
        else:
            self._carry_out(trial, judgement.decision, at)
        self.obey_wishes(at)

    def _must_save(self, trial: Trial, judgement: TrialDecision) -> bool:
        """Before the decision is carried out. A save that a plug-in asked for is done here: it waits now."""
        view, decision = self._state.view, judgement.decision
        is_wanted = decision == PAUSE
        if decision != NOOP and view.has_wishes:
            is_wanted |= view.withdraw_save(trial)
        return judgement.save or (is_wanted and judgement.checkpoint is None)

    def saved(self, trial: Trial, event: CheckpointSaved) -> None:
        if event.checkpoint is not None:
            self._keep(trial, event.checkpoint)
            self._tell("on_trial_save", trial)
        decision = self.after_save.pop(trial.trial_id, CONTINUE)
        if decision == _PAUSE_IF_SAVED:
            decision = CONTINUE if event.checkpoint is None else PAUSE
        if trial.state is _S.SAVING:
            self._state.roster.move(trial, _S.RUNNING)
            self._carry_out(trial, decision, event.at)
            self.obey_wishes(event.at)

    def stop(self, trial: Trial, at: float) -> None:
        """End a trial in any state; scheduler, searcher and callbacks hear of it here, once."""
        if trial.is_finished():
            return
        state = self._state
        if trial.state in (_S.RUNNING, _S.SAVING):
            self._complete(trial)
        else:
            state.scheduler.on_trial_remove(state.view, trial)
            state.search.on_trial_complete(trial.trial_id)
            self._tell("on_trial_complete", trial)
        self._leave(trial, _S.TERMINATED)
        self.obey_wishes(at)

    def exited(self, trial: Trial, event: TrialExited) -> None:
        """Its process is gone, or free: what it leaves behind depends on why."""
        self.after_save.pop(trial.trial_id, None)
        self._freeing.pop(trial.trial_id, None)
        if trial.state is _S.STOPPING:
            self._state.roster.move(trial, trial.intent)
        elif event.failure is not None:
            self._fail(trial, event.failure, event.at)
        else:  # its code returned: a completion like any other, only that nothing needs to be stopped
            self._complete(trial)
            self._state.roster.move(trial, _S.TERMINATED)
        self.restoring.discard(trial.trial_id)
        self.obey_wishes(event.at)

    def abandon(self, trial: Trial) -> None:
        """Its process is gone without a word, and nobody is to blame."""
        self.after_save.pop(trial.trial_id, None)
        self._freeing.pop(trial.trial_id, None)
        self.restoring.discard(trial.trial_id)
        ends = trial.state is _S.STOPPING
        self._state.roster.move(trial, trial.intent if ends else _S.PENDING)

    def obey_wishes(self, at: float) -> None:
        """What plug-ins asked of the view during their hooks."""
        for wish, trial in self._state.view.take():
            if trial.is_finished():
                continue
            if wish is PluginRequest.STOP:
                self.stop(trial, at)
            elif wish is PluginRequest.PAUSE:
                self._pause(trial)
            elif wish is PluginRequest.PAUSE_WITHOUT_SAVE:
                self._leave(trial, _S.PAUSED)
            elif wish is PluginRequest.SAVE and trial.state is _S.RUNNING:
                self._save_then(trial, CONTINUE)

    def _complete(self, trial: Trial) -> None:
        """Scheduler, searcher and callbacks hear of the last result."""
        state = self._state
        trial.last_result["done"] = True
        flat = flatten(trial.last_result)
        state.scheduler.on_trial_complete(state.view, trial, flat)
        state.search.on_trial_complete(trial.trial_id, result=flat)
        self._tell("on_trial_complete", trial)

    def _pause(self, trial: Trial) -> None:
        if trial.state is _S.SAVING:
            self.after_save[trial.trial_id] = PAUSE
        elif trial.state is _S.RUNNING:
            self._save_then(trial, PAUSE)

    def _save_then(self, trial: Trial, decision: str) -> None:
        self._state.roster.move(trial, _S.SAVING)
        self.after_save[trial.trial_id] = decision
        self._commands.append(SaveTrial(trial_id=trial.trial_id))

    def _carry_out(self, trial: Trial, decision: str, at: float) -> None:
        if decision == CONTINUE:
            self._commands.append(ContinueTrial(trial_id=trial.trial_id))
        elif decision == STOP:
            self.stop(trial, at)
        elif decision == PAUSE:
            self._leave(trial, _S.PAUSED)
        if self._state.settings.reuse_actors and trial.state is _S.STOPPING:
            self._freeing[trial.trial_id] = trial.placement_group_factory  # it waits for this very answer

    def _leave(self, trial: Trial, intent: TrialState) -> None:
        """Take its process away; without one the trial is there at once."""
        if trial.state in (_S.PENDING, _S.PAUSED):
            if trial.state is not intent and intent is _S.TERMINATED:
                self._state.roster.move(trial, intent)
            return
        self.after_save.pop(trial.trial_id, None)
        trial.intent = intent
        if trial.state is not _S.STOPPING:
            self._state.roster.move(trial, _S.STOPPING)
            settings = self._state.settings
            keep = settings.reuse_actors
            self._commands.append(
                StopTrial(trial_id=trial.trial_id, keep_process=keep, grace_s=settings.stop_grace_s)
            )

    def _keep(self, trial: Trial, checkpoint: CheckpointRef) -> None:
        """A score that cannot be compared is the user's slip: the checkpoint is kept as the newest one."""
        try:
            dropped = register(trial, checkpoint)
        except TypeError as error:
            self._state.warn(f"trial {trial.trial_id}: {error}; its checkpoints are kept by age")
            trial.checkpoint_policy = replace(trial.checkpoint_policy, score_attribute=None)
            dropped = register(trial, checkpoint)
        self._state.give_up(dropped)
        self._tell("on_checkpoint", trial, checkpoint=checkpoint)

    def _fail(self, trial: Trial, failure: TrialFailure, at: float) -> None:
        state, roster = self._state, self._state.roster
        restoring = trial.trial_id in self.restoring
        if counts(trial, failure, state.settings.failure, restoring):
            trial.num_failures += 1
        elif restoring:
            trial.num_restore_failures += 1
        self._tell("on_trial_failure", trial, failure=failure)
        state.scheduler.on_trial_error(state.view, trial)
        if may_retry(trial, failure) and not state.is_stopping:
            if trial.state is not _S.PENDING:
                roster.move(trial, _S.PENDING)
            state.scheduler.on_trial_add(state.view, trial)
            self._tell("on_trial_recover", trial)
            return
        state.search.on_trial_complete(trial.trial_id, error=True)
        roster.move(trial, _S.ERROR)
        state.first_failure = state.first_failure or trial
        self._tell("on_trial_error", trial)

    def _tell(self, hook: str, trial: Trial, **info: object) -> None:
        state = self._state
        state.hooks.fire(hook, iteration=state.iteration, trials=state.roster.order, trial=trial, **info)


def _stand_at_checkpoint(trial: Trial) -> None:
    """What it reported after the checkpoint it goes on from is undone: it will report that again, or not."""
    metrics = {} if trial.checkpoint is None else trial.checkpoint.metrics
    if metrics.get("training_iteration", math.inf) < trial.last_result.get("training_iteration", 0):
        trial.last_result = dict(metrics)


def _buffering(settings: Settings, policy: CheckpointPolicy) -> tuple[int, float, int]:
    """A trial that saves at its end must not be further than its last result: it sends them one by one."""
    length = 1 if policy.at_end else settings.result_buffer_length
    return (length, settings.result_buffer_age_s, policy.frequency)


def _given(restore_path: str | None) -> CheckpointRef | None:
    """A checkpoint of the user's own, for a trial that has none yet."""
    return None if restore_path is None else CheckpointRef(path=restore_path, index=-1)

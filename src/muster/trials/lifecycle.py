"""Move trials from state to state: notifies the plug-ins, submits commands, notes facts."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec.structs import replace

from muster.errors import PluginError, TuneError
from muster.trials.checkpoints import register
from muster.trials.decide import FactLog, PluginCalls, TrialDecision, counts, may_retry, plugin_failure
from muster.trials.events import (
    CheckpointSaved,
    ContinueTrial,
    EngineCommand,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialAdmitted,
    TrialCreated,
    TrialDecided,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialNoticed,
    TrialReported,
    TrialStarted,
    TrialSuspended,
)
from muster.trials.metrics import flatten
from muster.trials.model import CheckpointRef, Trial
from muster.trials.plugins import CONTINUE, NOOP, PAUSE, STOP_EARLY, STOPS, PluginRequest, stopped_argument
from muster.trials.preemption import Preemptions
from muster.trials.states import HAS_PROCESS, LiveState, TrialState
from muster.trials.template import SUSPEND_GRACE_S, Settings
from muster.trials.trial_index import TrialIndex

_S = TrialState
# In `LiveState.after_save` only:
_PAUSE_IF_SAVED = "PAUSE_IF_SAVED"  # without a checkpoint its steps would be lost
_SUSPEND = "SUSPEND"  # the trial gives its process up and waits again


class Lifecycle:
    """Carries out decisions on trials; it appends the commands for the engine to `commands`."""

    def __init__(
        self,
        index: TrialIndex,
        plugins: PluginCalls,
        facts: FactLog,
        commands: list[EngineCommand],
        *,
        settings: Settings,
        directory_for: Callable[[Trial], str],
    ) -> None:
        """`directory_for` returns the directory of a trial below the experiment's; called once per trial."""
        self._index, self._plugins, self._facts, self._commands = index, plugins, facts, commands
        self._settings, self.directory_for, self.suspend_grace_s = settings, directory_for, SUSPEND_GRACE_S
        self.is_stopping = False  # no new trials; the running ones are being ended
        self.first_failure: Trial | None = None
        self.is_same_for_all = False  # it reported nothing, and neither did any other trial
        self.preemptions = Preemptions()
        self.is_owed = False  # a trial may owe a checkpoint: its driver ended before that was saved

    def add(self, trial: Trial, at: float) -> None:
        """Add a trial that the searcher has just suggested."""
        self._index.add(trial)
        if trial.relative_logdir is None:
            trial.relative_logdir = self.directory_for(trial)
        self._facts.note(
            TrialCreated(
                trial_id=trial.trial_id,
                at=at,
                config=trial.config,
                evaluated_params=trial.evaluated_params,
                experiment_tag=trial.experiment_tag,
                trial_name=str(trial),
                relative_logdir=trial.relative_logdir or "",
                resources=trial.placement_group_factory.saved(),
                why=self._plugins.why_suggested(trial),
            )
        )
        self._plugins.notify("on_trial_add", trial)
        self.apply_plugin_requests(at)

    def start(self, trial: Trial, at: float) -> None:
        """Hand a trial to the engine, from its newest checkpoint when it has one."""
        self.note_reasons(at)
        if trial.state is _S.PAUSED:
            self._index.move(trial, _S.PENDING)
        self._index.move(trial, _S.STARTING)
        self._submit_start(trial, at)

    def start_owing(self, trial: Trial, at: float) -> None:
        """Hand a trial to the engine again whose checkpoint was due when the last driver ended.

        The trial repeats the results since its newest checkpoint, which nothing decides on again, and saves;
        then follows what was decided before. Plug-ins see a trial that is saving, as they did then.
        """
        assert trial.live.owed is not None  # ensured by the caller
        (trial.live.repeats, trial.live.after_save), trial.live.owed = trial.live.owed, None
        self._index.move(trial, _S.SAVING)
        self._submit_start(trial, at, repeats=True)

    def _submit_start(self, trial: Trial, at: float, *, repeats: bool = False) -> None:
        settings, path = self._settings, trial.policies.restore_path
        given = None if path is None else CheckpointRef(path=path, index=-1)  # the user's
        changed = trial.placement_group_factory.saved() if trial.has_new_resources else None
        self._facts.note(TrialAdmitted(trial_id=trial.trial_id, at=at, resources=changed, repeats=repeats))
        if trial.newest is not None:
            trial.live.is_restoring = True
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
                checkpoint=trial.newest or given,
                checkpoint_index=trial.checkpoint_index,
                log_to_file=trial.policies.log_to_file,
                may_reuse=settings.reuse_actors,
                time_limit_s=settings.trial_time_limit_s,
                buffering=(*settings.result_buffer, trial.policies.checkpoint_policy.frequency),
            )
        )

    def cancel_owed(self) -> None:
        """Let trials that owe a checkpoint start like others: there was no room to make it first."""
        for trial in self._index.pending.values() if self.is_owed else ():
            trial.live.owed = None
        self.is_owed = False

    def has_process_soon(self, trial: Trial) -> bool:
        """Return whether a process that the trial may reuse is about to be free: cheaper than a new one."""
        wanted, stopping = trial.placement_group_factory, self._index.stopping
        return any(
            each.live.frees_process and each.placement_group_factory == wanted for each in stopping.values()
        )

    def refuse(self, trial: Trial, at: float) -> None:
        """Fail a trial that can never start here, instead of letting it wait forever."""
        needs, has = self._index.size(trial), self._index.capacity
        message = f"trial {trial.trial_id} needs ({needs}), but there is only ({has}) in all"
        failure = TrialFailure(kind=TrialFailureKind.START, message=message)
        self._facts.note(TrialExited(trial_id=trial.trial_id, at=at, failure=failure))
        self._fail(trial, failure, at)

    def started(self, trial: Trial, event: TrialStarted) -> None:
        is_repeating = trial.live.repeats > 0
        if trial.state is not _S.STARTING and not is_repeating:
            return
        trial.location = event.location
        if trial.start_time is None:
            trial.start_time = event.at
        trial.live.is_restoring = False
        trial.num_restore_failures = 0
        trial.num_rows = _rows_at_checkpoint(trial)
        if not is_repeating:
            self._index.move(trial, _S.RUNNING)
            _rewind_to_checkpoint(trial)
        self._plugins.fire("on_trial_start", trial=trial)

    def repeated(self, trial: Trial, event: TrialReported) -> None:
        """Handle a result that was handled before a restore: it is logged again, and decided nothing on."""
        result = event.result.copy()
        result["trial_id"] = trial.trial_id
        is_last = trial.num_rows + 1 >= trial.live.repeats
        if is_last and trial.live.after_save in STOPS:
            result["done"] = True
        self._plugins.fire("on_trial_result", trial=trial, result=result)
        trial.num_rows += 1
        if event.checkpoint is not None:
            self._keep(trial, event.checkpoint)
        if not is_last:
            self._commands.append(ContinueTrial(trial_id=trial.trial_id))
            return
        trial.last_result, trial.live.repeats = result, 0
        self._submit_save(trial)

    def noticed(self, trial: Trial, event: TrialNoticed) -> None:
        """Take what is announced for the machine of a trial; one that leaves it anyway is left alone."""
        if trial.state in (_S.STARTING, _S.RUNNING, _S.SAVING):
            self.preemptions.note(trial.trial_id, event.info)

    def move_away(self, trial: Trial) -> None:
        """End a trial on a machine that will be taken; it then waits for room on another one."""
        self._leave(trial, _S.PENDING)

    def apply(self, trial: Trial, decided: TrialDecision, at: float) -> None:
        """Carry out the decision on a report, after the checkpoint that is due."""
        decision, saves, checkpoint = decided
        if self._plugins.view.reasons:
            self.note_reasons(at)
        is_plain = decision == CONTINUE and trial.state is _S.RUNNING and checkpoint is None and not saves
        is_usual = not (self._plugins.view.requests or self.preemptions.announced)
        if is_plain and is_usual:  # nearly every report
            self._commands.append(ContinueTrial(trial_id=trial.trial_id))
            return
        if checkpoint is not None:
            self._keep(trial, checkpoint)
        if trial.state is _S.SAVING and (
            decision == PAUSE or decision in STOPS
        ):  # sent together with the one that saves
            trial.live.after_save = decision
        if trial.state is not _S.RUNNING:
            return  # another command was submitted before the report arrived
        if self._must_save(trial, decided, at):
            view = self._plugins.view
            careful = decision == PAUSE and view.withdraw(trial, PluginRequest.KEEP_STEPS)
            self._save_then(trial, _PAUSE_IF_SAVED if careful else decision)
        elif decision == CONTINUE and checkpoint is not None and self.preemptions.leaves(trial, at):
            self.move_away(trial)
        else:
            self._carry_out(trial, decision, at)
        self.apply_plugin_requests(at)

    def _must_save(self, trial: Trial, decided: TrialDecision, at: float) -> bool:
        """Return whether a save comes before the decision; a save that a plug-in requested is done here."""
        view, decision = self._plugins.view, decided.decision
        is_wanted = decision == PAUSE or (decision == CONTINUE and self._saves_to_leave(trial, at))
        if decision != NOOP and view.requests:
            is_wanted |= view.withdraw(trial, PluginRequest.SAVE)
        return decided.save or (is_wanted and decided.checkpoint is None)

    def _saves_to_leave(self, trial: Trial, at: float) -> bool:
        """Return whether the trial is to be saved because its machine will be taken."""
        preemptions = self.preemptions
        if not preemptions.announced or not preemptions.leaves(trial, at):
            return False
        loss = preemptions.loss_of(trial, at)
        if loss is not None:
            self._facts.warn_once(loss)
        return preemptions.may_save(trial, at)

    def saved(self, trial: Trial, event: CheckpointSaved) -> None:
        is_made = event.checkpoint is not None
        if event.checkpoint is not None:
            trial.save_s = max(0.0, event.at - trial.last_result_time)
            self._keep(trial, event.checkpoint)
        else:
            if not event.message and trial.trial_id in self.preemptions.announced:
                self.preemptions.unsavable.add(trial.trial_id)
            self._plugins.fire("on_trial_save", trial=trial)  # a function that saves nothing, as in Ray
        decision, trial.live.after_save = trial.live.after_save or CONTINUE, None
        if decision == _PAUSE_IF_SAVED:
            decision = PAUSE if is_made else CONTINUE
        if trial.state is _S.SAVING:
            self._index.move(trial, _S.RUNNING)
            if decision == CONTINUE and is_made and self.preemptions.leaves(trial, event.at):
                self.move_away(trial)
            else:
                self._carry_out(trial, decision, event.at)
            self.apply_plugin_requests(event.at)

    def stop(self, trial: Trial, at: float, *, early: bool = False) -> None:
        """End a trial in any state and notifies scheduler, searcher and callbacks once.

        `early`: by the scheduler, so that the searcher does not take it for complete.
        """
        if trial.is_finished():
            return
        trial.live.owed = None
        self._complete(trial, has_run=trial.state in (_S.RUNNING, _S.SAVING), early=early)
        self._leave(trial, _S.TERMINATED)
        self._fail_completed(trial, at)
        self.apply_plugin_requests(at)

    def suspend(self, trial: Trial, at: float, *, saves: bool) -> None:
        """Let a trial give its process up and wait again, from its newest checkpoint; plug-ins see nothing.

        With `saves` the trial has just reported, and a checkpoint is made first.
        """
        if trial.state not in HAS_PROCESS or trial.state is _S.STOPPING:
            return
        self._facts.note(TrialSuspended(trial_id=trial.trial_id, at=at, saves=saves))
        last = self._commands[-1] if self._commands else None
        if isinstance(last, ContinueTrial) and last.trial_id == trial.trial_id:
            self._commands.pop()  # nobody has seen it
        if saves and trial.state is _S.SAVING:
            if (trial.live.after_save or CONTINUE) == CONTINUE:
                trial.live.after_save = _SUSPEND
        elif saves and trial.state is _S.RUNNING:
            self._save_then(trial, _SUSPEND)
        else:
            self._leave(trial, _S.PENDING)

    def exited(self, trial: Trial, event: TrialExited) -> None:
        """Handle the end of a process, or its release for another trial."""
        live = trial.live
        live.after_save, live.repeats, live.frees_process = None, 0, False
        if trial.state is _S.STOPPING and trial.intent is _S.PENDING:
            self._moved(trial, event)
        elif trial.state is _S.STOPPING:
            self._index.move(trial, trial.intent)
        elif event.failure is not None:
            self._fail(trial, event.failure, event.at)
        else:  # its code returned: a completion without a process to stop
            self._complete(trial)
            self._index.move(trial, _S.TERMINATED)
        self._fail_completed(trial, event.at)
        live.is_restoring = False
        self.preemptions.forget(trial.trial_id)
        self.apply_plugin_requests(event.at)

    def _moved(self, trial: Trial, event: TrialExited) -> None:
        """Queue a trial that left its machine in front of the others; one that has returned is complete."""
        if event.is_done:
            self._complete(trial)
            self._index.move(trial, _S.TERMINATED)
            return
        # Steps that no checkpoint holds are repeated: the scheduler must not take them for new ones.
        repeats = trial.num_rows > (0 if trial.newest is None else trial.newest.rows)
        if repeats:
            self._plugins.notify("on_trial_error", trial)
        trial.live.moved_at = event.at
        self._index.move(trial, _S.PENDING)
        self._index.pending.move_to_end(trial.trial_id, last=False)
        if repeats:
            self._plugins.notify("on_trial_add", trial)

    def abandon(self, trial: Trial) -> None:
        """Handle a process that ended with its driver: the trial waits again, or ends if it was stopping."""
        decision, rows = trial.live.after_save, trial.live.repeats or trial.num_rows
        trial.live = LiveState(owed=trial.live.owed, moved_at=trial.live.moved_at)
        if trial.state is _S.SAVING and decision is not None and rows > _rows_at_checkpoint(trial):
            trial.live.owed, self.is_owed = (rows, decision), True
        self.preemptions.forget(trial.trial_id)
        ends = trial.state is _S.STOPPING
        self._index.move(trial, trial.intent if ends else _S.PENDING)

    def apply_plugin_requests(self, at: float) -> None:
        """Carry out what plug-ins requested through the view during their hooks."""
        view = self._plugins.view
        if view.reasons:
            self.note_reasons(at)
        for request, trial in view.take() if view.requests else ():
            if trial.is_finished():
                continue
            if request is PluginRequest.STOP:
                self.stop(trial, at, early=True)
            elif request is PluginRequest.PAUSE:
                if trial.state is _S.SAVING:
                    trial.live.after_save = PAUSE
                elif trial.state is _S.RUNNING:
                    self._save_then(trial, PAUSE)
            elif request is PluginRequest.PAUSE_WITHOUT_SAVE:
                self._leave(trial, _S.PAUSED)
            elif request is PluginRequest.SAVE and trial.state is _S.RUNNING:
                self._save_then(trial, CONTINUE)

    def note_reasons(self, at: float) -> None:
        """Note what the plug-ins explained during their last hook, before it is carried out."""
        reasons = self._plugins.view.reasons
        for trial_id, (decision, reason) in reasons.items():
            self._facts.note(TrialDecided(trial_id=trial_id, at=at, decision=decision, reason=reason))
        reasons.clear()

    def _complete(self, trial: Trial, *, has_run: bool = True, early: bool = False) -> None:
        """Notify scheduler, searcher and callbacks of the end; one that raises will fail the trial."""
        plugins = self._plugins
        try:
            stopped = stopped_argument(plugins.search, early)
            if has_run:
                trial.last_result["done"] = True
                flat = flatten(trial.last_result)
                plugins.notify("on_trial_complete", trial, flat)
                plugins.search.on_trial_complete(trial.trial_id, result=flat, **stopped)
            else:
                plugins.notify("on_trial_remove", trial)
                plugins.search.on_trial_complete(trial.trial_id, **stopped)
            plugins.fire("on_trial_complete", trial=trial)
        except TuneError as error:
            if self._settings.failure.raise_first:
                raise
            trial.live.plugin_failure = plugin_failure(error)

    def _fail_completed(self, trial: Trial, at: float) -> None:
        """Fail a trial once it has ended, if a plug-in raised when it was notified of that."""
        failure = trial.live.plugin_failure
        if trial.state is _S.TERMINATED and failure is not None:
            trial.live.plugin_failure = None
            self.fail_again(trial, TrialExited(trial_id=trial.trial_id, at=at, failure=failure))

    def fail_again(self, trial: Trial, fact: TrialExited) -> None:
        """Fail a trial that has ended; in a replay not twice, where the plug-in has raised again."""
        if trial.state is _S.TERMINATED and fact.failure is not None:
            self._facts.note(fact)
            self._fail(trial, fact.failure, fact.at)

    def _save_then(self, trial: Trial, decision: str) -> None:
        self._index.move(trial, _S.SAVING)
        trial.live.after_save = decision
        self._submit_save(trial)

    def _submit_save(self, trial: Trial) -> None:
        """Request a checkpoint, which fails a trial that cannot make it unless only muster wants it."""
        careful = trial.live.after_save in (_PAUSE_IF_SAVED, _SUSPEND)
        is_optional = careful or trial.trial_id in self.preemptions.announced
        self._commands.append(SaveTrial(trial_id=trial.trial_id, is_optional=is_optional))

    def _carry_out(self, trial: Trial, decision: str, at: float) -> None:
        if decision == CONTINUE:
            self._commands.append(ContinueTrial(trial_id=trial.trial_id))
        elif decision in STOPS:
            self.stop(trial, at, early=decision == STOP_EARLY)
        elif decision == PAUSE:
            self._leave(trial, _S.PAUSED)
        elif decision == _SUSPEND:
            self._leave(trial, _S.PENDING)
        if self._settings.reuse_actors and trial.state is _S.STOPPING:  # its process waits for this answer
            trial.live.frees_process = True

    def _leave(self, trial: Trial, intent: TrialState) -> None:
        """Take the process of a trial away; a trial without one reaches `intent` at once."""
        if trial.state in (_S.PENDING, _S.PAUSED):
            if trial.state is not intent and intent is _S.TERMINATED:
                self._index.move(trial, intent)
            return
        trial.live.after_save, trial.live.repeats = None, 0
        trial.intent = intent
        if trial.state is not _S.STOPPING:
            self._index.move(trial, _S.STOPPING)
            suspends, settings = intent is _S.PENDING, self._settings
            keep = settings.reuse_actors and not suspends
            soon_s = min(settings.stop_grace_s, self.suspend_grace_s)
            grace_s = soon_s if suspends else settings.force_cleanup_s
            self._commands.append(StopTrial(trial_id=trial.trial_id, keep_process=keep, grace_s=grace_s))

    def _keep(self, trial: Trial, checkpoint: CheckpointRef) -> None:
        """Keep a new checkpoint; one whose score cannot be compared is kept as the newest one.

        A callback that raises loses no checkpoint. The trial has it from `on_trial_save` on, as in Ray.
        """
        try:
            self._plugins.fire("on_checkpoint", trial=trial, checkpoint=checkpoint)
        except PluginError as error:
            self._facts.warn(f"trial {trial.trial_id}: {error}")
        try:
            dropped = register(trial, checkpoint)
        except TypeError as error:
            self._facts.warn(f"trial {trial.trial_id}: {error}; its checkpoints are kept by age")
            trial.checkpoint_policy = replace(trial.checkpoint_policy, score_attribute=None)
            dropped = register(trial, checkpoint)
        self._facts.schedule_deletion(dropped)
        self._plugins.fire("on_trial_save", trial=trial)

    def _fail(self, trial: Trial, failure: TrialFailure, at: float) -> None:
        plugins = self._plugins
        failure = self.preemptions.explained(trial, failure, at)
        restoring = trial.live.is_restoring
        if counts(trial, failure, self._settings.failure, restoring):
            trial.num_failures += 1
        elif restoring:
            trial.num_restore_failures += 1
        plugins.fire("on_trial_failure", trial=trial, failure=failure)
        plugins.notify("on_trial_error", trial)
        if may_retry(trial, failure) and not self.is_stopping:
            if trial.state is not _S.PENDING:
                self._index.move(trial, _S.PENDING)
            plugins.notify("on_trial_add", trial)
            plugins.fire("on_trial_recover", trial=trial)
            return
        plugins.search.on_trial_complete(trial.trial_id, error=True)
        self._index.move(trial, _S.ERROR)
        if failure.kind is TrialFailureKind.NEVER_REPORTED and self.first_failure is None:
            self.is_same_for_all = not any(each.num_rows for each in self._index.order)
        self.first_failure = self.first_failure or trial
        plugins.fire("on_trial_error", trial=trial)


def _rewind_to_checkpoint(trial: Trial) -> None:
    """Drop the results reported after the checkpoint the trial resumes from: they may be reported again."""
    metrics = {} if trial.newest is None else trial.newest.metrics
    if metrics.get("training_iteration", math.inf) < trial.last_result.get("training_iteration", 0):
        trial.last_result = dict(metrics)


def _rows_at_checkpoint(trial: Trial) -> int:
    return 0 if trial.newest is None else trial.newest.rows

"""Call the plug-ins, and decides on one result or failure: stop or continue, save, try again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from traceback import format_exception
from typing import Any, NamedTuple

from muster.base.framing import pickled
from muster.base.untrusted import message_text
from muster.errors import MusterError, TuneError, as_plugin_error
from muster.trials.events import CheckpointToDelete, Fact, TrialFailure, TrialFailureKind, TrialReported
from muster.trials.metrics import DEFAULT_METRIC, flatten_result, in_words, missing_metric, number_of
from muster.trials.model import CheckpointRef, FailurePolicy, Trial
from muster.trials.plugins import (
    CONTINUE,
    ITERATION,
    NOOP,
    PAUSE,
    PAUSED,
    STOP,
    STOP_EARLY,
    STOPPED,
    STOPS,
    ControllerView,
    Plugins,
)
from muster.trials.template import Settings
from muster.trials.trial_index import TrialIndex

_DECISIONS = frozenset({CONTINUE, PAUSE, STOP, NOOP})
_NEEDS_REASON = frozenset({STOP, PAUSE})


class PluginCalls:
    """A PluginCalls object calls the plug-ins of one experiment; its errors name the plug-in that failed."""

    def __init__(self, plugins: Plugins, index: TrialIndex) -> None:
        self.search, self.scheduler = plugins.search, plugins.scheduler
        self.stopper = plugins.stopper
        self.hooks = plugins.hooks  # replaced while facts are handled again after a crash
        self.view = ControllerView(index, plugins.search)
        self.iteration = 0  # steps of the controller so far
        self.trials = index.order
        if hasattr(self.search, "set_rungs"):
            levels = getattr(self.scheduler, "rung_levels", None)
            self.search.set_rungs(*((None, ITERATION) if levels is None else levels()))

    def fire(self, hook: str, **info: Any) -> None:  # noqa: ANN401 - whatever the hook takes
        """Call one hook of every callback."""
        self.hooks.fire(hook, iteration=self.iteration, trials=self.trials, **info)

    def why_suggested(self, trial: Trial) -> str:
        """Return why the searcher has just suggested this trial, in words; "" for one that has none."""
        explain = getattr(self.search, "why", None)
        return "" if explain is None else str(explain(trial.trial_id))

    def notify(self, hook: str, trial: Trial, *result: dict[str, Any]) -> Any:  # noqa: ANN401
        """Call one hook of the scheduler about a trial, and returns its answer."""
        return _called(hook, self.scheduler, trial, self.view, trial, *result)

    def decision(self, trial: Trial, flat: dict[str, Any]) -> str:
        """Return the decision of the scheduler on a result."""
        decision: str = _called("on_trial_result", self.scheduler, trial, self.view, trial, flat)
        if decision not in _DECISIONS:
            raise TuneError(
                (
                    f"{type(self.scheduler).__name__}.on_trial_result returned {decision!r} for trial "
                    f"{trial.trial_id}"
                ),
                fix=f"it must be one of {', '.join(sorted(_DECISIONS))}",
            )
        return decision

    def stopper_stops(self, trial: Trial, result: dict[str, Any]) -> bool:
        """Return whether the stopper ends the trial that reported this result."""
        return bool(_called("__call__", self.stopper, trial, trial.trial_id, result))

    def stops_all(self) -> bool:
        return self.stopper is not None and bool(_called("stop_all", self.stopper, None))

    def why_all(self) -> str:
        """Return why the stopper ends the experiment, in words."""
        return _stopper_words(self.stopper)

    def explain_stop(self, trial: Trial, flat: Mapping[str, Any], *, by_stopper: bool) -> None:
        """Record why a result ends its trial before the scheduler is asked."""
        if by_stopper:
            reason = _stopper_words(self.stopper, trial.trial_id)
        elif flat.get("done"):
            reason = "its result said done"
        else:
            found = (each for each in trial.stopping_criterion.items() if reaches(each, flat))
            key, limit = next(found, ("a criterion", None))
            reason = f"{key} = {in_words(flat.get(key))} reached the limit {in_words(limit)}"
        self.view.explain(trial.trial_id, STOPPED, reason)

    def explain_decision(self, trial: Trial, decision: str) -> None:
        """Record that the scheduler stopped or paused a trial, where it does not say why."""
        if trial.trial_id not in self.view.reasons:
            what, name = (STOPPED if decision == STOP else PAUSED), type(self.scheduler).__name__
            self.view.explain(trial.trial_id, what, f"{name} returned {decision} and gave no reason")

    def choose(self) -> Trial | None:
        """Return the trial that the scheduler starts next."""
        trial: Any = _called("choose_trial_to_run", self.scheduler, None, self.view)
        if trial is None or isinstance(trial, Trial):
            return trial
        name = type(self.scheduler).__name__
        raise TuneError(
            f"{name}.choose_trial_to_run returned {trial!r}", fix="return one of the trials, or None"
        )


def _called(hook: str, plugin: object, trial: Trial | None, *arguments: object) -> Any:  # noqa: ANN401
    """Call a hook; an error names the plug-in that raised it, and is of the same type.

    The plug-in is not the first argument: `SlowCalls` takes that for the `self` of a hook.
    """
    try:
        return getattr(plugin, hook)(*arguments)
    except MusterError:
        raise
    except Exception as error:
        about = "" if trial is None else f" for trial {trial.trial_id}"
        what = f"{type(plugin).__name__}.{hook} raised {type(error).__name__}{about}: {message_text(error)}"
        raise as_plugin_error(error, f"{what}; fix it and resume") from error


def plugin_failure(error: TuneError) -> TrialFailure:
    """Return the failure of a trial whose end a plug-in could not be notified of."""
    message = str(error)
    trace = "".join(format_exception(error.__cause__ or error)) + message
    return TrialFailure(
        kind=TrialFailureKind.PLUGIN, message=message, traceback=trace, exception=pickled(TuneError(message))
    )


def _stopper_words(stopper: object, *trial_id: str) -> str:
    """Return what a stopper says of its decision; its name for one that was written for Ray."""
    words = getattr(stopper, "why", None)
    return str(words(*trial_id)) if callable(words) else f"{type(stopper).__name__} returned True"


def reaches(criterion: tuple[str, Any], flat: Mapping[str, Any]) -> bool:
    """Return whether a result has the key and reaches its threshold."""
    key, threshold = criterion
    return key in flat and bool(flat[key] >= threshold)


def reached_criterion(trial: Trial, flat: Mapping[str, Any]) -> bool:
    """Return whether the result is `done`, or reaches the threshold of a criterion whose key it has.

    Raises TypeError for a threshold or a value that cannot be compared: the message names the key.
    """
    if flat.get("done"):
        return True
    if not trial.stopping_criterion:
        return False
    for key, threshold in trial.stopping_criterion.items():
        if key not in flat:
            continue
        value = flat[key]
        if isinstance(threshold, dict) or value is None or isinstance(value, (str, dict)):
            raise as_plugin_error(
                TypeError(),
                f"stop criterion {key!r}: {value!r} cannot be compared with {threshold!r}. "
                f"Nested metrics are written flat, e.g. {{'a/b': 1}}.",
            )
        if value >= threshold:
            return True
    return False


class TrialDecision(NamedTuple):
    """What happens to the trial that reported."""

    decision: str
    save: bool  # before the decision is carried out
    checkpoint: CheckpointRef | None  # made by the report itself


_ONLY_CONTINUE = TrialDecision(CONTINUE, save=False, checkpoint=None)  # nearly every decision


def decide(plugins: PluginCalls, settings: Settings, trial: Trial, event: TrialReported) -> TrialDecision:
    """Decide on one result, in Ray's order: the searcher sees the last result only at completion."""
    result = event.result.copy()  # it is a fact: what we and the callbacks add does not belong to it
    result["trial_id"] = trial.trial_id
    flat, is_light, trial.live.config_leaves = flatten_result(result, trial.live.config_leaves)
    if settings.strict_metrics:
        _check_metrics(plugins, settings, trial, flat)
    stops = plugins.stopper is not None and plugins.stopper_stops(trial, result)
    if stops or reached_criterion(trial, flat):
        decision = STOP
        plugins.explain_stop(trial, flat, by_stopper=stops)
    else:
        decision = plugins.decision(trial, flat)
        if decision in _NEEDS_REASON:
            plugins.explain_decision(trial, decision)
            decision = STOP_EARLY if decision == STOP else decision
    if decision in STOPS:
        result["done"] = True
    else:
        plugins.search.on_trial_result(trial.trial_id, flat)
    hooks = plugins.hooks  # directly, as this happens for every result
    hooks.fire(
        "on_trial_result", iteration=plugins.iteration, trials=plugins.trials, trial=trial, result=result
    )
    trial.note_result(result, flat, event.at, is_light=is_light)
    due = decision != PAUSE and _save_is_due(trial, result)
    if decision == CONTINUE and not due and event.checkpoint is None:
        return _ONLY_CONTINUE
    return TrialDecision(decision, due and event.checkpoint is None, event.checkpoint)


def _check_metrics(plugins: PluginCalls, settings: Settings, trial: Trial, flat: dict[str, Any]) -> None:
    # Runs for every result, and nearly always nothing is wrong.
    scheduler, search = plugins.scheduler, plugins.search
    metric, theirs, its = settings.metric, scheduler.metric, search.metric
    if (
        _is_present(metric, flat)
        and (theirs is metric or _is_present(theirs, flat))
        and (its is metric or _is_present(its, flat))
    ):
        return
    wanted = (
        ("experiment (TuneConfig.metric)", settings.metric),
        (f"scheduler {type(scheduler).__name__}", scheduler.metric),
        (f"searcher {type(getattr(search, 'searcher', search)).__name__}", search.metric),
    )
    fault = missing_metric(flat, wanted, is_first=not trial.has_reported_at_least_once)
    if fault:
        raise TuneError(f"trial {trial.trial_id}: {fault}")


def _is_present(name: object, flat: dict[str, Any]) -> bool:
    if name is None or name == DEFAULT_METRIC:
        return True
    value = flat.get(name) if type(name) is str else None
    return type(value) is float or number_of(value) is not None


def _save_is_due(trial: Trial, result: dict[str, Any]) -> bool:
    policy = trial.policies.checkpoint_policy
    if policy.at_end and result.get("done"):
        return True
    if policy.frequency > 0 and result.get("training_iteration", 0) % policy.frequency == 0:
        return True
    return bool(result.get("should_checkpoint"))


# The trial did nothing wrong: the machine was taken away. Counted only when the user asks for it.
_NOT_ITS_FAULT = frozenset({TrialFailureKind.PREEMPTED})
# Trying again would end the same way.
_FINAL = frozenset(
    {
        TrialFailureKind.NEVER_REPORTED,
        TrialFailureKind.RESET_REFUSED,
        TrialFailureKind.UNPICKLABLE,
        TrialFailureKind.START,
    }
)


def counts(trial: Trial, failure: TrialFailure, policy: FailurePolicy, was_restoring: bool) -> bool:
    """Return whether the failure uses up a retry of the trial; restore failures have a separate budget."""
    if was_restoring and trial.num_restore_failures < policy.restore_retries:
        return False
    return failure.kind not in _NOT_ITS_FAULT or policy.count_preemption


def may_retry(trial: Trial, failure: TrialFailure) -> bool:
    """Return whether the trial may run again; the caller has counted this failure in `num_failures`."""
    if failure.kind in _FINAL:
        return False
    most = trial.policies.max_failures
    return most < 0 or trial.num_failures <= most


class FactLog:
    """Holds facts, warnings and superfluous checkpoints until the controller handles them."""

    def __init__(self) -> None:
        self.count = 0  # facts ever noted
        self.warnings: list[str] = []  # the controller logs them and clears the list
        # Checkpoints whose directories may be deleted once the facts noted before them are durable.
        self.checkpoints_to_delete: list[CheckpointToDelete] = []
        self.repeats = False  # facts are handled again; warnings are not logged again on replay
        self._facts: list[Fact] = []

    def note(self, fact: Fact) -> None:
        self._facts.append(fact)
        self.count += 1

    def take(self) -> Sequence[Fact]:
        """Return the facts noted since the last call, in order; the caller makes them durable."""
        facts, self._facts = self._facts, []
        return facts

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def warn_once(self, text: str) -> None:
        """Warn of what follows from a fact; not again when a restore handles the fact again."""
        if not self.repeats:
            self.warnings.append(text)

    def schedule_deletion(self, checkpoints: Sequence[CheckpointRef]) -> None:
        """Mark checkpoints as superfluous; their directories stay until a crash cannot bring them back."""
        self.checkpoints_to_delete.extend(
            CheckpointToDelete(ref=ref, after=self.count) for ref in checkpoints
        )

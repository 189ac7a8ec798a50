"""One result, judged: stop criteria, scheduler, searcher, callbacks, and whether a checkpoint is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.errors import MusterError, TuneError
from muster.trials.events import TrialReported
from muster.trials.model import DEFAULT_METRIC, CheckpointRef, Trial
from muster.trials.plugins import CONTINUE, NOOP, PAUSE, STOP
from muster.trials.results import flatten, missing_metric, note_result

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState


def reached_criterion(trial: Trial, flat: Mapping[str, Any]) -> bool:
    """`done`, or any criterion whose key was reported and whose threshold is reached.

    Raises TypeError for a threshold or a value that cannot be compared: the message names the key.
    """
    if flat.get("done"):
        return True
    for key, threshold in trial.stopping_criterion.items():
        if key not in flat:
            continue
        value = flat[key]
        if isinstance(threshold, dict) or value is None or isinstance(value, (str, dict)):
            raise TypeError(
                f"stop criterion {key!r}: {value!r} cannot be compared with {threshold!r}. "
                f"Nested metrics are written flat, e.g. {{'a/b': 1}}."
            )
        if value >= threshold:
            return True
    return False


def missing_criteria(trial: Trial, flat: Mapping[str, Any]) -> list[str]:
    """Criteria that this result says nothing about: worth one warning."""
    return [key for key in trial.stopping_criterion if key not in flat]


_DECISIONS = frozenset({CONTINUE, PAUSE, STOP, NOOP})


class TrialDecision(NamedTuple):
    """What is to happen with the trial that reported."""

    decision: str
    save: bool  # before the decision is carried out
    checkpoint: CheckpointRef | None  # made by the report itself


def decide(state: ExperimentState, trial: Trial, event: TrialReported) -> TrialDecision:
    """The order of the steps is Ray's: the searcher never sees the last result here, only at completion."""
    result = dict(event.result)  # the event is a fact: what we and the callbacks add does not belong to it
    result["trial_id"] = trial.trial_id
    flat = flatten(result)
    _check_metrics(state, trial, flat)
    decision = _decide(state, trial, result, flat)
    if decision == STOP:
        result["done"] = True
    else:
        state.search.on_trial_result(trial.trial_id, flat)
    state.hooks.fire(
        "on_trial_result", iteration=state.iteration, trials=state.roster.order, trial=trial, result=result
    )
    note_result(trial, result, flat, event.at)
    due = decision != PAUSE and _save_is_due(trial, result)
    return TrialDecision(decision, due and event.checkpoint is None, event.checkpoint)


def _decide(state: ExperimentState, trial: Trial, result: dict[str, Any], flat: dict[str, Any]) -> str:
    if _stopper_says(state, trial, result) or reached_criterion(trial, flat):
        return STOP
    try:
        decision = state.scheduler.on_trial_result(state.view, trial, flat)
    except MusterError:
        raise
    except Exception as error:
        raise _raised(state.scheduler, "on_trial_result", trial, error) from error
    if decision not in _DECISIONS:
        name = type(state.scheduler).__name__
        raise TuneError(
            f"{name}.on_trial_result answered {decision!r} for trial {trial.trial_id}; "
            f"it must be one of {', '.join(sorted(_DECISIONS))}"
        )
    return decision


def _stopper_says(state: ExperimentState, trial: Trial, result: dict[str, Any]) -> bool:
    if state.stopper is None:
        return False
    try:
        return bool(state.stopper(trial.trial_id, result))
    except MusterError:
        raise
    except Exception as error:
        raise _raised(state.stopper, "__call__", trial, error) from error


def _raised(plugin: object, hook: str, trial: Trial, error: Exception) -> TuneError:
    """Who made the slip, for people who wrote a plug-in of their own; the traceback is the cause's."""
    return TuneError(
        f"{type(plugin).__name__}.{hook} raised {type(error).__name__} on a result of trial "
        f"{trial.trial_id}: {error}. The experiment ends here; fix it and resume"
    )


def _check_metrics(state: ExperimentState, trial: Trial, flat: dict[str, Any]) -> None:
    # Runs for every result, and nearly always nothing is wrong.
    names = (state.settings.metric, state.scheduler.metric, state.search.metric)
    if not state.settings.strict_metrics or all(_is_there(name, flat) for name in names):
        return
    wanted = (
        ("experiment (TuneConfig.metric)", state.settings.metric),
        (f"scheduler {type(state.scheduler).__name__}", state.scheduler.metric),
        (f"searcher {type(getattr(state.search, 'searcher', state.search)).__name__}", state.search.metric),
    )
    fault = missing_metric(flat, wanted)
    if fault:
        raise TuneError(f"trial {trial.trial_id}: {fault}")


def _is_there(name: object, flat: dict[str, Any]) -> bool:
    return name is None or (type(name) is str and (name in flat or name == DEFAULT_METRIC))


def _save_is_due(trial: Trial, result: dict[str, Any]) -> bool:
    policy = trial.checkpoint_policy
    if result.get("done") and policy.at_end:
        return True
    iteration = result.get("training_iteration", 0)
    if policy.frequency > 0 and iteration % policy.frequency == 0:
        return True
    return bool(result.get("should_checkpoint"))

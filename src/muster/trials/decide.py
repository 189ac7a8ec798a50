"""Decides on one result: stop criteria, scheduler, searcher, callbacks, and whether a checkpoint is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from muster.errors import TuneError
from muster.trials.events import TrialReported
from muster.trials.model import DEFAULT_METRIC, CheckpointRef, Trial
from muster.trials.plugins import PAUSE, STOP, PluginCalls
from muster.trials.results import flatten, missing_metric, note_result
from muster.trials.template import Settings


def reached_criterion(trial: Trial, flat: Mapping[str, Any]) -> bool:
    """Returns whether the result is `done`, or reaches the threshold of a criterion whose key it has.

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


class TrialDecision(NamedTuple):
    """A TrialDecision says what happens to the trial that reported."""

    decision: str
    save: bool  # before the decision is carried out
    checkpoint: CheckpointRef | None  # made by the report itself


def decide(plugins: PluginCalls, settings: Settings, trial: Trial, event: TrialReported) -> TrialDecision:
    """Decides on one result, in Ray's order: the searcher sees the last result only at completion."""
    result = dict(event.result)  # the event is a fact: what we and the callbacks add does not belong to it
    result["trial_id"] = trial.trial_id
    flat = flatten(result)
    _check_metrics(plugins, settings, trial, flat)
    if plugins.stopper_stops(trial, result) or reached_criterion(trial, flat):
        decision = STOP
    else:
        decision = plugins.decision(trial, flat)
    if decision == STOP:
        result["done"] = True
    else:
        plugins.search.on_trial_result(trial.trial_id, flat)
    plugins.fire("on_trial_result", trial=trial, result=result)
    note_result(trial, result, flat, event.at)
    due = decision != PAUSE and _save_is_due(trial, result)
    return TrialDecision(decision, due and event.checkpoint is None, event.checkpoint)


def _check_metrics(plugins: PluginCalls, settings: Settings, trial: Trial, flat: dict[str, Any]) -> None:
    # Runs for every result, and nearly always nothing is wrong.
    scheduler, search = plugins.scheduler, plugins.search
    names = (settings.metric, scheduler.metric, search.metric)
    if not settings.strict_metrics or all(_is_present(name, flat) for name in names):
        return
    wanted = (
        ("experiment (TuneConfig.metric)", settings.metric),
        (f"scheduler {type(scheduler).__name__}", scheduler.metric),
        (f"searcher {type(getattr(search, 'searcher', search)).__name__}", search.metric),
    )
    fault = missing_metric(flat, wanted)
    if fault:
        raise TuneError(f"trial {trial.trial_id}: {fault}")


def _is_present(name: object, flat: dict[str, Any]) -> bool:
    return name is None or (type(name) is str and (name in flat or name == DEFAULT_METRIC))


def _save_is_due(trial: Trial, result: dict[str, Any]) -> bool:
    policy = trial.checkpoint_policy
    if result.get("done") and policy.at_end:
        return True
    iteration = result.get("training_iteration", 0)
    if policy.frequency > 0 and iteration % policy.frequency == 0:
        return True
    return bool(result.get("should_checkpoint"))

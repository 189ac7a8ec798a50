"""Which members of HyperBand's brackets could start now, and whether any of them runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from muster.trials.model import Trial
from muster.trials.states import TrialState
from muster.tune.schedulers.hyperband_bracket import Bracket
from muster.tune.schedulers.promotion_rung import is_resting

Find = Callable[[str], Trial | None]
_UNDER_WAY = (TrialState.STARTING, TrialState.RUNNING)  # one that saves may pause after it, and be started


def is_pending(trial: Trial) -> bool:
    """Waits for its first start, or for one after a failure."""
    return trial.status == "PENDING" and getattr(trial, "state", None) is not TrialState.STARTING


def first_ready(find: Find, brackets: Iterable[Bracket]) -> Trial | None:
    """The first that is new or was let on, and has no process. Those that run are not looked at again."""
    for bracket in brackets:
        found, under_way = None, []
        for trial_id in bracket.unstarted:
            trial = find(trial_id)
            if trial is None:
                continue
            if is_pending(trial) or is_resting(trial):
                found = trial
                break
            if getattr(trial, "state", None) in _UNDER_WAY:
                under_way.append(trial_id)
        for trial_id in under_way:
            del bracket.unstarted[trial_id]
        if found is not None:
            return found
    return None


def first_resting(find: Find, trial_ids: Iterable[str]) -> Trial | None:
    found = (find(trial_id) for trial_id in trial_ids)
    return next((trial for trial in found if trial is not None and is_resting(trial)), None)


def on_their_way(bracket: Bracket) -> Iterable[str]:
    """Members that were not told to pause."""
    if len(bracket.parked) == len(bracket.members):
        return ()
    return (one for one in bracket.members if one not in bracket.parked)


def somebody_runs(find: Find, brackets: Collection[Bracket]) -> bool:
    """Stops at the first; those told to pause come last, the latest of them first: it may still save."""
    for bracket in brackets:
        if any(_is_active(find, one) for one in on_their_way(bracket)):
            return True
    return any(_is_active(find, one) for bracket in brackets for one in reversed(bracket.parked))


def _is_active(find: Find, trial_id: str) -> bool:
    trial = find(trial_id)
    return trial is not None and not is_resting(trial)

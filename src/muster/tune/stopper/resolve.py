"""What `RunConfig(stop=...)` and `time_budget_s` mean: criteria on each trial, and one stopper."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from muster.base.clock import Clock
from muster.tune.stopper.function_stopper import FunctionStopper
from muster.tune.stopper.stopper import CombinedStopper, Stopper
from muster.tune.stopper.timeout import TimeoutStopper


class StopRules(NamedTuple):
    criteria: dict[str, Any]
    stopper: Stopper | None


def resolve_stop(
    stop: object, time_budget_s: float | timedelta | None = None, *, clock: Clock | None = None
) -> StopRules:
    """Nothing, criteria, a stopper, a function, or a list of stoppers; ValueError says what else it was."""
    criteria = dict(stop) if isinstance(stop, Mapping) else {}
    stopper = None if not stop or isinstance(stop, Mapping) else _as_stopper(stop)
    if time_budget_s:
        timeout = TimeoutStopper(time_budget_s, clock=clock)
        stopper = timeout if stopper is None else CombinedStopper(stopper, timeout)
    return StopRules(criteria, stopper)


def _as_stopper(stop: object) -> Stopper:
    if isinstance(stop, list):
        wrong = [one for one in stop if not isinstance(one, Stopper)]
        if wrong:
            raise ValueError(f"stop: a list may hold only Stoppers, but it holds {wrong[0]!r}")
        return CombinedStopper(*stop)
    if isinstance(stop, Stopper):
        return stop
    if callable(stop) and FunctionStopper.is_valid_function(stop):
        return FunctionStopper(stop)
    raise ValueError(
        f"stop is {stop!r}; it must be a dict of criteria, a Stopper, a list of them, "
        "or a function (trial_id, result) -> bool"
    )

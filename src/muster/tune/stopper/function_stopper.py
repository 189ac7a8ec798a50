"""Use a plain function `(trial_id, result) -> bool` as a stopper."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from muster.base.clock import Clock
from muster.base.untrusted import ray_object_hint
from muster.errors import TuneError
from muster.tune.stopper.stopper import CombinedStopper, Stopper
from muster.tune.stopper.timeout import TimeoutStopper


class FunctionStopper(Stopper):
    """Ends a trial when its function returns True; the function itself is not saved."""

    _state_kind = "function"

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        if not self.is_valid_function(function):
            raise ValueError(
                f"FunctionStopper: {function!r} is not a function (trial_id, result) -> bool; "
                "a Stopper is passed as it is"
            )
        _check_arity(function)
        self._fn = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self._fn(trial_id, result)

    def why(self, trial_id: str = "") -> str:
        return f"stop={getattr(self._fn, '__name__', self._fn)} returned True"

    def stop_all(self) -> bool:
        return False

    @classmethod
    def is_valid_function(cls, fn: object) -> bool:
        """Return whether this is a callable that is not a stopper; an imitation of a stopper is an error."""
        is_function = callable(fn) and not isinstance(fn, Stopper)
        if is_function and hasattr(fn, "stop_all"):
            imitates = f"{fn!r} has stop_all but is not a Stopper: let its class extend muster.tune.Stopper"
            if isinstance(fn, type) and issubclass(fn, Stopper):
                imitates = f"{fn.__name__} is a class; pass an object of it, {fn.__name__}(...)"
            raise ValueError(f"stop: {ray_object_hint(fn) or imitates}")
        return is_function


def _check_arity(function: Callable[..., Any]) -> None:
    """Raise a TuneError now, rather than in the middle of an experiment, when the arguments do not fit."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin without a signature
    try:
        signature.bind("trial_id", {})
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TuneError(
            f"stop={name}{signature} cannot be called with (trial_id, result): {error}. Give it these two"
        ) from None


class StopRules(NamedTuple):
    criteria: dict[str, Any]
    stopper: Stopper | None


def resolve_stop(
    stop: object, time_budget_s: float | timedelta | None = None, *, clock: Clock | None = None
) -> StopRules:
    """Return a stopper for None, criteria, a stopper, a function or a list of stoppers; else ValueError."""
    criteria = dict(stop) if isinstance(stop, Mapping) else {}
    for name, threshold in criteria.items():
        if isinstance(threshold, str) or threshold is None:
            raise ValueError(f"stop={{{name!r}: {threshold!r}}}: the threshold must be a number")
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

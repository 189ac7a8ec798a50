"""FunctionStopper: a plain function `(trial_id, result) -> bool` as a stopper."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from muster.errors import TuneError
from muster.tune.execution.plugin_state import Plain
from muster.tune.stopper.stopper import Stopper


class FunctionStopper(Stopper):
    """Ends a trial when the function says so. The function itself is not saved: it comes with the script."""

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

    def stop_all(self) -> bool:
        return False

    @classmethod
    def is_valid_function(cls, fn: object) -> bool:
        """A callable that is no stopper. One that looks like a stopper without being one is an error."""
        is_function = callable(fn) and not isinstance(fn, Stopper)
        if is_function and hasattr(fn, "stop_all"):
            raise ValueError(
                f"stop: {fn!r} has stop_all but is no Stopper: let its class extend muster.tune.Stopper"
            )
        return is_function

    def _to_plain(self) -> Plain:
        return {}

    def _from_plain(self, state: Plain) -> None: ...


def _check_arity(function: Callable[..., Any]) -> None:
    """TuneError now, rather than in the middle of an experiment."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin that does not tell
    try:
        signature.bind("trial_id", {})
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TuneError(
            f"stop={name}{signature} cannot be called with (trial_id, result): {error}. Give it these two"
        ) from None

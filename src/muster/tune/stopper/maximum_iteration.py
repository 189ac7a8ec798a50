"""End trials after a number of results."""

from __future__ import annotations

from typing import Any

from muster.base.text import counted
from muster.tune.stopper.stopper import Stopper


class MaximumIterationStopper(Stopper):
    """Stops a trial at its `max_iter`-th result; counts results itself."""

    _state_kind = "maximum_iteration"
    _plain_attributes = ("_seen",)

    def __init__(self, max_iter: int) -> None:
        self._max_iter = max_iter
        self._seen: dict[str, int] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._seen[trial_id] = self._seen.get(trial_id, 0) + 1
        return self._seen[trial_id] >= self._max_iter

    def why(self, trial_id: str = "") -> str:
        return f"it had {counted(self._seen.get(trial_id, 0), 'result')}, and max_iter is {self._max_iter}"

    def stop_all(self) -> bool:
        return False

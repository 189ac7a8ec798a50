"""End trials whose metric no longer changes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import Any

from muster.tune.plugin_state import Plain
from muster.tune.stopper.stopper import Stopper, metric_of


def spread(values: Collection[float]) -> float:
    if not all(map(math.isfinite, values)):
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


class TrialPlateauStopper(Stopper):
    """Stops a trial whose last `num_results` values differ by less than `std`.

    A plateau counts from the `grace_period`-th result on and, with `metric_threshold`, only at a value of at
    most the threshold for mode "min", at least the threshold for "max".
    """

    _state_kind = "trial_plateau"

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        if metric_threshold is not None and mode not in ("min", "max"):
            raise ValueError(
                f"TrialPlateauStopper: metric_threshold needs mode='min' or 'max', but mode is {mode!r}"
            )
        self._metric, self._std, self._num_results = metric, std, num_results
        self._grace_period, self._threshold, self._mode = grace_period, metric_threshold, mode
        self._seen: dict[str, int] = {}
        self._last: dict[str, deque[float]] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = metric_of(self, self._metric, result)
        self._seen[trial_id] = seen = self._seen.get(trial_id, 0) + 1
        last = self._last.get(trial_id)
        if last is None:
            last = self._last[trial_id] = deque(maxlen=self._num_results)
        last.append(value)
        if seen < self._grace_period or len(last) < self._num_results:
            return False
        limit = self._threshold
        if limit is not None and (value > limit if self._mode == "min" else value < limit):
            return False
        return spread(last) < self._std

    def why(self, trial_id: str = "") -> str:
        return f"the last {self._num_results} values of {self._metric} spread by less than {self._std:g}"

    def stop_all(self) -> bool:
        return False

    def _to_plain(self) -> Plain:
        last = {trial_id: list(values) for trial_id, values in self._last.items()}
        return {"metric": self._metric, "seen": self._seen, "last": last}

    def _from_plain(self, state: Plain) -> None:
        if state["metric"] == self._metric:  # values of another metric have no meaning
            self._seen = dict(state["seen"])
            self._last = {key: deque(values, self._num_results) for key, values in state["last"].items()}

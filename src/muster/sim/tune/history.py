"""Records when a simulated experiment found what, and the cost until then."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from muster.trials.model import Trial


class Found(Struct, frozen=True, kw_only=True):
    """A Found is a result that was better than all before it."""

    at_s: float  # virtual seconds since the experiment began
    worker_s: float  # spent by all workers until then
    value: float
    trial_id: str
    iteration: int
    config: Mapping[str, Any]


class ImprovementHistory:
    """An ImprovementHistory keeps the improvements in order; NaN and infinity improve nothing."""

    def __init__(
        self, metric: str, mode: str, *, elapsed_s: Callable[[], float], worker_s: Callable[[], float]
    ) -> None:
        self.metric, self.mode = metric, mode
        self._sign = 1.0 if mode == "max" else -1.0
        self._elapsed_s, self._worker_s = elapsed_s, worker_s
        self._best = -math.inf
        self.found: list[Found] = []
        self.results = 0
        self.failures = 0

    @property
    def best(self) -> Found | None:
        return self.found[-1] if self.found else None

    def fire(
        self,
        hook: str,
        *,
        iteration: int,
        trials: Sequence[Trial],
        **info: Any,  # noqa: ANN401 - the arguments of callbacks
    ) -> None:
        """Implements the hooks of trials.plugins."""
        if hook == "on_trial_result":
            self.results += 1
            self._note(info["trial"], info["result"])
        elif hook == "on_trial_failure":
            self.failures += 1

    def _note(self, trial: Trial, result: Mapping[str, Any]) -> None:
        value = result.get(self.metric)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        if self._sign * value > self._best:
            self._best = self._sign * value
            self.found.append(
                Found(
                    at_s=self._elapsed_s(),
                    worker_s=self._worker_s(),
                    value=float(value),
                    trial_id=trial.trial_id,
                    iteration=int(result["training_iteration"]),
                    config=dict(trial.config),
                )
            )


def best_at(found: Sequence[Found], moment: float, *, by: str = "at_s") -> float:
    """Returns the best value known at `moment` (of `at_s` or `worker_s`); NaN before the first result."""
    known = math.nan
    for one in found:
        if getattr(one, by) > moment:
            break
        known = one.value
    return known

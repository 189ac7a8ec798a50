"""MetricScheduler: what every scheduler that compares trials by a metric has in common."""

from __future__ import annotations

from typing import Any

from muster.errors import TuneError
from muster.trials.controller_view import ControllerView
from muster.trials.model import DEFAULT_METRIC, Trial
from muster.tune.schedulers.trial_scheduler import FIFOScheduler


class MetricScheduler(FIFOScheduler):
    """Knows metric, mode and time; a score is the metric with its sign turned so that larger is better."""

    def __init__(self, *, time_attr: str, metric: str | None, mode: str | None) -> None:
        if mode not in (None, "min", "max"):
            raise ValueError(f"{type(self).__name__}: mode is {mode!r}; it must be 'min' or 'max'")
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:  # noqa: ANN401
        """Take over the experiment's metric and mode; False when one of them was set twice."""
        del spec
        if (self._metric and metric) or (self._mode and mode):
            return False
        if mode not in (None, "min", "max"):
            raise ValueError(f"{type(self).__name__}: mode is {mode!r}; it must be 'min' or 'max'")
        self._metric = metric or self._metric
        self._mode = mode or self._mode
        if self._mode and self._metric is None:
            self._metric = DEFAULT_METRIC
        return True

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        if not self._metric or not self._mode:
            raise ValueError(
                f"{type(self).__name__} compares trials and needs a metric (now {self._metric!r}) and a mode "
                f"(now {self._mode!r}): pass metric=... and mode='min' or 'max' to it or to TuneConfig"
            )

    def _time_and_score(self, trial: Trial, result: dict[str, Any]) -> tuple[float, float] | None:
        """None when the result does not say both."""
        if self._time_attr not in result or self._metric not in result:
            return None
        time = self._number(trial, self._time_attr, result[self._time_attr])
        value = self._number(trial, self._metric, result[self._metric])
        return time, value if self._mode == "max" else -value

    def _number(self, trial: Trial, key: str, value: Any) -> float:  # noqa: ANN401 - whatever was reported
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TuneError(
                f"{type(self).__name__}: trial {trial.trial_id} reported {key} = {value!r}, which is not a "
                f"number: report a float (NaN for 'unknown'), or leave the key out"
            ) from None

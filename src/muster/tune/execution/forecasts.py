"""Imported lazily: tells the autoscaler of a cluster every few seconds what the experiment expects of it.

Only for engines that have an autoscaler to tell. What is said follows from the state of the experiment; when
it is written, and whether at all, is the engine's to decide.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.base.clock import Clock
from muster.base.forecast import Forecast, RunningTrial
from muster.base.ids import NodeId
from muster.trials.experiment import ExperimentState
from muster.trials.model import Trial
from muster.trials.states import TrialState

PERIOD_S = 3.0
_AT_WORK = (TrialState.RUNNING, TrialState.SAVING)


class ForecastPublisher:
    """A ForecastPublisher hands forecasts of one experiment to its engine."""

    def __init__(self, state: ExperimentState, publish: Callable[[Forecast], None], clock: Clock) -> None:
        self._state, self._publish, self._clock = state, publish, clock
        self._due_at = float("-inf")

    def publish_if_due(self) -> None:
        """Called between two steps of the controller, on its thread."""
        if self._clock.monotonic() >= self._due_at:
            self._due_at = self._clock.monotonic() + PERIOD_S
            self._publish(forecast_of(self._state, self._clock.now()))


def forecast_of(state: ExperimentState, now: float) -> Forecast:
    """Returns the trials that run, with their nodes, and what is left of money and time."""
    limits, running = state.settings.limits, state.index.holders()
    left = None if limits.cost_budget is None else max(0.0, limits.cost_budget - state.spend.spent(now))
    return Forecast(
        experiment=state.settings.experiment_dir,
        at=now,
        trials=tuple(_shown(state, trial, now) for trial in running if _is_placed(trial)),
        deadline=limits.deadline,
        budget_left=None if left is None else round(left, 4),
    )


def _is_placed(trial: Trial) -> bool:
    return trial.state in _AT_WORK and bool(trial.location.get("node_id"))


def _shown(state: ExperimentState, trial: Trial, now: float) -> RunningTrial:
    saved = 0.0 if trial.checkpoint is None else trial.checkpoint.metrics.get("time_total_s", 0.0)
    trained = trial.last_result.get("time_total_s", 0.0)
    since_s = now - trial.last_result_time if trial.has_reported_at_least_once else 0.0
    return RunningTrial(
        trial_id=trial.trial_id,
        node_id=NodeId(str(trial.location["node_id"])),
        shape=state.index.size(trial),
        is_movable=trial.checkpoint is not None or not trial.has_reported_at_least_once,
        unsaved_s=round(max(0.0, since_s) + max(0.0, trained - saved), 1),
    )

"""Imported lazily: tells the autoscaler of a cluster every few seconds what the experiment expects of it.

Only for engines that have an autoscaler to tell. What is said follows from the state of the experiment; when
it is written, and whether at all, is the engine's to decide.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.base.clock import Clock, ahead_s
from muster.base.forecast import Forecast, in_time_of
from muster.base.ids import NodeId
from muster.trials.experiment import ExperimentState
from muster.trials.forecast import ForecastInput, forecast_of

PERIOD_S = 3.0
RESTART_S = 10.0  # of an actor on another node, until its first work


class ForecastPublisher:
    """Hands forecasts of one experiment to its engine."""

    def __init__(self, state: ExperimentState, publish: Callable[[Forecast], None], clock: Clock) -> None:
        self._state, self._publish, self._clock = state, publish, clock
        self._due_at = float("-inf")

    def publish_if_due(self) -> None:
        """Called between two steps of the controller, on its thread."""
        if self._clock.monotonic() < self._due_at:
            return
        forecast = forecast_of(self._state, input_of(self._state, self._clock.now()))
        if forecast.trials or forecast.coming:  # before the first trial there is nothing to say
            self._due_at = self._clock.monotonic() + PERIOD_S
            self._publish(in_time_of(forecast, -ahead_s(self._clock)))  # the monitor knows the wall clock


def input_of(state: ExperimentState, now: float) -> ForecastInput:
    """Return what the forecast of a state needs besides it: nodes, moves, and what is left of the limits."""
    limits = state.limits
    left = None if limits.cost_budget is None else max(0.0, limits.cost_budget - state.spend.spent(now))
    return ForecastInput(
        experiment=state.settings.experiment_dir,
        at=now,
        restart_s=RESTART_S,
        begun_at=state.index.order[0].start_time if state.index.order else None,
        spent_s=_trained_s(state) if limits.deadline is not None else None,
        deadline=limits.deadline,
        budget_left=None if left is None else round(left, 4),
        node_of=lambda trial_id: _node_of(state, trial_id),
        moved_at=lambda trial_id: state.index.trials[trial_id].live.moved_at,
    )


def _node_of(state: ExperimentState, trial_id: str) -> NodeId | None:
    found = state.index.trials[trial_id].location.get("node_id")
    return NodeId(str(found)) if found else None


def _trained_s(state: ExperimentState) -> float:
    """Return the seconds that all trials have trained; only a deadline needs it, and it visits all."""
    trained = (trial.last_result.get("time_total_s") for trial in state.index.order)
    return sum(seconds for seconds in trained if isinstance(seconds, int | float))

"""Implement HyperBand for a searcher that learns from every budget (TuneBOHB)."""

from __future__ import annotations

from typing import Any

from muster.trials.model import Trial
from muster.trials.plugins import ControllerView
from muster.tune.schedulers.hyperband import HyperBandScheduler
from muster.tune.schedulers.hyperband_bands import any_member_runs
from muster.tune.schedulers.hyperband_bracket import Bracket, HyperBandParameters


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand with the largest bracket first, so that the searcher soon has results.

    Results carry `hyperband_info`: `{"budget": milestone}` where trials are compared, else `{}`. The searcher
    is notified of pauses through `on_pause(trial_id)` and `on_unpause(trial_id)`. A bracket that is not full
    is compared only when nothing runs. The parameters are those of HyperBandScheduler.

    Args:
        time_attr: The result key that counts progress.
        metric: The metric that decides.
        mode: "min" or "max".
        max_t: The largest value of `time_attr`.
        reduction_factor: How many times fewer trials continue after each rung.
        stop_last_trials: Whether trials end at `max_t`.
    """

    _state_kind = "hb_bohb"
    _plain_attributes = (*HyperBandScheduler._plain_attributes, "_ended_at")
    _largest_first = True

    def _set_up(self, parameters: HyperBandParameters) -> None:
        super()._set_up(parameters)
        self._ended_at: dict[str, int] = {}  # budgets of trials that were stopped at a result

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        result["hyperband_info"] = {}
        bracket = self._place(trial)
        milestone, before = bracket.milestone, bracket.members[trial.trial_id].time
        is_known = bracket.runs_freely and before >= milestone
        decision = super().on_trial_result(tune_controller, trial, result)
        if float(result[self._time_attr]) >= milestone and not is_known:
            result["hyperband_info"] = {"budget": milestone}
        if decision == self.PAUSE:
            _notify_searcher(tune_controller, "on_pause", trial.trial_id)
        elif decision == self.STOP:
            self._ended_at[trial.trial_id] = milestone
        return decision

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Report the budget of a last result to the searcher, which gets that result only now.

        Also where a stopping criterion, such as the `max_t` of the scheduler given to it as well, ended the
        trial at its milestone before the scheduler was asked.
        """
        budget = self._ended_at.pop(trial.trial_id, None)
        if budget is None:
            # The milestone, if the last result is the first one there.
            bracket, time = self._bands.bracket_of(trial.trial_id), result.get(self._time_attr)
            if bracket is None or trial.trial_id not in bracket.members or not isinstance(time, int | float):
                budget = None
            else:
                is_first = bracket.members[trial.trial_id].time < bracket.milestone <= time
                budget = bracket.milestone if is_first else None
        if budget is not None:
            result["hyperband_info"] = {"budget": budget}
        super().on_trial_complete(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial) -> None:
        self._ended_at.pop(trial.trial_id, None)
        super().on_trial_error(tune_controller, trial)

    def choose_trial_to_run(
        self, tune_controller: ControllerView, allow_recurse: bool = True
    ) -> Trial | None:
        """Return the next trial; without `allow_recurse` no bracket is compared before it is full.

        Args:
            tune_controller: The running experiment, with `get_trials()` and `stop_trial()`.
            allow_recurse: Whether to look again after a bracket was compared.
        """
        if allow_recurse:
            return super().choose_trial_to_run(tune_controller)
        return self._unexpected(tune_controller) or self._ready(tune_controller)

    def _when_nothing_is_ready(self, tune_controller: ControllerView) -> Trial | None:
        if any_member_runs(self._finder(tune_controller), self._bands.open.values()):
            return None
        return super()._when_nothing_is_ready(tune_controller)

    def _is_complete(self, tune_controller: ControllerView, bracket: Bracket) -> bool:
        return self._bands.is_closed(bracket)

    def _on_release(self, tune_controller: ControllerView, trial_id: str) -> None:
        _notify_searcher(tune_controller, "on_unpause", trial_id)


def _notify_searcher(tune_controller: ControllerView, hook: str, trial_id: str) -> None:
    searcher = getattr(getattr(tune_controller, "search_alg", None), "searcher", None)
    listener = getattr(searcher, hook, None)  # few searchers care
    if listener is not None:
        listener(trial_id)

"""Ray's module path of ASHA."""

from __future__ import annotations

import math
from typing import Any

from muster.base.rng import Seed
from muster.trials.controller_view import ControllerView
from muster.trials.model import Trial
from muster.tune.execution.plugin_state import Plain
from muster.tune.schedulers.asha_parameters import AshaParameters
from muster.tune.schedulers.asha_promotion import PromotionRule
from muster.tune.schedulers.asha_stopping import StoppingRule
from muster.tune.schedulers.metric_scheduler import MetricScheduler


class AsyncHyperBandScheduler(MetricScheduler):
    """Gives most of the time to the trials that look best early.

    time_attr: what `max_t` and `grace_period` count; must grow with every result.
    max_t: a trial that gets there has had all it can have.
    grace_period: the first rung; nothing is stopped or paused before it.
    reduction_factor: one in so many goes on from a rung to the next.
    brackets: how many ladders of rungs, each beginning one rung later; trials are spread over them by chance.
    stop_last_trials: whether a trial is stopped at `max_t`, or may go on until it ends by itself.
    type: "stopping" or "promotion". Promotion needs trials that can go on from a checkpoint.
    seed: of the draw of brackets; equal seeds draw equal brackets.
    """

    _state_kind = "async_hyperband"

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's parameters, and two of ours
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        type: str = "stopping",
        seed: int | None = None,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        asked = AshaParameters(
            time_attr, max_t, grace_period, reduction_factor, brackets, stop_last_trials, type, seed
        )
        self._set_up(asked.check(self.__class__.__name__))

    def _set_up(self, parameters: AshaParameters) -> None:
        self._parameters = parameters
        self._time_attr = parameters.time_attr
        self._rule: StoppingRule | PromotionRule = (
            PromotionRule(parameters) if parameters.type == "promotion" else StoppingRule(parameters)
        )
        counts = self._rule.rungs_per_bracket
        self._weights = [math.exp(count - max(counts)) for count in counts]
        self._bracket_of: dict[str, int] = {}  # of trials that are not finished
        self._draws = 0
        self._num_stopped = 0

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        self._place(trial.trial_id)

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Its scores stay; if it is tried again it goes on where it has been judged."""
        self._forget(trial)

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        said = self._time_and_score(trial, result)
        if said is None:
            return self.CONTINUE
        decision = self._rule.judge(self._place(trial.trial_id), trial.trial_id, *said)
        if decision == self.STOP:
            self._num_stopped += 1
        return decision

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None:
        said = self._time_and_score(trial, result)
        if said is not None:
            self._rule.end(self._place(trial.trial_id), trial.trial_id, *said)
        self._forget(trial)

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial) -> None:
        self._forget(trial)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        if isinstance(self._rule, PromotionRule):
            return self._rule.choose(tune_controller, self._bracket_of)
        return super().choose_trial_to_run(tune_controller)

    def debug_string(self) -> str:
        lines = [f"Using AsyncHyperBand: num_stopped={self._num_stopped}"]
        for rungs in self._rule.cutoffs():
            shown = " | ".join(f"Iter {milestone:.3f}: {cutoff}" for milestone, cutoff in rungs)
            lines.append(f"Bracket: {shown}")
        return "\n".join(lines)

    def _place(self, trial_id: str) -> int:
        """The trial's bracket; drawn when it has none."""
        bracket = self._bracket_of.get(trial_id)
        if bracket is None:
            bracket = self._rule.bracket_of(trial_id)
            if bracket is None:
                bracket = self._draw()
            self._bracket_of[trial_id] = bracket
        return bracket

    def _draw(self) -> int:
        if len(self._weights) == 1:
            return 0
        # One stream per draw: the place in the sequence is a number, and saved as one.
        self._draws += 1
        stream = Seed(self._parameters.seed or 0).derive(f"scheduler.asha/{self._draws}")
        return stream.choices(range(len(self._weights)), self._weights)[0]

    def _forget(self, trial: Trial) -> None:
        self._bracket_of.pop(trial.trial_id, None)
        self._rule.forget(trial.trial_id)

    def _to_plain(self) -> Plain:
        return {
            "parameters": self._parameters._asdict(),
            "metric": self._metric,
            "mode": self._mode,
            "trials": self._bracket_of,
            "draws": self._draws,
            "num_stopped": self._num_stopped,
            "rule": self._rule.to_plain(),
        }

    def _from_plain(self, state: Plain) -> None:
        self._set_up(AshaParameters(**state["parameters"]))
        self._metric, self._mode = state["metric"], state["mode"]
        self._bracket_of = dict(state["trials"])
        self._draws, self._num_stopped = state["draws"], state["num_stopped"]
        self._rule.from_plain(state["rule"], self._bracket_of)


ASHAScheduler = AsyncHyperBandScheduler


__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler"]

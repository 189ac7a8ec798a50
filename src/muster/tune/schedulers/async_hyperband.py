"""Implement ASHA, asynchronous successive halving, at Ray's module path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from muster.base.rng import Seed
from muster.base.text import counted
from muster.trials.metrics import in_words
from muster.trials.model import Trial
from muster.trials.plugins import CONTINUE, PAUSE, PAUSED, PROMOTED, STOP, STOPPED, ControllerView, Milestone
from muster.trials.states import TrialState
from muster.tune.plugin_state import Plain
from muster.tune.schedulers.asha_promotion import AshaParameters, AshaRule, PromotionRule, Rung, Score, Shown
from muster.tune.schedulers.pareto_rung import ParetoRung
from muster.tune.schedulers.trial_scheduler import MetricScheduler, explain

_DECIDED = {STOP: STOPPED, PAUSE: PAUSED, CONTINUE: PROMOTED}


class RunningPercentile:
    """Numpy.nanpercentile (linear) of everything added so far, to the last bit."""

    def __init__(self, percent: float, values: Iterable[float] = ()) -> None:
        self._fraction = percent / 100
        self._below: list[float] = []  # negated, so that the largest comes first
        self._above: list[float] = []
        self._saw_nan = False
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        if math.isnan(value):
            self._saw_nan = True
            return
        if self._below and value <= -self._below[0]:
            heappush(self._below, -value)
        else:
            heappush(self._above, value)
        # Makes `_below` end, and `_above` begin, with the neighbours of the percentile.
        wanted = int((len(self._below) + len(self._above) - 1) * self._fraction) + 1
        while len(self._below) < wanted:
            heappush(self._below, -heappop(self._above))
        while len(self._below) > wanted:
            heappush(self._above, -heappop(self._below))

    @property
    def value(self) -> float | None:
        """Return the percentile; None when nothing was added, NaN when nothing but NaN."""
        if not self._below:
            return math.nan if self._saw_nan else None
        left = -self._below[0]
        right = self._above[0] if self._above else left
        place = (len(self._below) + len(self._above) - 1) * self._fraction
        part = place - (len(self._below) - 1)
        step = right - left
        # Both forms are needed for equality with numpy, whose result is monotonic in `part`.
        return left + step * part if part < 0.5 else right - step * (1 - part)


class StoppingRung:
    """Holds the scores that were seen at one milestone."""

    def __init__(self, milestone: float, eta: float) -> None:
        self.milestone = milestone
        self.scores: dict[str, float] = {}
        self._percentile = RunningPercentile((1 - 1 / eta) * 100)
        self._cut: tuple[float | None, int] = (None, 0)  # before the last result, and how many there were

    def record(self, trial_id: str, score: float) -> None:
        self.scores[trial_id] = score
        self._percentile.add(score)

    def stops(self, trial_id: str, score: float) -> bool:
        """Record a score; return whether its trial stops: NaN, or below the cut of those before it."""
        self._cut = (self._percentile.value, len(self.scores))
        self.record(trial_id, score)
        # NaN is the worst there is: who diverged does not use up a budget, and stops nobody else.
        return math.isnan(score) or (self._cut[0] is not None and score < self._cut[0])

    def described(self, trial_id: str, verb: str, shown: Shown) -> str:
        """Return why `stops` has just returned True, in words."""
        (cutoff, count), score = self._cut, self.scores[trial_id]
        where = f"rung {in_words(self.milestone)}: {shown(score)} {verb}"
        if math.isnan(score) or cutoff is None:
            return f"{where} no number to compare"
        return f"{where} worse than {shown(cutoff)}, the cut of {counted(count, 'result')}"

    @property
    def summary(self) -> str:
        return str(self._percentile.value)


class StoppingRule(AshaRule):
    """Holds brackets of rungs, each from the highest milestone to the lowest."""

    passed = None  # whoever is not stopped just continues

    def __init__(self, parameters: AshaParameters, make_rung: Callable[..., Rung] = StoppingRung) -> None:
        super().__init__(parameters, milestones, make_rung)
        self._last_stop: Rung = None

    def judge(self, bracket: int, trial_id: str, time: float, score: Score) -> str:
        if time >= self._max_t and self._stop_last_trials:
            return STOP  # not recorded here: completion does that
        return self.record(bracket, trial_id, time, score)

    def record(self, bracket: int, trial_id: str, time: float, score: Score) -> str:
        """Fill the highest rung that was reached and not filled, if any; returns the trial's decision."""
        for rung in self._brackets[bracket]:
            if time < rung.milestone:
                continue
            if trial_id in rung.scores:
                if not self._stop_last_trials:
                    return CONTINUE
                continue
            if rung.stops(trial_id, score):
                self._last_stop = rung
                return STOP
            return CONTINUE
        return CONTINUE

    def why(self, decision: str, trial_id: str, time: float, score: Score, shown: Shown) -> str:
        """Return why `judge` has just returned STOP, in words."""
        del decision, score
        if time >= self._max_t and self._stop_last_trials:
            return f"it reached max_t = {in_words(self._max_t)}"
        return f"at {self._last_stop.described(trial_id, 'is', shown)}"

    def end(self, bracket: int, trial_id: str, time: float, score: Score) -> None:
        """Record a last result, which counts like any other and may fill a rung below one already filled."""
        self.record(bracket, trial_id, time, score)

    def forget(self, trial_id: str) -> None:
        """Do nothing: scores stay, and nothing else is known here."""

    def summaries(self) -> Iterable[list[tuple[float, str]]]:
        for rungs in self._brackets:
            yield [(rung.milestone, rung.summary) for rung in rungs]


def milestones(parameters: AshaParameters, bracket: int) -> list[float]:
    """Return grace_period * reduction_factor ** k as in Ray, highest first; [] when `max_t` is below."""
    grace, factor = parameters.grace_period, parameters.reduction_factor
    count = int(math.log(parameters.max_t / grace) / math.log(factor) - bracket + 1)
    return [grace * factor ** (power + bracket) for power in reversed(range(count))]


class AsyncHyperBandScheduler(MetricScheduler):
    """An AsyncHyperBandScheduler (ASHA) gives most of the time to the trials that look best early.

    Args:
        time_attr: The result key that `max_t` and `grace_period` count; must grow with every result.
        metric: The result key to compare, or several; default: the experiment's.
        mode: "min" or "max", or as many of them as there are metrics; default: the experiment's.
        max_t: The most time that a trial gets.
        grace_period: The first rung; nothing is stopped or paused before it.
        reduction_factor: Of this many trials one continues from a rung to the next.
        brackets: The number of brackets, each beginning one rung later; trials are assigned at random.
        stop_last_trials: Whether a trial is stopped at `max_t`, or may continue until it ends by itself.
        type: "stopping", or "promotion", which needs trials that can continue from a checkpoint.
        seed: Makes the draw of brackets repeatable.
    """

    _state_kind = "async_hyperband"
    _state_version = 2  # 1 for one objective
    takes_several_objectives = True
    _plain_attributes = ("_metric", "_mode", "_bracket_of", "_draws", "_num_stopped")

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's parameters, and two of ours
        self,
        time_attr: str = "training_iteration",
        metric: str | list[str] | None = None,
        mode: str | list[str] | None = None,
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
        rule: Any = PromotionRule if parameters.type == "promotion" else StoppingRule
        several = (ParetoRung,) if self.objectives > 1 else ()
        self._rule: StoppingRule | PromotionRule = rule(parameters, *several)
        counts = self._rule.rungs_per_bracket
        self._weights = [math.exp(count - max(counts)) for count in counts]
        self._bracket_of: dict[str, int] = {}  # of trials that are not finished
        self._draws = 0
        self._num_stopped = 0

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        self._place(trial.trial_id)

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Keep the scores of a failed trial; if it is tried again it continues in its bracket."""
        self._forget(trial)

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        report = self._time_and_score(trial, result)
        if report is None:
            return self.CONTINUE
        decision = self._rule.judge(self._place(trial.trial_id), trial.trial_id, *report)
        if decision == self.STOP:
            self._num_stopped += 1
        if decision != CONTINUE or self._rule.passed is not None:  # seldom: most results reach no rung
            reason = self._rule.why(decision, trial.trial_id, *report, self._shown)
            explain(tune_controller, trial.trial_id, _DECIDED[decision], reason)
        return decision

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None:
        report = self._time_and_score(trial, result)
        if report is not None:
            self._rule.end(self._place(trial.trial_id), trial.trial_id, *report)
        self._forget(trial)

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial) -> None:
        self._forget(trial)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        if isinstance(self._rule, PromotionRule):
            return self._rule.choose(tune_controller, self._bracket_of, self._shown)
        return super().choose_trial_to_run(tune_controller)

    def milestones(self, trial: Trial) -> Sequence[Milestone] | None:
        """Return the rungs of the trial's bracket; one of `reduction_factor` trials leaves each upwards."""
        parameters = self._parameters
        if parameters.type == "promotion" and trial.state is TrialState.PAUSED:
            return None  # others decide whether and when it is promoted
        continues, pauses = 1 / parameters.reduction_factor, parameters.type == "promotion"
        bracket = self._bracket_of.get(trial.trial_id, 0)
        below = [time for time in milestones(parameters, bracket) if time < parameters.max_t]
        rungs = [Milestone(time, continues, self._time_attr, pauses) for time in reversed(below)]
        ends = [Milestone(parameters.max_t, 0.0, self._time_attr)] if parameters.stop_last_trials else []
        return (*rungs, *ends)

    def rung_levels(self) -> tuple[tuple[float, ...] | None, str]:
        found, max_t = {time for rungs in self._rule.summaries() for time, _ in rungs}, self._parameters.max_t
        return (*sorted(time for time in found if time < max_t), max_t), self._time_attr

    def debug_string(self) -> str:
        lines = [f"Using AsyncHyperBand: num_stopped={self._num_stopped}"]
        for rungs in self._rule.summaries():
            shown = " | ".join(f"Iter {milestone:.3f}: {summary}" for milestone, summary in rungs)
            lines.append(f"Bracket: {shown}")
        return "\n".join(lines)

    def _place(self, trial_id: str) -> int:
        """Return the trial's bracket, drawn when it has none."""
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
        rule = self._rule.to_plain()
        return {**super()._to_plain(), "parameters": self._parameters._asdict(), "rule": rule}

    def _from_plain(self, state: Plain) -> None:
        self._metric = state["_metric"]  # several have other rungs
        self._set_up(AshaParameters(**state["parameters"]))
        super()._from_plain(state)
        self._rule.from_plain(state["rule"], self._bracket_of)


ASHAScheduler = AsyncHyperBandScheduler


__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler"]

"""The stopping rule of ASHA: at each rung, a trial below the percentile of those before it is ended.

Called by AsyncHyperBandScheduler; keeps the rungs of every bracket and nothing about which trials live.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from muster.trials.plugins import CONTINUE, STOP
from muster.tune.execution.plugin_state import Plain
from muster.tune.schedulers.asha_parameters import AshaParameters


class RunningPercentile:
    """numpy.nanpercentile (linear interpolation) of everything added so far, to the last bit."""

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
        self._balance()

    def _balance(self) -> None:
        """`_below` ends with the value left of the percentile, `_above` begins with the one right of it."""
        wanted = int((len(self._below) + len(self._above) - 1) * self._fraction) + 1
        while len(self._below) < wanted:
            heappush(self._below, -heappop(self._above))
        while len(self._below) > wanted:
            heappush(self._above, -heappop(self._below))

    @property
    def value(self) -> float | None:
        """None when nothing was added, NaN when nothing but NaN."""
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
    """The scores that were seen at one milestone."""

    def __init__(self, milestone: float, percent: float, scores: Mapping[str, float] | None = None) -> None:
        self.milestone = milestone
        self.scores: dict[str, float] = dict(scores or {})
        self._percentile = RunningPercentile(percent, self.scores.values())

    @property
    def cutoff(self) -> float | None:
        return self._percentile.value

    def record(self, trial_id: str, score: float) -> None:
        self.scores[trial_id] = score
        self._percentile.add(score)


class StoppingRule:
    """Brackets of rungs, each from the highest milestone to the lowest."""

    def __init__(self, parameters: AshaParameters) -> None:
        self._max_t = parameters.max_t
        self._stop_last_trials = parameters.stop_last_trials
        self._percent = (1 - 1 / parameters.reduction_factor) * 100
        self._brackets = [
            [StoppingRung(milestone, self._percent) for milestone in milestones(parameters, bracket)]
            for bracket in range(parameters.brackets)
        ]

    @property
    def rungs_per_bracket(self) -> list[int]:
        return [len(rungs) for rungs in self._brackets]

    def judge(self, bracket: int, trial_id: str, time: float, score: float) -> str:
        if time >= self._max_t and self._stop_last_trials:
            return STOP  # not recorded here: completion does that
        return self.record(bracket, trial_id, time, score)

    def record(self, bracket: int, trial_id: str, time: float, score: float) -> str:
        """Fill the highest rung that was reached and not filled, at most one; the answer is for the trial."""
        for rung in self._brackets[bracket]:
            if time < rung.milestone:
                continue
            if trial_id in rung.scores:
                if not self._stop_last_trials:
                    return CONTINUE
                continue
            cutoff = rung.cutoff
            rung.record(trial_id, score)
            # NaN never compares, so it neither stops a trial nor is a reason to stop one.
            return STOP if cutoff is not None and score < cutoff else CONTINUE
        return CONTINUE

    def end(self, bracket: int, trial_id: str, time: float, score: float) -> None:
        """A last result counts like any other, and may fill a rung below the one it has filled already."""
        self.record(bracket, trial_id, time, score)

    def forget(self, trial_id: str) -> None:
        """Scores stay, and nothing else is known here."""

    def bracket_of(self, trial_id: str) -> int | None:
        """Where the trial has been judged before."""
        for bracket, rungs in enumerate(self._brackets):
            if any(trial_id in rung.scores for rung in rungs):
                return bracket
        return None

    def cutoffs(self) -> Iterable[list[tuple[float, float | None]]]:
        for rungs in self._brackets:
            yield [(rung.milestone, rung.cutoff) for rung in rungs]

    def to_plain(self) -> Plain:
        return {"brackets": [[rung.scores for rung in rungs] for rungs in self._brackets]}

    def from_plain(self, state: Plain, live: Mapping[str, int]) -> None:
        del live  # which trials live makes no difference to who is stopped
        for rungs, saved in zip(self._brackets, state["brackets"], strict=True):
            rungs[:] = [
                StoppingRung(rung.milestone, self._percent, scores)
                for rung, scores in zip(rungs, saved, strict=True)
            ]


def milestones(parameters: AshaParameters, bracket: int) -> list[float]:
    """Ray's: grace_period * reduction_factor ** k, highest first; none for a bracket that begins too late."""
    grace, factor = parameters.grace_period, parameters.reduction_factor
    count = int(math.log(parameters.max_t / grace) / math.log(factor) - bracket + 1)
    return [grace * factor ** (power + bracket) for power in reversed(range(count))]

"""Implement the median stopping rule: a trial ends whose best is worse than the median of the others' means.

Golovin et al., "Google Vizier", section 3.2.2. Trials are started first come, first served.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from muster.base.text import counted
from muster.trials.model import Trial
from muster.trials.plugins import PAUSED, STOPPED, ControllerView
from muster.tune.plugin_state import Plain
from muster.tune.schedulers.asha_promotion import Score
from muster.tune.schedulers.trial_scheduler import MetricScheduler, explain, first_waiting


class Others(NamedTuple):
    """Describes the other trials that got to some time."""

    number: int
    median: float  # of their means; NaN when there are none


class ScoreCurve:
    """Holds sums of one trial's scores from the grace period on. Times never fall."""

    __slots__ = ("last", "sums", "times")

    def __init__(
        self, last: float = -math.inf, times: Sequence[float] = (), sums: Sequence[float] = ()
    ) -> None:
        self.last, self.times, self.sums = last, list(times), list(sums)

    def append(self, time: float, score: float) -> None:
        self.times.append(time)
        self.sums.append(score + (self.sums[-1] if self.sums else 0.0))

    def cut(self, time: float) -> None:
        """Forget what came at `time` or later."""
        kept = bisect_left(self.times, time)
        del self.times[kept:], self.sums[kept:]

    def mean(self, time: float) -> float:
        """Return the mean of all scores up to `time`; NaN when there is none, or when one was not finite."""
        count = bisect_right(self.times, time)
        return self.sums[count - 1] / count if count else math.nan


class Curves:
    """Holds every trial that ever reported; ended ones stay in the comparison."""

    def __init__(self, grace_period: float) -> None:
        self._grace_period = grace_period
        self._curves: dict[str, ScoreCurve] = {}
        # What follows is remembered to be fast, and found again when it is missing.
        self._columns: dict[float, Any] = {}  # at one time: a SortedList of the means of who got that far
        self._column_times: list[float] = []
        self._known_times: set[float] = set()

    def last_time(self, trial_id: str) -> float | None:
        return self._curves[trial_id].last if trial_id in self._curves else None

    def record(self, trial_id: str, time: float, score: float) -> None:
        """Record a score; a trial that goes back in time was restarted, and its later scores are dropped."""
        curve = self._curves.setdefault(trial_id, ScoreCurve())
        before, curve.last = curve.last, time
        if time < before:
            self._columns.clear()
            self._column_times.clear()
            curve.cut(time)
        same = self._columns.get(time) if time == before else None
        if same is not None and math.isfinite(curve.mean(time)):
            same.remove(curve.mean(time))
        if time >= self._grace_period:
            curve.append(time, score)
        first = bisect_right(self._column_times, before)
        passed = self._column_times[first : bisect_right(self._column_times, time)]
        for column_time in [*passed, *([time] if same is not None else [])]:
            if math.isfinite(mean := curve.mean(column_time)):
                self._columns[column_time].add(mean)

    def others(self, trial_id: str, time: float) -> Others:
        """Return how many other trials have a finite mean up to `time`, and the median of these means."""
        column = self._column(time)
        curve = self._curves[trial_id]
        own = curve.mean(time) if curve.last >= time else math.nan
        place = column.bisect_left(own) if math.isfinite(own) else len(column)
        count = len(column) - (place < len(column))
        if not count:
            return Others(0, math.nan)
        low, high = ((count - 1) // 2, count // 2)
        return Others(count, (column[low + (low >= place)] + column[high + (high >= place)]) / 2)

    def _column(self, time: float) -> Any:  # noqa: ANN401 - a SortedList has no type
        column = self._columns.get(time)
        if column is None:
            reached = (curve.mean(time) for curve in self._curves.values() if curve.last >= time)
            column = SortedList(mean for mean in reached if math.isfinite(mean))
            if time in self._known_times:  # it comes again: trials report at the same times
                self._columns[time] = column
                insort(self._column_times, time)
            self._known_times.add(time)
        return column

    def to_plain(self) -> Plain:
        return {one: (curve.last, curve.times, curve.sums) for one, curve in self._curves.items()}

    def from_plain(self, state: Plain) -> None:
        self._curves = {trial_id: ScoreCurve(*saved) for trial_id, saved in state.items()}


_ROUNDING = 1e-12  # relative: a mean of equal values may differ from them by so much


class MedianStoppingRule(MetricScheduler):
    """Stops a trial whose best value is worse than the median of the other trials' means.

    Args:
        time_attr: The result key that `grace_period` and `min_time_slice` count; must grow with every result.
        metric: The result key to compare, or several: a trial is stopped when it is worse in all of them.
            Default: the experiment's.
        mode: "min" or "max", or as many of them as there are metrics; default: the experiment's.
        grace_period: Nothing is stopped before it, and values before it are in no mean.
        min_samples_required: With fewer others that got so far, nothing is stopped.
        min_time_slice: With fewer others, a trial that ran for longer than this is paused for a waiting one.
        hard_stop: Whether a worse trial is stopped, or paused once until nothing else waits.
    """

    _state_kind = "median_stopping_rule"
    _state_version = 2  # 1 for one objective
    takes_several_objectives = True
    _plain_attributes = ("_metric", "_mode", "_best", "_last_pause", "_stopped")

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's parameters
        self,
        time_attr: str = "time_total_s",
        metric: str | list[str] | None = None,
        mode: str | list[str] | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: int = 0,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        self._check(grace_period, min_samples_required, min_time_slice)
        asked = {
            "time_attr": time_attr,
            "grace_period": float(grace_period),
            "min_samples_required": int(min_samples_required),
            "min_time_slice": float(min_time_slice),
            "hard_stop": bool(hard_stop),
        }
        self._set_up(asked)

    def _check(self, grace_period: float, min_samples_required: float, min_time_slice: float) -> None:
        bounds = (
            ("grace_period", grace_period, 0),
            ("min_samples_required", min_samples_required, 1),
            ("min_time_slice", min_time_slice, 0),
        )
        for name, value, least in bounds:
            if not value >= least:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; it must be at least {least}")

    def _set_up(self, parameters: Plain) -> None:
        self._parameters = parameters
        self._time_attr = parameters["time_attr"]
        self._grace_period = parameters["grace_period"]
        self._min_samples_required = parameters["min_samples_required"]
        self._min_time_slice = parameters["min_time_slice"]
        self._hard_stop = parameters["hard_stop"]
        self._curves = [Curves(self._grace_period) for _ in range(self.objectives)]
        self._best: dict[
            str, Any
        ] = {}  # of unfinished trials with a value that is not NaN; several in a list
        self._last_pause: dict[str, float] = {}
        self._stopped: dict[str, None] = {}

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        key, report = trial.trial_id, self._time_and_score(trial, result)
        if report is None or math.isnan(report[0]) or (key in self._stopped and not self._hard_stop):
            return self.CONTINUE
        time, score = report
        self._record(key, time, score)
        best = self._keep_best(key, score)
        if time < self._grace_period:
            return self.CONTINUE
        others = [curves.others(key, time) for curves in self._curves]
        number, medians = min(one.number for one in others), [one.median for one in others]
        if number < self._min_samples_required:
            return self._make_room(tune_controller, key, time)
        if not all(map(_is_worse, best, medians)):
            return self.CONTINUE
        self._stopped[key] = None
        several = self.objectives > 1
        shown, median = (self._shown((values, ()) if several else values[0]) for values in (best, medians))
        compared = f"{median}, the median of the means of {counted(number, 'other')}"
        reason = f"its best {shown} is worse than {compared}"
        explain(tune_controller, key, STOPPED if self._hard_stop else PAUSED, reason)
        return self.STOP if self._hard_stop else self.PAUSE

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Count the last result, once, also if it was not judged."""
        key, report = trial.trial_id, self._time_and_score(trial, result)
        if report is not None and not math.isnan(report[0]) and report[0] != self._curves[0].last_time(key):
            self._record(key, *report)
        self._forget(trial)

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial) -> None:
        self._forget(trial)

    def debug_string(self) -> str:
        return f"Using MedianStoppingRule: num_stopped={len(self._stopped)}."

    def _make_room(self, tune_controller: ControllerView, key: str, time: float) -> str:
        """Pause a trial when there are too few to compare with, so that those that wait get as far."""
        is_due = key not in self._last_pause or time - self._last_pause[key] > self._min_time_slice
        if not is_due or first_waiting(tune_controller) is None:
            return self.CONTINUE
        self._last_pause[key] = time
        reason = f"fewer than {self._min_samples_required} others got so far, and trials that wait may now"
        explain(tune_controller, key, PAUSED, reason)
        return self.PAUSE

    def _record(self, key: str, time: float, score: Score) -> None:
        for curves, one in zip(self._curves, _each(score), strict=True):
            curves.record(key, time, one)

    def _keep_best(self, key: str, score: Score) -> Sequence[float]:
        """Return the best of each objective so far; NaN where there was nothing else."""
        several, known = self.objectives > 1, self._best.get(key, math.nan)
        before = known if isinstance(known, list) else [known] * self.objectives
        pairs = zip(_each(score), before, strict=True)
        best = [one if one >= best or math.isnan(best) else best for one, best in pairs]
        if several or not math.isnan(best[0]):
            self._best[key] = best if several else best[0]
        return best

    def _forget(self, trial: Trial) -> None:
        self._best.pop(trial.trial_id, None)
        self._last_pause.pop(trial.trial_id, None)

    def _to_plain(self) -> Plain:
        curves = [one.to_plain() for one in self._curves]
        saved = curves if self.objectives > 1 else curves[0]
        return {**super()._to_plain(), "parameters": self._parameters, "curves": saved}

    def _from_plain(self, state: Plain) -> None:
        self._metric = state["_metric"]  # each has curves
        self._set_up(state["parameters"])
        super()._from_plain(state)
        saved = state["curves"] if self.objectives > 1 else [state["curves"]]
        for curves, one in zip(self._curves, saved, strict=True):
            curves.from_plain(one)


def _each(score: Score) -> Sequence[float]:
    """Return the objectives of a score: constraints take no part here."""
    return score[0] if isinstance(score, tuple) else (score,)


def _is_worse(best: float, median: float) -> bool:
    if math.isnan(best):
        return True  # nothing but NaN so far
    return median - best > _ROUNDING * max(abs(median), abs(best))

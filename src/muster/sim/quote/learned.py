"""Learn from a few minutes of real trials how long steps take and how curves continue, for simulated trials.

A simulated trial does what the recorded trial with the nearest config did; where that one failed, it ends.
Beyond the record its metric continues as `extrapolation` says. Each simulation draws the pace again
within what so few trials can tell, so that the spread of the answer has this uncertainty in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from msgspec import Struct

from muster.base.rng import Seed
from muster.errors import ConfigError
from muster.host.regular_file import read_regular
from muster.sim.tune.trace import RESULTS, RecordedCurve, RecordedTrial
from muster.sim.tune.trial import Config, Curve, Metrics
from muster.trials.metrics import is_number
from muster.tune.analysis.result_files import parse_json_lines

MakeCurve = Callable[[Seed], Curve]
_NEW_NODE_S = 600.0  # a node that came up earlier has served something before
_FEWEST_ROWS = 3  # to fit a curve to, and of trials to judge their neighbours by


class StepPace(Struct, frozen=True, kw_only=True):
    """How long one step takes: a median over trials, and their spread (of logarithms)."""

    step_s: float
    sigma: float = 0.0
    trials: int = 1  # that it was measured on
    unexplained: float | None = None  # the spread that the nearest config does not explain; None: all of it

    @property
    def uncertainty(self) -> float:
        """Return how far the true median may be off, as the standard deviation of a logarithm."""
        sigma = self.sigma if self.unexplained is None else min(self.sigma, self.unexplained)
        return sigma / math.sqrt(self.trials) if self.trials > 1 else max(self.sigma, 0.1)


def pace_of(trials: Sequence[RecordedTrial]) -> StepPace:
    """Return the pace of recorded trials; the first step of each counts only where there is no other."""
    trials = [trial for trial in trials if trial.seconds]
    known = [_log_step(trial) for trial in trials]
    if not known:
        raise ConfigError(
            "no trial has reported a result within the time of the profile",
            fix=("give it more minutes, or give step_s, the seconds that a step takes"),
        )
    sigma = stdev(known) if len(known) > 1 else 0.0
    return StepPace(
        step_s=math.exp(fmean(known)), sigma=sigma, trials=len(known), unexplained=_unexplained(trials)
    )


def _log_step(trial: RecordedTrial) -> float:
    return math.log(max(median(trial.seconds[1:] or trial.seconds), 1e-6))


def _unexplained(trials: Sequence[RecordedTrial]) -> float | None:
    """Return how well the nearest config tells the pace of a trial, each left out once.

    Two trials that are alike differ by the square root of two of what one of them deviates by.
    """
    if len(trials) < _FEWEST_ROWS:
        return None
    off = []
    for number, trial in enumerate(trials):
        others = RecordedCurve([*trials[:number], *trials[number + 1 :]])
        off.append(_log_step(trial) - _log_step(others.followed(trial.config)))
    return math.sqrt(fmean(each**2 for each in off) / 2.0)


class LearnedCurve(Curve):
    """What simulated trials do, in one start of a simulation."""

    def __init__(self, recorded: RecordedCurve, metric: str, most_steps: int | None, seed: Seed) -> None:
        self._recorded, self._metric, self._most_steps = recorded, metric, most_steps
        pace, draw = pace_of(recorded.trials), seed.derive("quote.pace")
        self._factor = math.exp(draw.gauss(0.0, pace.uncertainty))
        self._beyond: dict[str, Callable[[int], float]] = {}

    def iterations(self, config: Config) -> int | None:
        trial = self._recorded.followed(config)
        return len(trial.rows) if trial.has_failed else self._most_steps

    def seconds(self, config: Config, iteration: int) -> float:
        seconds = self._recorded.followed(config).seconds
        known = seconds[iteration - 1] if iteration <= len(seconds) else median(seconds[1:] or seconds)
        return known * self._factor

    def metrics(self, config: Config, iteration: int) -> Metrics:
        trial = self._recorded.followed(config)
        if iteration <= len(trial.rows):
            return trial.rows[iteration - 1]
        if trial.trial_id not in self._beyond:
            self._beyond[trial.trial_id] = extrapolation([row.get(self._metric) for row in trial.rows])
        return {**trial.rows[-1], self._metric: self._beyond[trial.trial_id](iteration)}


def extrapolation(values: Sequence[Any]) -> Callable[[int], float]:
    """Return how values continue from their last one: along a + b / sqrt(t), no further than they slow down.

    The changes in two equal spans are continued as a geometric series: less than a curve with a floor has
    left, whether it approaches the floor by a power of t or faster.
    """
    known, (_, slope) = [float(value) for value in values if is_number(value)], fitted(values)
    span = (len(known) - 1) // 2
    first, middle, last = known[-1 - 2 * span :: span] if span > 0 else (known or [math.nan])[-1:] * 3
    before, change = middle - first, last - middle
    slows = change * before > 0.0 and abs(change) < abs(before)
    most = abs(change / (before / change - 1.0)) if slows else 0.0

    def value(step: int) -> float:
        return last + min(max(slope / math.sqrt(step) - slope / math.sqrt(len(values)), -most), most)

    return value


def fitted(values: Sequence[Any]) -> tuple[float, float]:
    """Return a and b of a + b / sqrt(t) by least squares; of too few values the last one stays."""
    points = [(1.0 / math.sqrt(t), float(v)) for t, v in enumerate(values, 1) if is_number(v)]
    if not points:
        return math.nan, 0.0
    if len(points) < _FEWEST_ROWS:
        return points[-1][1], 0.0
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return mean_y - slope * mean_x, slope


class GivenCurve(Curve):
    """For a user who knows how long steps take: curves of a common kind, by config."""

    def __init__(self, pace: StepPace, metric: str, mode: str, most_steps: int | None, seed: Seed) -> None:
        self._pace, self._metric, self._most_steps, self._seed = pace, metric, most_steps, seed
        self._sign = -1.0 if mode == "max" else 1.0

    def iterations(self, config: Config) -> int | None:
        return self._most_steps

    def seconds(self, config: Config, iteration: int) -> float:
        return self._pace.step_s * math.exp(self._pace.sigma * self._of(config)[0])

    def metrics(self, config: Config, iteration: int) -> Metrics:
        _, level, slope = self._of(config)
        return {self._metric: self._sign * (level + slope / math.sqrt(iteration))}

    def _of(self, config: Mapping[str, Any]) -> tuple[float, float, float]:
        draw = self._seed.derive(f"quote.config.{sorted(config.items(), key=lambda item: item[0])!r}")
        return draw.gauss(0.0, 1.0), draw.random(), draw.random()


class TrialStarts(Struct, frozen=True, kw_only=True):
    """How long the trials of an experiment took from their places to their first steps."""

    start_s: float
    first_s: float = 0.0  # more for the first on a new node


def starts_of(place: Path, nodes: Sequence[tuple[float, float]] = ()) -> TrialStarts:
    """Read it from the directory of an experiment; a ConfigError where that is not known.

    Places are alike, and as long as trials wait, the next one to start takes the place of the first to end:
    the time in between is how long it took to end the one and to start the other.

    Args:
        place: The directory, with `<trial>/result.json`.
        nodes: When nodes of the cluster came up and ended, as far as that is known, by the wall clock.
    """
    spans = sorted(_span(file) for file in place.glob(f"*/{RESULTS}"))
    if not spans:
        raise ConfigError(f"{place}: holds no results of trials", fix="name the directory of an experiment")
    ends = sorted(end for _, end in spans)
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    places = max(accumulate(change for _, change in changes), default=0)
    gaps = [begin - end for (begin, _), end in zip(spans[places:], ends, strict=False)]
    if not gaps:
        raise ConfigError(
            (
                f"{place}: no trial of this experiment has waited for another to end, so it is not known how "
                "long trials take to start"
            ),
            fix="name one with more trials than places, or give start_s",
        )
    start_s, first = max(0.0, fmean(gaps)), [begin for begin, _ in spans[:places]]
    new = [up for up, end in nodes if first[0] - _NEW_NODE_S < up <= first[-1] < end]
    first_s = max(0.0, fmean(first) - fmean(new) - start_s) if new else 0.0
    return TrialStarts(start_s=start_s, first_s=first_s)


def _span(file: Path) -> tuple[float, float]:
    """Return when the first step of a trial began, and when its last one ended."""
    try:
        rows = parse_json_lines(read_regular(file).decode())
        end = float(rows[-1]["timestamp"])
        return end - float(rows[-1]["time_total_s"]), end
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{file}: not the results of a trial ({error!r})", fix="name the directory of an experiment"
        ) from error


class StepTimings(Struct, frozen=True, kw_only=True):
    """What the trials of a quote follow, and what was measured for it."""

    make_curve: MakeCurve
    pace: StepPace
    is_given: bool = False  # the user gave the pace; nothing was run
    checkpoint_every: int = 1  # steps
    failed: int = 0  # of the trials that were run

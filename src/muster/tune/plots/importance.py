"""Parameter importance: how much of the metric's variation each parameter explains on its own.

The metric is replaced by its rank (so that one diverged trial does not decide everything; NaN and infinity
count as worst). A number is cut into bins of equal size, a category is its own bin, "not set" is one more.
The importance is the share of the ranks' variance that lies between the bins, minus what as many random bins
would explain: 0 is nothing, 1 is everything. What chance can still reach is found by shuffling the ranks.

It sees main effects only: parameters that matter in combination look unimportant, correlated ones share their
effect twice. A searcher that learns does not try all values equally, so compare bars, do not add them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.tune.plots.axes import Axis

FEWEST_TRIALS = 8
_MOST_BINS = 8
_TRIALS_PER_BIN = 12
_SHUFFLES = 200
_CLEAR_TREND = 0.3  # a rank correlation below this has no direction worth naming


@dataclass(frozen=True)
class Importance:
    """Of one parameter. `trend` is the rank correlation with doing well; 0 for categories, and where the best
    values lie in the middle."""

    name: str
    share: float
    trend: float = 0.0

    @property
    def direction(self) -> str:
        """What to do with it, when that can be said."""
        if abs(self.trend) < _CLEAR_TREND:
            return ""
        return "higher is better" if self.trend > 0 else "lower is better"


@dataclass(frozen=True)
class Ranking:
    """All parameters, the most important first. `chance`: at most 1 of 20 experiments in which no parameter
    matters shows a larger share anywhere. `problem` says why there is nothing."""

    entries: tuple[Importance, ...] = ()
    chance: float = 0.0
    problem: str = ""
    trials: int = 0


def ranked(axes: Sequence[Axis], values: np.ndarray, mode: str) -> Ranking:
    """From the last value of the metric of each trial.

    `values` may hold NaN and infinities: trials that reported such count as worst. Trials that reported
    nothing must have been left out, of the axes too.
    """
    count = len(values)
    if count < FEWEST_TRIALS:
        return Ranking(problem=f"needs {FEWEST_TRIALS} trials with results; there are {count}")
    if not axes:
        return Ranking(problem="no parameter differs between the trials")
    ranks = goodness_ranks(values, mode)
    if np.ptp(ranks) == 0:
        return Ranking(problem="the metric is the same in all trials")
    bins = [bins_of(axis) for axis in axes]
    shares = [_share(each, ranks[None, :])[0] for each in bins]
    entries = [
        Importance(axis.name, max(0.0, float(share)), _trend(axis, ranks, each))
        for axis, share, each in zip(axes, shares, bins, strict=True)
    ]
    entries.sort(key=lambda entry: (-entry.share, entry.name))
    return Ranking(tuple(entries), _chance(bins, ranks), trials=count)


def goodness_ranks(values: np.ndarray, mode: str) -> np.ndarray:
    """0 for the worst; equal values share the mean of their places. What is not finite is worst."""
    good = values if mode == "max" else -values
    return _mean_ranks(np.where(np.isfinite(good), good, -np.inf))


def bins_of(axis: Axis) -> np.ndarray:
    """A bin number for each trial; bins without trials do not exist."""
    codes, missing = axis.codes, np.isnan(axis.codes)
    known = codes[~missing]
    raw = np.full(codes.shape, -1)
    limit = int(np.clip(len(codes) // _TRIALS_PER_BIN, 2, _MOST_BINS))
    if axis.is_category or np.unique(known).size <= limit:
        raw[~missing] = np.unique(known, return_inverse=True)[1]
    else:
        edges = np.quantile(known, np.linspace(0, 1, limit + 1)[1:-1])
        raw[~missing] = np.searchsorted(edges, known, side="right")
    return np.asarray(np.unique(raw, return_inverse=True)[1])


def _share(bins: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Variance between bins over all variance, less what chance explains on average; per row of ranks."""
    count, groups = bins.size, int(bins.max()) + 1
    if groups < 2 or groups >= count:
        return np.zeros(len(ranks))
    members = np.zeros((count, groups))
    members[np.arange(count), bins] = 1.0
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    between = ((centred @ members) ** 2 / members.sum(axis=0)).sum(axis=1)
    explained = between / (centred**2).sum(axis=1)
    expected = (groups - 1) / (count - 1)
    return np.asarray((explained - expected) / (1 - expected))


def _chance(bins: Sequence[np.ndarray], ranks: np.ndarray) -> float:
    shuffled = np.random.default_rng(0).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
    best = np.max([_share(each, shuffled) for each in bins], axis=0)
    return max(0.0, float(np.quantile(best, 0.95)))


def _trend(axis: Axis, ranks: np.ndarray, bins: np.ndarray) -> float:
    known = np.isfinite(axis.codes)
    if axis.is_category or known.sum() < FEWEST_TRIALS or np.ptp(axis.codes[known]) == 0:
        return 0.0
    if np.ptp(ranks[known]) == 0:
        return 0.0
    trend = float(np.corrcoef(_mean_ranks(axis.codes[known]), _mean_ranks(ranks[known]))[0, 1])
    means = [ranks[known & (bins == each)].mean() for each in np.unique(bins[known])]
    best = int(np.argmax(means))
    return trend if best == (len(means) - 1 if trend > 0 else 0) else 0.0


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2.0)[inverse])

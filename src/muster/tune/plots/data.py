"""Read from trials what the plots of an experiment show: curves, values, axes, importance.

The last value of the metric is a trial's value, as in get_best_result.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from muster.base.text import shortened
from muster.errors import StoreError
from muster.trials.checkpoints import metric as named
from muster.trials.metrics import flatten
from muster.tune.analysis.tables import number
from muster.tune.plots.axes import Axis, metric_axis, parameter_axis, short_number, value_text

if TYPE_CHECKING:
    from muster.tune.analysis.trial_record import TrialRecord


FEWEST_TRIALS = 8
_MOST_BINS = 8
_TRIALS_PER_BIN = 12
_SHUFFLES = 200
_CLEAR_TREND = 0.3  # a rank correlation below this has no direction worth naming


@dataclass(frozen=True)
class Importance:
    """The share of the metric's variation that one parameter explains.

    `trend` is the rank correlation with doing well; 0 for categories, and where the best values lie in the
    middle.
    """

    name: str
    share: float
    trend: float = 0.0

    @property
    def direction(self) -> str:
        """Return in which direction to change the parameter; "" when that is unknown."""
        if abs(self.trend) < _CLEAR_TREND:
            return ""
        return "higher is better" if self.trend > 0 else "lower is better"


@dataclass(frozen=True)
class Ranking:
    """Holds all parameters, the most important first.

    `chance`: at most 1 of 20 experiments in which no parameter matters shows a larger share anywhere.
    `problem` says why there are no entries.
    """

    entries: tuple[Importance, ...] = ()
    chance: float = 0.0
    problem: str = ""
    trials: int = 0


def ranked(axes: Sequence[Axis], values: np.ndarray, mode: str) -> Ranking:
    """Rank parameters by the last value of the metric of each trial.

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
    shuffled = np.random.default_rng(0).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
    best = np.max([_share(groups, shuffled) for groups in bins], axis=0)
    chance = max(0.0, float(np.quantile(best, 0.95)))
    return Ranking(tuple(entries), chance, trials=count)


def goodness_ranks(values: np.ndarray, mode: str) -> np.ndarray:
    """Return ranks, 0 for the worst; equal values share the mean. Values that are not finite are worst."""
    good = values if mode == "max" else -values
    return _mean_ranks(np.where(np.isfinite(good), good, -np.inf))


def bins_of(axis: Axis) -> np.ndarray:
    """Return a bin number for each trial; bins without trials do not exist."""
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
    """Return the variance between bins over all variance, less what chance explains; per row of ranks."""
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


logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")
MOST_CURVES = 250  # drawn; more would be one grey area, and take long to read
MOST_POINTS = 160  # of one curve
MOST_LINES = 600  # of parallel coordinates
_ABSENT = object()


@dataclass(frozen=True)
class PlotCurve:
    """A trial's metric over time; values that are not finite are NaN."""

    iterations: np.ndarray
    seconds: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Dot:
    """One trial in the plot."""

    trial_id: str
    status: str
    number: int  # in the order of creation, from 1
    value: float  # the last one; NaN: none, or not finite
    has_value: bool  # it reported the metric at all
    shade: float  # 0: as good as the best, 1: as bad as the worst
    parameters: Mapping[str, str]
    curve: PlotCurve | None = None


@dataclass(frozen=True)
class PlotData:
    """Holds everything that is drawn. Rows of `parameters` and `metric_axis` belong to `dots`."""

    name: str
    metric: str
    mode: str
    dots: tuple[Dot, ...]
    best: int | None  # position in `dots`
    parameters: tuple[Axis, ...]  # the most important first
    metric_axis: Axis
    ranking: Ranking
    lines: tuple[int, ...]  # those that parallel coordinates show, the worst first

    @property
    def curves(self) -> list[Dot]:
        return [dot for dot in self.dots if dot.curve is not None]

    @property
    def has_progress(self) -> bool:
        """Return whether some trial reported more than once."""
        return any(dot.curve is not None and dot.curve.values.size > 1 for dot in self.dots)

    @property
    def longest(self) -> float:
        """Return the furthest iteration that any trial reached."""
        return max((float(dot.curve.iterations[-1]) for dot in self.curves if dot.curve), default=0.0)


def collect(trials: Sequence[TrialRecord], *, name: str, metric: str, mode: str) -> PlotData:
    """Read the trials; ValueError when trials have results, but none has this metric."""
    values_found: list[float | None] = []
    for trial in trials:
        last = number(named(trial.last_result, metric))
        if last is None and len(trial.last_result) > 1 and trial.analysed is not None:
            last = trial.metric_analysis.get(metric, {}).get("last")  # it does not report it every time
        values_found.append(last)
    _check_metric(trials, values_found, metric)
    values = np.array([math.nan if value is None else value for value in values_found])
    finite = np.where(np.isfinite(values), values, np.nan)
    has_value = np.array([value is not None for value in values_found], dtype=bool)
    configs = [flatten(trial.config) for trial in trials]
    keys = dict.fromkeys(key for parameters in configs for key in parameters)
    made = [parameter_axis(value_text(key), [c.get(key, _ABSENT) for c in configs], _ABSENT) for key in keys]
    axes = [axis for axis in made if axis is not None]
    with_value = [
        replace(axis, positions=axis.positions[has_value], codes=axis.codes[has_value]) for axis in axes
    ]
    ranking = ranked(with_value, values[has_value], mode)
    place = {entry.name: n for n, entry in enumerate(ranking.entries)}
    axes.sort(key=lambda axis: place.get(axis.name, len(place)))
    best = None
    if np.isfinite(finite).any():
        best = int(np.nanargmax(finite) if mode == "max" else np.nanargmin(finite))
    order = _worst_first(values, has_value, mode)
    curves = _curves(trials, _spread_out(order, best, MOST_CURVES), metric)
    shown = [axis.name for axis in axes]
    upright = metric_axis(metric, finite, mode)
    # Shades follow the positions on the metric's axis, so that the axis can be the legend.
    share = 1 - upright.positions if mode == "max" else upright.positions
    shades = np.where(np.isfinite(upright.positions), share, 1.0)
    dots = tuple(
        Dot(
            trial_id=trial.trial_id,
            status=trial.status,
            number=n + 1,
            value=float(finite[n]),
            has_value=bool(has_value[n]),
            shade=float(shades[n]),
            parameters={key: value_text(configs[n][key]) for key in shown if key in configs[n]},
            curve=curves.get(n),
        )
        for n, trial in enumerate(trials)
    )
    lines = _spread_out([n for n in order if np.isfinite(finite[n])], best, MOST_LINES)
    return PlotData(name, metric, mode, dots, best, tuple(axes), upright, ranking, tuple(lines))


def known_metrics(trials: Sequence[TrialRecord]) -> list[str]:
    """Return the names of numbers that trials reported, without what muster fills in."""
    from muster.tune.analysis.result_files import AUTO_RESULT_KEYS

    found: dict[str, None] = {}
    for trial in trials:
        for key, value in flatten(trial.last_result).items():
            if str(key).partition("/")[0] not in AUTO_RESULT_KEYS and number(value) is not None:
                found[str(key)] = None
    return list(found)


def _check_metric(trials: Sequence[TrialRecord], values_found: Sequence[float | None], metric: str) -> None:
    if any(value is not None for value in values_found):
        return
    known = known_metrics(trials)
    if known:
        raise ValueError(
            f"plot: no trial reported {metric!r}; they reported {', '.join(known)}: pass metric=..."
        )


def _worst_first(values: np.ndarray, has_value: np.ndarray, mode: str) -> list[int]:
    chosen = np.flatnonzero(has_value)
    if not chosen.size:
        return []
    order = np.argsort(goodness_ranks(values[chosen], mode), kind="stable")
    return [int(n) for n in chosen[order]]


def _spread_out(order: Sequence[int], best: int | None, limit: int) -> list[int]:
    """Return so many of `order`, from bad to good in equal steps; the best one is last."""
    rest = [n for n in _thinned(order, limit) if n != best]
    return rest if best is None else [*rest, best]


def _thinned(items: Sequence[_Item], limit: int) -> Sequence[_Item]:
    if len(items) <= limit:
        return items
    return [items[place] for place in np.linspace(0, len(items) - 1, limit).round().astype(int)]


def _curves(trials: Sequence[TrialRecord], chosen: Sequence[int], metric: str) -> dict[int, PlotCurve]:
    found: dict[int, PlotCurve] = {}
    failed: list[str] = []
    for n in chosen:
        try:
            rows = trials[n].rows_if_any()
        except (OSError, ValueError, StoreError) as error:
            failed.append(f"{trials[n]}: {error}")
            continue
        curve = _curve(rows or [trials[n].last_result], metric)
        if curve is not None:
            found[n] = curve
    if failed:
        logger.warning("plot: results of %d trial(s) cannot be read:\n  %s", len(failed), "\n  ".join(failed))
    return found


def _curve(rows: Sequence[Mapping[str, Any]], metric: str) -> PlotCurve | None:
    points = []
    for position, row in enumerate(rows, start=1):
        value = number(named(row, metric))
        if value is not None:
            at, seconds = number(row.get("training_iteration")), number(row.get("time_total_s"))
            points.append((position if at is None else at, seconds or 0.0, value))
    if not points:
        return None
    table = np.array(_thinned(points, MOST_POINTS), dtype=float)
    return PlotCurve(table[:, 0], table[:, 1], np.where(np.isfinite(table[:, 2]), table[:, 2], np.nan))


def headline(plot: PlotData) -> str:
    """Return the name of the experiment and the best value."""
    name = shortened(plot.name, 60)
    if plot.best is None:
        return name
    best = plot.dots[plot.best]
    return f"{name}: best {shortened(plot.metric, 40)} {short_number(best.value)}"


def subtitle(plot: PlotData) -> str:
    """Return how many trials there are, how they ended, and what is not shown."""
    dots = plot.dots
    parts = [f"{len(dots):,} trial{'' if len(dots) == 1 else 's'}"]
    failed = sum(dot.status == "ERROR" for dot in dots)
    if failed:
        parts.append(f"{failed:,} failed")
    silent = sum(not dot.has_value for dot in dots)
    if silent:
        parts.append(f"{silent:,} without {shortened(plot.metric, 30)}")
    strange = sum(dot.has_value and dot.value != dot.value for dot in dots)
    if strange:
        parts.append(f"{strange:,} with NaN or infinity")
    if plot.best is not None:
        parts.append(f"best: trial {plot.dots[plot.best].trial_id}")
    shown = len(plot.curves)
    if shown < len(dots) - silent:
        parts.append(f"{shown:,} curves are shown, from bad to good in equal steps")
    parts.append("lower is better" if plot.mode == "min" else "higher is better")
    return "  ·  ".join(parts)


MOST_AXES = 9
_SPREAD = 0.045  # lines through the same category lie side by side


def shown_axes(plot: PlotData) -> list[Axis]:
    """Return the most important parameters, the most important of all beside the metric, which is last."""
    return [*reversed(plot.parameters[:MOST_AXES]), plot.metric_axis]


def table(plot: PlotData, columns: Sequence[Axis]) -> np.ndarray:
    """Return one row for each of `plot.lines`, one column per axis."""
    chosen = np.array(plot.lines, dtype=int)
    places = np.column_stack([column.positions[chosen] for column in columns])
    for at, column in enumerate(columns):
        if column.is_category:
            places[:, at] += _side_by_side(places[:, at])
    return places


def _side_by_side(places: np.ndarray) -> np.ndarray:
    """Return small offsets within each category, in the order of the lines, which go from bad to good."""
    moved = np.zeros(places.shape)
    for place in np.unique(places):
        same = np.flatnonzero(places == place)
        if same.size > 1:
            moved[same] = np.linspace(-_SPREAD / 2, _SPREAD / 2, same.size)
    return moved

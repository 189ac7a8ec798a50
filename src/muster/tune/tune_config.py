"""Define TuneConfig and ResumeConfig, checked when they are made; fields and defaults are Ray Tune's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from numbers import Real
from typing import Any

from muster.base.clock import SystemClock
from muster.errors import public
from muster.trials.metrics import number_of
from muster.tune import older
from muster.tune.config import DEPRECATED, BriefRepr, dollars, is_int, seconds

__all__ = ["ResumeConfig", "TuneConfig"]

MODES = ("min", "max")
YEAR_S = 365.25 * 86_400.0
MOST_S = 10 * YEAR_S  # until a deadline


@public
@dataclass(repr=False)
class TuneConfig(BriefRepr):
    """Defines what to optimize and how to search.

    Args:
        mode: "min" or "max"; for several metrics a list with one for each. "obs": observed only.
        metric: The result key to optimize, or a list of several; nested ones as `a/b`.
        search_alg: A Searcher or SearchAlgorithm, or its name; None: grid and random search.
        scheduler: A TrialScheduler, or its name; None: first in, first out.
        num_samples: Number of samples of the space; -1: no limit.
        max_concurrent_trials: At most so many trials at once; None or 0: as many as fit.
        time_budget_s: Seconds, or a timedelta, after which no trial continues.
        reuse_actors: Let a process run one trial after another instead of one trial only.
        trial_name_creator: `f(trial) -> str`.
        trial_dirname_creator: `f(trial) -> str`, without path separators.
        cost_budget: What the experiment may cost in $, over all its runs. It ends in time, with its trials
            saved, and `Tuner.restore(path, trainable, cost_budget=...)` continues it with more. Prices are
            those of the cluster's nodes, or RunConfig(price_per_hour=...).
        deadline: When the experiment must be over: a datetime with its zone, or seconds (a timedelta) from
            now. It ends in time, with its trials saved, and is resumed with another deadline.
        constraints: Upper bounds by result key, e.g. {"latency_ms": 50}. Schedulers with several objectives,
            and searchers that take constraints, rank a trial above a bound, or without the key, last.

    Example:
        >>> TuneConfig(metric="loss", mode="min", num_samples=20)
        TuneConfig(mode='min', metric='loss', num_samples=20)
    """

    mode: str | list[str] | None = None
    metric: str | list[str] | None = None
    search_alg: Any = None
    scheduler: Any = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool = False
    trial_name_creator: Callable[[Any], str] | None = None
    trial_dirname_creator: Callable[[Any], str] | None = None
    chdir_to_trial_dir: bool | str = DEPRECATED
    cost_budget: float | None = None
    deadline: datetime | timedelta | float | None = None
    constraints: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.chdir_to_trial_dir != DEPRECATED:
            older.accept_chdir(self.chdir_to_trial_dir, "TuneConfig")
        self._check_mode()
        if not is_int(self.num_samples) or self.num_samples < -1 or self.num_samples == 0:
            raise ValueError(
                f"TuneConfig(num_samples={self.num_samples!r}): must be a whole number above 0, or -1: no end"
            )
        limit = self.max_concurrent_trials
        if limit is not None and (not is_int(limit) or limit < 0):
            raise ValueError(
                f"TuneConfig(max_concurrent_trials={limit!r}): must be a whole number; None or 0: no limit"
            )
        if (seconds(self.time_budget_s, "TuneConfig(time_budget_s=...)") or 0.0) < 0:
            raise ValueError(f"TuneConfig(time_budget_s={self.time_budget_s!r}): must be more than 0")
        self.cost_budget = checked_budget(self.cost_budget, "TuneConfig")
        self.deadline = checked_deadline(self.deadline, "TuneConfig")
        self._check_plugins()

    def _check_mode(self) -> None:
        several, where = isinstance(self.mode, list | tuple), f"TuneConfig(mode={self.mode!r})"
        modes: Any = self.mode if several else [self.mode]
        if self.mode is not None and any(
            mode not in MODES and not (several and mode == "obs") for mode in modes
        ):
            raise ValueError(f"{where}: must be 'min' or 'max'")
        if several and not any(mode in MODES for mode in modes):
            raise ValueError(f"{where}: one of them must be 'min' or 'max'")
        if several and isinstance(self.metric, list | tuple) and len(self.metric) != len(modes):
            raise ValueError(f"{where}: {len(self.metric)} metrics need as many modes, not {len(modes)}")
        checked_constraints(self.constraints, "TuneConfig")

    def _check_plugins(self) -> None:
        for name, given in (("search_alg", self.search_alg), ("scheduler", self.scheduler)):
            if isinstance(given, type):
                kind = given.__name__
                raise ValueError(f"TuneConfig({name}={kind}): is a class; pass an object of it, {kind}(...)")
        for name in ("trial_name_creator", "trial_dirname_creator"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ValueError(f"TuneConfig({name}={given!r}): must be a function of the trial")
        for metric in self.metric if isinstance(self.metric, list | tuple) else [self.metric]:
            if metric is not None and not isinstance(metric, str):
                raise ValueError(f"TuneConfig(metric={self.metric!r}): must be the name of a reported value")


def goal_of(metric: object, mode: object, search_alg: object) -> tuple[Any, Any]:
    """Return metric and mode, or those of a searcher that was given several objectives instead."""
    theirs = getattr(search_alg, "metric", None)
    if not metric and isinstance(theirs, list | tuple):
        return theirs, getattr(getattr(search_alg, "searcher", search_alg), "mode", None)
    return metric, mode


def analysis_defaults(tune: TuneConfig, search_alg: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what an ExperimentAnalysis compares trials by."""
    metric, mode = goal_of(tune.metric, tune.mode, search_alg)
    constraints = constraints_of(tune.constraints, search_alg)
    return {"default_metric": metric, "default_mode": mode, "constraints": constraints}


def constraints_of(given: Mapping[str, float] | None, search_alg: Any) -> dict[str, float]:  # noqa: ANN401
    """Return the constraints of a TuneConfig, else those that its searcher was made with."""
    while (inner := getattr(search_alg, "searcher", None)) is not None:
        search_alg = inner
    return dict(given or getattr(search_alg, "_constraints", None) or {})


def checked_constraints(given: Mapping[str, float] | None, where: str) -> dict[str, float]:
    """Return the bounds; ValueError when one is not a number."""
    for name, bound in (given or {}).items():
        if number_of(bound) is None or math.isnan(bound):
            raise ValueError(f"{where}(constraints={{{name!r}: {bound!r}}}): must be a number")
    return {name: float(bound) for name, bound in (given or {}).items()}


def checked_budget(given: float | None, where: str) -> float | None:
    """Return a budget; ValueError when it is not an amount of money above 0."""
    amount = dollars(given, f"{where}(cost_budget={given!r})")
    if amount is not None and not amount > 0:
        raise ValueError(f"{where}(cost_budget={given!r}): must be more than $0")
    return amount


def checked_deadline(given: datetime | timedelta | float | None, where: str) -> datetime | None:
    """Return the moment that is meant, with a zone; ValueError when it has none or is over."""
    if given is None:
        return None
    now = SystemClock().now()
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError(
                f"{where}(deadline={given!r}): has no zone, so nobody knows when that is: "
                "add one, as in datetime(..., tzinfo=timezone.utc)"
            )
        left_s, moment = given.timestamp() - now, given
    else:
        left_s = _from_now(given, where)
        moment = datetime.fromtimestamp(now + left_s, timezone.utc)
    if not left_s > 0:
        raise ValueError(f"{where}(deadline={given!r}): is in the past: give a later one")
    return moment


def _from_now(given: timedelta | float, where: str) -> float:
    """Return the seconds until a deadline that is not a moment; so many years are a moment by mistake."""
    said = f"{where}(deadline={given!r})"
    if isinstance(given, bool) or not isinstance(given, timedelta | Real):
        raise ValueError(f"{said}: must be a datetime with its zone, a timedelta, or seconds from now")
    left_s = seconds(given, said) or 0.0
    if left_s > MOST_S:
        raise ValueError(
            f"{said}: is {left_s / YEAR_S:.3g} years from now: seconds count from now; for a moment, give a "
            "datetime with its zone, such as datetime.fromtimestamp(seconds, timezone.utc)"
        )
    return left_s


@public
@dataclass(repr=False)
class ResumeConfig(BriefRepr):
    """Defines what a restored experiment does with its trials, by how they ended.

    Example:
        >>> ResumeConfig(errored=ResumeConfig.ResumeType.RESTART)
        ResumeConfig(errored=<ResumeType.RESTART: 'restart'>)
    """

    class ResumeType(Enum):
        """What is done with trials of one kind."""

        RESUME = "resume"  # continue from the newest checkpoint
        RESTART = "restart"  # start again
        SKIP = "skip"  # leave as they are

    finished: ResumeType = ResumeType.SKIP
    unfinished: ResumeType = ResumeType.RESUME
    errored: ResumeType = ResumeType.SKIP

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            value = getattr(self, name)
            try:
                setattr(self, name, self.ResumeType(value))
            except ValueError:
                known = ", ".join(repr(each.value) for each in self.ResumeType)
                raise ValueError(f"ResumeConfig({name}={value!r}): must be one of {known}") from None

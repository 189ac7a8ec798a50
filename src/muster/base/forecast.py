"""Define what a tuner tells the autoscaler: the trials that run, and the work that is still to come.

The tuner publishes a Forecast, the monitor reads it into the snapshot. Times are seconds since the epoch by
the writer's clock, or seconds from `at`; a forecast that is not renewed within `valid_s` counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from muster.base.ids import NodeId
from muster.base.resources import Resources


class RunningTrial(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial with the node that holds it, and what moving it would cost."""

    trial_id: str
    node_id: NodeId
    shape: Resources  # its share of the node
    is_movable: bool = False  # it has its own checkpoint, or nothing to lose
    unsaved_s: float = 0.0  # seconds of work since its newest checkpoint: repeated after a move
    restart_s: float = 0.0  # from the end on one node to the first work on another
    rest_s: float | None = None  # expected until it ends; None: not known
    moved_at: float | None = None  # when it was last moved on purpose, since the epoch
    is_leader: bool = False  # among the best of its rung: not all leaders belong into one pool


class ComingWork(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ComingWork is `count` equal trials that will ask for room within a span of time."""

    shape: Resources
    count: int
    start_s: float = 0.0  # earliest, from the forecast's `at`; 0: it waits already
    end_s: float | None = None  # when the last of it will be done; None: not known
    each_s: float | None = None  # how long one of them is expected to run; None: not known
    most_s: float | None = None  # how long one of them may run; None: not known
    probability: float = 1.0


class Forecast(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that one experiment expects of the cluster."""

    experiment: str  # its identity: one entry per experiment, the newest counts
    driver: str = ""  # the runtime's name of the program that runs it
    at: float
    valid_s: float = 60.0
    trials: tuple[RunningTrial, ...] = ()
    coming: tuple[ComingWork, ...] = ()
    is_complete: bool = False  # nothing will be asked for besides what stands here
    begun_at: float | None = None  # when the experiment began, since the epoch
    done: float | None = None  # share of its expected work that is done
    deadline: float | None = None  # the experiment's, since the epoch
    budget_left: float | None = None  # $ that it may still spend; None: it has no budget


def trials_by_node(forecasts: Iterable[Forecast]) -> dict[str, list[RunningTrial]]:
    """Return the trials that tuners have on each node."""
    found: dict[str, list[RunningTrial]] = {}
    for trial in (trial for forecast in forecasts for trial in forecast.trials):
        found.setdefault(trial.node_id, []).append(trial)
    return found


def last_of(forecast: Forecast, at: float) -> Forecast:
    """Return the forecast of the same experiment once it is over: nothing will come."""
    return Forecast(experiment=forecast.experiment, driver=forecast.driver, at=at, is_complete=True, done=1.0)


def fault_of(forecast: Forecast) -> str:
    """Return what makes a forecast unusable, for the log; "" when it is sound."""
    if not forecast.experiment:
        return "it names no experiment"
    times = [forecast.at, forecast.valid_s, forecast.begun_at, forecast.done]
    times += [forecast.deadline, forecast.budget_left]
    for trial in forecast.trials:
        times += [trial.unsaved_s, trial.restart_s, trial.rest_s, trial.moved_at]
    for work in forecast.coming:
        times += [work.start_s, work.end_s, work.each_s, work.most_s, work.probability]
        if not 0 < work.count <= 1_000_000_000 or not 0.0 <= work.probability <= 1.0:
            return f"{work.count} trials with a probability of {work.probability:g} make no sense"
    if not all(math.isfinite(value) for value in times if value is not None):
        return "one of its times is not a number"
    return ""


def in_time_of(forecast: Forecast, shift_s: float) -> Forecast:
    """Return the forecast by another clock: the writer's and the reader's steady ones differ."""
    return replace(
        forecast,
        at=forecast.at + shift_s,
        deadline=None if forecast.deadline is None else forecast.deadline + shift_s,
        begun_at=None if forecast.begun_at is None else forecast.begun_at + shift_s,
        trials=tuple(
            trial if trial.moved_at is None else replace(trial, moved_at=trial.moved_at + shift_s)
            for trial in forecast.trials
        ),
    )

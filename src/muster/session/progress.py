"""Count the progress of one trial, and fills result keys from the counters, in Ray Tune's order.

The trial's side counts (`Progress.advance` returns a Stamp); the receiver of the report fills
(`fill_result`), so that what never changes need not travel with every report.
"""

from __future__ import annotations

import time  # only for formatting: reading the clock is the caller's business
from collections.abc import Mapping
from numbers import Real
from typing import Any

# iteration, timestamp, this_iter_s, total_s, since_restore_s, iterations_since_restore,
# timesteps_since_restore, timesteps_total, episodes_total
Stamp = tuple[int, int, float, float, float, int, int, "int | None", "int | None"]

_FILLED = frozenset(
    (
        *("timestamp", "checkpoint_dir_name", "done", "training_iteration", "trial_id", "date", "pid"),
        *("time_this_iter_s", "time_total_s", "hostname", "node_ip", "config", "time_since_restore"),
        *("iterations_since_restore", "timesteps_since_restore", "timesteps_total", "episodes_total"),
    )
)
_NUMBERS = {"training_iteration", "time_this_iter_s", "timesteps_this_iter", "episodes_this_iter"}
_COUNTED = frozenset({*_NUMBERS, "timestamp"})


class Progress:
    """How far one trial is: in total, and since it was last restored."""

    __slots__ = (
        *("episodes_total", "iteration", "iterations_since_restore", "time_since_restore_s", "time_total_s"),
        *("timesteps_since_restore", "timesteps_total"),
    )

    def __init__(self) -> None:
        self.iteration = 0
        self.time_total_s = 0.0
        self.timesteps_total: int | None = None
        self.episodes_total: int | None = None
        self._forget_restore()

    def _forget_restore(self) -> None:
        self.time_since_restore_s = 0.0
        self.iterations_since_restore = 0
        self.timesteps_since_restore = 0

    def resume(self, metrics: Mapping[str, Any]) -> None:
        """Continue from the counters that a checkpoint was made with."""
        self.iteration = int(metrics.get("training_iteration") or 0)
        self.time_total_s = float(metrics.get("time_total_s") or 0.0)
        self.timesteps_total = metrics.get("timesteps_total")
        self.episodes_total = metrics.get("episodes_total")
        self._forget_restore()

    def advance(self, metrics: Mapping[str, Any], *, elapsed_s: float, now: float) -> Stamp:
        """Count one more result that took `elapsed_s`."""
        timestamp = int(now)
        if not _COUNTED.isdisjoint(metrics):
            _check_numbers(metrics)
            elapsed_s = metrics.get("time_this_iter_s", elapsed_s)
            timestamp = metrics.get("timestamp", timestamp)
            self._count_steps(metrics)
        self.iteration += 1
        self.iterations_since_restore += 1
        self.time_total_s += elapsed_s
        self.time_since_restore_s += elapsed_s
        return (
            *(self.iteration, timestamp, elapsed_s, self.time_total_s, self.time_since_restore_s),
            *(self.iterations_since_restore, self.timesteps_since_restore),
            *(self.timesteps_total, self.episodes_total),
        )

    def _count_steps(self, metrics: Mapping[str, Any]) -> None:
        steps, episodes = metrics.get("timesteps_this_iter"), metrics.get("episodes_this_iter")
        if steps is not None:
            self.timesteps_total = (self.timesteps_total or 0) + steps
            self.timesteps_since_restore += steps
        if episodes is not None:
            self.episodes_total = (self.episodes_total or 0) + episodes


def _check_numbers(metrics: Mapping[str, Any]) -> None:
    for name in _NUMBERS.intersection(metrics):  # other results are computed from them
        value = metrics[name]
        if not isinstance(value, Real) and (value is not None or name in _FILLED):
            raise TypeError(f"the result has {name}={value!r}: it must be a number; rename the metric")


class Signature:
    """What is the same in every result of one trial in one process."""

    __slots__ = ("_date", "_date_of", "config", "from_function", "hostname", "node_ip", "pid", "trial_id")

    def __init__(self, *, trial_id: str, config: Mapping[str, Any], from_function: bool = True) -> None:
        self.trial_id = trial_id
        self.config = config
        self.from_function = from_function
        self.pid = 0
        self.hostname = ""
        self.node_ip = ""
        self._date_of = -1
        self._date = ""

    def date(self, now: float) -> str:
        """Return `now` in Ray Tune's format; formatted once per second."""
        second = int(now)
        if second != self._date_of:
            self._date_of = second
            self._date = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))
        return self._date


def fill_result(
    result: dict[str, Any], stamp: Stamp, who: Signature, *, now: float, checkpoint_name: str | None = None
) -> dict[str, Any]:
    """Add the automatic keys to `result` itself, in Ray Tune's order and with its precedence."""
    if not _FILLED.isdisjoint(result):
        return _fill_around(result, stamp, who, now=now, checkpoint_name=checkpoint_name)
    iteration, timestamp, step_s, total_s, since_s, iterations, steps, steps_total, episodes_total = stamp
    if who.from_function:
        result["timestamp"] = timestamp
        result["checkpoint_dir_name"] = checkpoint_name
    result["done"] = False
    if steps_total is not None:
        result["timesteps_total"] = steps_total
    if episodes_total is not None:
        result["episodes_total"] = episodes_total
    result["training_iteration"] = iteration
    result["trial_id"] = who.trial_id
    result["date"] = who.date(now)
    if not who.from_function:
        result["timestamp"] = timestamp
    result["time_this_iter_s"] = step_s
    result["time_total_s"] = total_s
    result["pid"] = who.pid
    result["hostname"] = who.hostname
    result["node_ip"] = who.node_ip
    result["config"] = who.config
    result["time_since_restore"] = since_s
    result["iterations_since_restore"] = iterations
    if steps:
        result["timesteps_since_restore"] = steps
    return result


_REPORTED_WINS = ("timestamp", "done", "timesteps_total", "episodes_total", *_NUMBERS & _FILLED)


def _fill_around(
    result: dict[str, Any], stamp: Stamp, who: Signature, *, now: float, checkpoint_name: str | None
) -> dict[str, Any]:
    """Add the keys to a report that has some of them already: each stays where it is."""
    filled = fill_result({}, stamp, who, now=now, checkpoint_name=checkpoint_name)
    for name in _REPORTED_WINS:
        if name in result:
            filled.pop(name, None)
    result.update(filled)
    return result

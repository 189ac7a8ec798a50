"""Define TPESearch, the model-based searcher of the base install."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import msgpack

from muster.errors import RestoreError
from muster.tune.pareto import violations
from muster.tune.search.library_searcher import EvaluatedPoint, SpaceSearcher, finite_number
from muster.tune.search.search_algorithm import Names, decoded_state
from muster.tune.search.space_tree import SpaceTree, Values
from muster.tune.tune_config import checked_constraints

if TYPE_CHECKING:
    from muster.tune.search.tpe.coordinates import Coordinates, Point
    from muster.tune.search.tpe.model import Model
    from muster.tune.search.tpe.table import SearchTable

logger = logging.getLogger(__name__)

_SEEDS = 2**128  # as many as Philox has keys
_PENDING, _STOPPED, _COMPLETE, _FAILED, _GONE = range(5)


class TPESearch(SpaceSearcher):
    """Learns which configurations are good: a multivariate tree-structured Parzen estimator.

    It supports all domains but grids and functions, domains inside the options of a choice, several metrics,
    and trials that a scheduler stops early. `search_alg="auto"` and `search_alg="tpe"` make one.

    Args:
        space: A search space. Usually left to the Tuner's `param_space`.
        metric: The result key to optimize, or several.
        mode: "min" or "max", or as many of them as there are metrics; "obs" ignores a metric.
        points_to_evaluate: Configurations to begin with; keys that they lack are filled in.
        evaluated_rewards: The results of `points_to_evaluate`, when they are known.
        seed: Makes the suggestions repeatable; by default drawn from numpy's global random stream.
        n_startup_trials: How many results the model waits for.
        n_candidates: How many candidates the model compares for each suggestion.
        constraints: Upper bounds by result key, e.g. {"latency_ms": 50}; a trial above one of them, or
            without the key, ranks behind all others with a result.

    Example:
        tune.TuneConfig(search_alg=TPESearch(seed=0), metric="loss", mode="min", num_samples=100)
    """

    _tree: SpaceTree  # once there is a space
    _coordinates: Coordinates  # these once it has started
    _table: SearchTable
    _model: Model
    _plain_attributes: ClassVar[tuple[str, ...]] = (
        *("_metric", "_mode", "_constraints", "_seed", "_startup", "_candidates", "_number"),
        *("_levels", "_time_attr", "_queue", "_given", "_live"),
    )

    def __init__(  # noqa: PLR0913, PLR0917 - as the other searchers
        self,
        space: Mapping[str, Any] | None = None,
        metric: Names = None,
        mode: Names = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        evaluated_rewards: list[Any] | None = None,
        seed: int | None = None,
        n_startup_trials: int = 10,
        n_candidates: int = 64,
        constraints: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        self._take_points(points_to_evaluate, evaluated_rewards)
        self._constraints = checked_constraints(constraints, type(self).__name__)
        if not (hasattr(n_candidates, "__index__") and n_candidates >= 1):
            raise ValueError(f"n_candidates must be an integer of at least 1, not {n_candidates!r}")
        if seed is not None and not (hasattr(seed, "__index__") and 0 <= seed < _SEEDS):
            raise ValueError(f"seed must be an integer from 0 to 2**128 - 1, not {seed!r}")
        self._startup, self._candidates = n_startup_trials, n_candidates
        self._seed: int | None = None if seed is None else int(seed)
        self._queue: list[Values] = []  # points to evaluate that were not suggested yet
        self._given: dict[str, Values] = {}  # those of live trials, exactly as the user wrote them
        self._live: dict[str, int] = {}  # the place in the table of each unfinished trial
        self._reason = ("", "")  # of the last suggestion, with its trial
        self._number = 0  # suggestions made
        self._saved: dict[str, Any] | None = None  # restored before there was a space
        self._keeps_constants = bool(space)
        if space:
            self._set_space(space)
        self._start_if_ready()

    # Set-up.

    def _set_space(self, space: Any) -> None:  # noqa: ANN401
        self._tree = SpaceTree(type(self).__name__, space, keeps_constants=self._keeps_constants)
        self._space = space  # last: a space that is refused is not kept

    def _is_constant(self) -> bool:
        return not self._tree.all

    def _start(self) -> None:
        import numpy as np

        from muster.tune.search.tpe.coordinates import Coordinates
        from muster.tune.search.tpe.model import Model
        from muster.tune.search.tpe.table import SearchTable

        if self._seed is None:  # from the stream that a script may have seeded
            self._seed = int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
        self._coordinates = Coordinates(self._tree)
        self._table = SearchTable(
            len(self._coordinates.scales), len(self._coordinates.sizes), len(self._objectives())
        )
        self._model = Model(self._coordinates, self._seed, self._startup, self._candidates)
        if self._saved is not None:
            self._restore_table(self._saved)
            self._rewards, self._evaluated = [], []  # the table has them
        elif not self._rewards:
            self._queue = [self._tree.values(point, is_partial=True) for point in self._points]

    # Ask.

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        self._require_ready(self._is_started)
        if trial_id not in self._live:
            self._add(trial_id)
        return self._tree.suggestion(self._values(trial_id))

    def _values(self, trial_id: str) -> Values:
        """Return the values of a live trial; those of a user are kept, because encoding rounds them."""
        point = self._table.point(self._live[trial_id])
        return self._coordinates.values(point) | self._given.get(trial_id, {})

    def _add(self, trial_id: str) -> None:
        table = self._table
        if self._queue:
            self._given[trial_id] = self._queue.pop(0)
            point: Point = self._coordinates.point(self._given[trial_id], self._model.spread(self._number))
            reason = "a point of points_to_evaluate"
        else:
            point, reason = self._model.suggest(table, self._number)
        self._live[trial_id], self._reason = table.add(point), (trial_id, reason)
        self._number += 1

    def why(self, trial_id: str) -> str:
        known_id, reason = self._reason
        return reason if known_id == trial_id else ""

    # Tell.

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        place = self._live.get(trial_id)
        level = self._level(result)
        if place is None or level is None:
            return
        if not self._levels or not self._table.level[place] >= level:
            self._record(place, result, level)

    def _level(self, result: Mapping[str, Any]) -> float | None:
        """Return the highest rung that a result has reached; 0 without rungs, None below the first."""
        if not self._levels:
            return 0.0
        time = finite_number(result.get(self._time_attr))
        reached = 0 if time is None else bisect_right(self._levels, time)
        return self._levels[reached - 1] if reached else None

    def _record(self, place: int, result: Mapping[str, Any], level: float) -> bool:
        """Write a result into the table; returns False when a metric is not a finite number."""
        scores = self._scores([result.get(metric) for metric, _ in self._objectives()])
        if scores is not None:
            self._table.record(place, scores, sum(violations(result, self._constraints)), level)
        return scores is not None

    def _scores(self, values: Sequence[Any]) -> list[float] | None:
        """Return finite values so that smaller ones are better; None when one is not finite."""
        modes = [mode for _, mode in self._objectives()]
        if len(values) != len(modes):
            raise ValueError(f"{values!r} are not {len(modes)}, one per metric")
        numbers = [finite_number(value) for value in values]
        if None in numbers:
            return None
        return [
            (number or 0.0) * (1 if mode == "min" else -1)
            for mode, number in zip(modes, numbers, strict=True)
        ]

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False, stopped: bool = False
    ) -> None:
        """Learn how a trial ended.

        Args:
            trial_id: The trial.
            result: Its last result; none for a trial that failed, or that was stopped while it waited.
            error: Whether it failed.
            stopped: Whether its scheduler stopped it, so that its value is that of the rung it reached.
        """
        place = self._live.pop(trial_id, None)
        self._given.pop(trial_id, None)
        if place is None:
            return
        self._table.status[place] = self._ended(place, result, error, stopped)

    def _ended(self, place: int, result: Mapping[str, Any] | None, error: bool, stopped: bool) -> int:
        known = float(self._table.level[place])  # NaN: none
        if error:
            return _FAILED
        if not result:
            return _GONE if math.isnan(known) else _STOPPED
        level = self._level(result) or 0.0
        if not stopped or (self._levels and level >= self._levels[-1]):
            return _COMPLETE if self._record(place, result, math.inf) else _FAILED
        if not known >= level or not self._levels:
            return _STOPPED if self._record(place, result, level) else _FAILED
        return _STOPPED if self._scores([result.get(key) for key, _ in self._objectives()]) else _FAILED

    def _learn_evaluated(self, evaluated: EvaluatedPoint) -> None:
        value, pruned = evaluated.value, evaluated.pruned
        values = self._tree.values(evaluated.point)
        scores = self._scores(value if isinstance(value, (list, tuple)) else [value])
        place = self._table.add(self._coordinates.point(values, self._coordinates.empty_point()))
        if scores is None or evaluated.error:
            self._table.status[place] = _FAILED
            return
        self._table.record(place, scores, 0.0, 0.0 if pruned else math.inf)
        self._table.status[place] = _STOPPED if pruned else _COMPLETE

    # State.

    def save_state(self) -> bytes:
        """Return the table and the counters; everything else is a function of them."""
        if self._saved is not None:  # restored, and still without a space
            return msgpack.encode(self._saved)
        saved = {name: getattr(self, name) for name in self._plain_attributes}
        if self._is_started:
            saved |= {"space": self._coordinates.fingerprint, "table": self._table.saved()}
        return msgpack.encode({"version": 1, **saved})

    def restore_state(self, state: bytes) -> None:
        """Continue from a saved state; the space comes from the constructor or the experiment, as before."""
        saved = decoded_state(self, msgpack.decode, state)
        for name in self._plain_attributes:
            if saved[name] is not None:
                setattr(self, name, saved[name])
        self._saved, self._is_started = (saved if "table" in saved else None), False
        self._start_if_ready()

    def _restore_table(self, saved: dict[str, Any]) -> None:
        now = msgpack.decode(msgpack.encode(self._coordinates.fingerprint))
        if now != saved["space"]:
            raise RestoreError(
                f"{type(self).__name__}: the search space changed at {_difference(saved['space'], now)}",
                fix="restore with the space of the first run",
            )
        self._table.restore(saved["table"])
        self._saved = None


def _difference(before: list[list[Any]], now: list[list[Any]]) -> str:
    for old, new in zip(before, now, strict=False):
        if old != new:
            return f"'{old[0]}': it was {old[1:]} and is {new}"
    longer, what = (before, "is missing") if len(before) > len(now) else (now, "is new")
    return f"'{longer[min(len(before), len(now))][0]}', which {what}"

"""Adapt zoopt (sequential RACOS) as a Searcher."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from muster.tune.search.dimensions import Dimension, flat_point
from muster.tune.search.library_searcher import LibrarySearcher, Proposal, check_options
from muster.tune.search.paths import unflattened
from muster.tune.search.random_stream import IsolatedRandom
from muster.tune.search.variant_generator import has_unresolved_values

_SMALLEST = 1e-10  # of a range: how finely a float without a step is searched
_LEAST_BUDGET = 4


class ZOOptSearch(LibrarySearcher):
    """Takes suggestions from zoopt (`pip install "muster-ml[zoopt]"`); no log scales.

    Args:
        algo: "asracos" or "sracos"; both run RACOS for one suggestion at a time.
        budget: How many trials there will be; it decides how many random ones come first.
        dim_dict: A search space, or zoopt's tuples by name; also as `space`, as in other searchers. Usually
            left to the Tuner's `param_space`.
        metric: The result key to optimize.
        mode: "min" or "max".
        points_to_evaluate: Configurations to begin with.
        parallel_num: How many suggestions may be unfinished once the random ones are back.
        kwargs: More for zoopt's Parameter; `seed` makes the suggestions repeatable.
    """

    library: ClassVar[str] = "zoopt"
    extra: ClassVar[str] = "zoopt"
    features = ("int", "choice", "step")

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        algo: str = "asracos",
        budget: int | None = None,
        dim_dict: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        parallel_num: int = 1,
        **kwargs: Any,  # noqa: ANN401 - zoopt's own
    ) -> None:
        super().__init__(metric, mode, points_to_evaluate)
        from zoopt import Parameter

        if algo.lower() not in ("asracos", "sracos"):
            raise ValueError(f"ZOOptSearch: there is no algorithm {algo!r}: use 'asracos' or 'sracos'")
        if budget is None or budget < _LEAST_BUDGET:
            raise ValueError(
                f"ZOOptSearch needs a `budget`, the number of trials, "
                f"of at least {_LEAST_BUDGET}, not {budget}"
            )
        self._budget, self._parallel = budget, parallel_num
        self._random = IsolatedRandom(kwargs.pop("seed", None))
        space = kwargs.pop("space", None)
        known = [*inspect.signature(Parameter).parameters]
        known = [name for name in known if name not in ("budget", "init_samples")]
        check_options("ZOOptSearch", kwargs, known, "zoopt takes")
        self._options = kwargs
        self._optimizer: Any = None
        self._precisions: list[int | None] = []
        self._begin(space if dim_dict is None else dim_dict, "dim_dict")

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any], join: bool = False) -> dict[str, Any]:
        """Return zoopt's tuples by flat name; with `join`, in the shape of `spec` with its constants."""
        from zoopt import ValueType

        dimensions = ZOOptSearch._converted(spec)
        parts = {
            name: (ValueType.GRID, list(one.options)) if one.kind == "choice" else _part(one)
            for name, one in dimensions.all.items()
        }
        return dimensions.joined(spec, parts) if join else parts

    def _is_native(self, space: Any) -> bool:  # noqa: ANN401
        is_open = has_unresolved_values(dict(space))
        return not is_open and all(isinstance(one, (tuple, list)) for one in space.values())

    def _start(self) -> None:
        from zoopt import Dimension2, Parameter
        from zoopt.algos.opt_algorithms.racos.sracos import SRacosTune
        from zoopt.utils.zoo_global import gl

        if self._dimensions is not None:
            parts = [_part(one) for one in self._dimensions.variable.values()]
        else:
            parts = list(self._space.values())
        parameter = Parameter(budget=self._budget, **self._options)
        parameter.set_negative_size(parameter.get_train_size() - parameter.get_positive_size())
        dimension = Dimension2(parts)
        self._precisions = list(gl.float_precisions)
        self._optimizer = SRacosTune(dimension=dimension, parameter=parameter, parallel_num=self._parallel)

    @contextmanager
    def _running(self) -> Iterator[Any]:
        """Set zoopt's one random stream and list of precisions per process to those of this searcher."""
        from zoopt.utils.zoo_global import gl

        others, gl.float_precisions = gl.float_precisions, self._precisions
        try:
            with self._random.active():
                yield self._optimizer
        finally:
            gl.float_precisions = others

    @property
    def _first(self) -> int:
        """Return how many random suggestions come first."""
        return int(self._optimizer._parameter.get_train_size())

    def _propose(self, point: dict[str, Any] | None) -> Proposal | str | None:
        with self._running() as inner:
            if point is not None:
                solution = self._adopted(point)
                return solution, self._suggestion(solution)
            is_full = inner.complete_num < self._first or inner.live_num >= self._parallel
            if inner.init_num >= self._first and is_full:
                return None
            if inner.init_num == self._first:
                # Left to itself it would wait here, for results that may be there already.
                inner.init_num += 1
            inner.semaphore = 1
            solution = inner.suggest()
            if solution is None or isinstance(solution, str):
                solution = self._any_other()
            return self.FINISHED if solution is None else (solution, self._suggestion(solution))

    def _any_other(self) -> Any:  # noqa: ANN401
        """Return a new random suggestion, where zoopt's region has none left; None: all were tried."""
        inner = self._optimizer
        known = inner._init_data + inner._positive_data + inner._negative_data
        solution, is_new = inner.distinct_sample(inner._objective.get_dim(), known)
        if not is_new:
            return None
        inner.live_num += 1
        inner.init_num += inner.init_num < self._first
        return solution

    def _adopted(self, point: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a user's point, as if zoopt had drawn it."""
        inner = self._optimizer
        solution = inner._objective.construct_solution(self._numbers(point))
        inner._init_data.append(solution)
        inner.live_num += 1
        inner.init_num += inner.init_num < self._first
        return solution

    def _numbers(self, point: Mapping[str, Any]) -> list[Any]:
        if self._dimensions is not None:
            return list(self._dimensions.values(point).values())
        flat = flat_point(point)
        missing = [name for name in self._space if name not in flat]
        if missing:
            raise ValueError(f"ZOOptSearch: the point {dict(point)!r} lacks {', '.join(missing)}")
        return [flat[name] for name in self._space]

    def _suggestion(self, solution: Any) -> dict[str, Any]:  # noqa: ANN401
        numbers = [one.item() if hasattr(one, "item") else one for one in solution.get_x()]
        if self._dimensions is None:
            return unflattened(dict(zip(self._space, numbers, strict=True)))
        return self._dimensions.suggestion(dict(zip(self._dimensions.variable, numbers, strict=True)))

    def _inform(self, handle: Any, loss: float) -> None:  # noqa: ANN401
        with self._running() as inner:
            inner.complete(handle, loss)

    def _abandon(self, handle: Any) -> None:  # noqa: ANN401
        self._inform(handle, float("inf"))  # the worst; without an answer zoopt would wait for it

    def _learn(self, point: dict[str, Any], loss: float) -> None:
        with self._running() as inner:
            inner.complete(self._adopted(point), loss)


def _part(one: Dimension) -> tuple[Any, ...]:
    from zoopt import ValueType

    if one.kind == "choice":
        return (ValueType.DISCRETE, [0, len(one.options) - 1], False)
    if one.kind == "int":
        return (ValueType.DISCRETE, [int(one.low), int(one.high)], True)
    return (ValueType.CONTINUOUS, [one.low, one.high], one.step or (one.high - one.low) * _SMALLEST)

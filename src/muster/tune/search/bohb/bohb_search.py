"""Adapts the model of BOHB by hpbandster as a Searcher, for HyperBandForBOHB."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

from muster.tune.search.dimensions import Dimension, flat_point
from muster.tune.search.library_searcher import LibrarySearcher, Proposal
from muster.tune.search.random_stream import IsolatedRandom

logger = logging.getLogger(__name__)
_library_logger = logging.getLogger(f"{__name__}.hpbandster")
_library_logger.setLevel(logging.ERROR)  # it warns of every infinite density, with all its data


class TuneBOHB(LibrarySearcher):
    """A TuneBOHB takes suggestions from hpbandster's BOHB (`pip install "muster-ml[bohb]"`, partly compiled).

    The model learns from results that carry a budget, which HyperBandForBOHB writes into them.

    Args:
        space: A search space, or a ConfigSpace.ConfigurationSpace. Usually left to the Tuner's `param_space`.
        bohb_config: More for hpbandster's BOHB, e.g. {"min_points_in_model": 8}.
        metric: The result key to optimise.
        mode: "min" or "max".
        points_to_evaluate: Configurations to begin with.
        seed: Makes the suggestions repeatable.
        max_concurrent: How many trials may run at a time, paused ones not counted; 0: any number.
    """

    library: ClassVar[str] = "hpbandster.optimizers.config_generators.bohb"
    extra: ClassVar[str] = "bohb"
    features = ("int", "choice", "log", "normal")

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        space: Any = None,  # noqa: ANN401
        bohb_config: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        max_concurrent: int = 0,
    ) -> None:
        super().__init__(metric, mode, points_to_evaluate)
        self._options, self._seed = dict(bohb_config or {}), seed
        self._random = IsolatedRandom(seed)
        self._max_concurrent = max_concurrent
        self._model: Any = None
        self._paused: dict[str, None] = {}
        self._last_budget: dict[str, float] = {}  # of a live trial, as the model knows it
        self._has_budgets: bool | None = None
        self._begin(space)

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Returns a ConfigSpace.ConfigurationSpace by flat name."""
        import ConfigSpace as Cs

        made = Cs.ConfigurationSpace()
        for name, one in TuneBOHB._converted(spec).all.items():
            is_choice = one.kind == "choice"
            made.add(
                Cs.CategoricalHyperparameter(name, choices=one.options) if is_choice else _hyperparameter(one)
            )
        return made

    def _is_native(self, space: Any) -> bool:  # noqa: ANN401
        import ConfigSpace

        return isinstance(space, ConfigSpace.ConfigurationSpace)

    def _start(self) -> None:
        from hpbandster.optimizers.config_generators.bohb import BOHB

        with self._running():
            self._model = BOHB(self._configuration_space(), **{"logger": _library_logger, **self._options})

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Lends hpbandster the global random stream it draws from, and silences its outdated calls."""
        with self._random.active(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def _configuration_space(self) -> Any:  # noqa: ANN401
        import ConfigSpace
        import numpy as np

        if self._dimensions is None:
            return self._space
        made = ConfigSpace.ConfigurationSpace(seed=int(np.random.randint(0, 2**31 - 1)))
        for one in self._dimensions.variable.values():
            made.add(_hyperparameter(one))
        return made

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self._max_concurrent = max_concurrent
        return True

    def _propose(self, point: dict[str, Any] | None) -> Proposal | None:
        if self._max_concurrent and len(self._live) - len(self._paused) >= self._max_concurrent:
            return None
        if point is not None:
            values = self._values(point)
        else:
            with self._running():
                found, _ = self._model.get_config(None)
            values = {
                name: value.item() if hasattr(value, "item") else value for name, value in dict(found).items()
            }
        return values, self._suggestion(values)

    def _values(self, point: Mapping[str, Any]) -> dict[str, Any]:
        if self._dimensions is not None:
            return dict(self._dimensions.values(point))
        flat = flat_point(point)
        return {name: flat[name] for name in self._space if name in flat}

    # Results.

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if trial_id not in self._live:
            return
        info = result.get("hyperband_info")
        found = info.get("budget") if isinstance(info, Mapping) else result.get("hyperband_info/budget")
        budget = None if found is None else float(found)
        if self._has_budgets is None:
            self._has_budgets = any(
                key == "hyperband_info" or key.startswith("hyperband_info/") for key in result
            )
            if not self._has_budgets:
                logger.warning(
                    "TuneBOHB: results carry no `hyperband_info`, so the model learns nothing and "
                    "suggestions stay random: use HyperBandForBOHB as the scheduler"
                )
        if budget is None or self._last_budget.get(trial_id) == budget:
            return
        self._last_budget[trial_id] = budget
        self._receive(self._live[trial_id][0], self._loss(result.get(str(self._metric))), budget)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if result:
            self.on_trial_result(trial_id, result)
        self._live.pop(trial_id, None)
        self._paused.pop(trial_id, None)
        self._last_budget.pop(trial_id, None)

    def on_pause(self, trial_id: str) -> None:
        """Frees the place of a paused trial."""
        if trial_id in self._live:
            self._paused[trial_id] = None

    def on_unpause(self, trial_id: str) -> None:
        self._paused.pop(trial_id, None)

    def _learn(self, point: dict[str, Any], loss: float) -> None:
        """Registers a point; without a budget it counts for the smallest, which any later model outranks."""
        self._receive(self._values(point), loss, 0.0)

    def _receive(self, values: Mapping[str, Any], loss: float | None, budget: float) -> None:
        result = None if loss is None else {"loss": loss}  # hpbandster counts None among the bad ones
        job = SimpleNamespace(
            id=None, exception=None, result=result, kwargs={"budget": budget, "config": dict(values)}
        )
        with self._running():
            self._model.new_result(job)


def _hyperparameter(one: Dimension) -> Any:  # noqa: ANN401
    import math

    import ConfigSpace as Cs

    if one.kind == "choice":
        return Cs.CategoricalHyperparameter(one.name, choices=list(range(len(one.options))))
    if one.kind == "int":
        return Cs.UniformIntegerHyperparameter(one.name, int(one.low), int(one.high), log=one.is_log)
    if one.mean is None:
        return Cs.UniformFloatHyperparameter(one.name, one.low, one.high, log=one.is_log)
    if math.isinf(one.low) or math.isinf(one.high):
        raise ValueError(
            f"TuneBOHB cannot search '{one.name}', a normal number without bounds: "
            "use uniform(), or Float(lower, upper).normal(mean, sd)"
        )
    return Cs.NormalFloatHyperparameter(one.name, one.mean, one.sd, lower=one.low, upper=one.high)

"""Adapt bayesian-optimization (Gaussian processes) as a Searcher."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from muster.tune.search.library_searcher import LibrarySearcher, Proposal
from muster.tune.search.space_tree import Feature
from muster.tune.search.variant_generator import has_unresolved_values

_ACQUISITIONS = {
    "ucb": ("UpperConfidenceBound", ("kappa",)),
    "ei": ("ExpectedImprovement", ("xi",)),
    "poi": ("ProbabilityOfImprovement", ("xi",)),
}
_KEYS = ("kind", "kappa", "xi", "kappa_decay", "kappa_decay_delay")


class Optimizer:
    """Maximizes over a box; it can be copied and pickled, its random stream included."""

    def __init__(
        self, bounds: Mapping[str, tuple[float, float]], utility: Mapping[str, Any], seed: int, verbose: int
    ) -> None:
        import bayes_opt

        _check(utility)
        self._utility: Any = None
        options: dict[str, Any] = {"allow_duplicate_points": True}
        if hasattr(bayes_opt, "acquisition"):
            options["acquisition_function"] = _acquisition(utility)
        else:  # version 1, which nevergrad asks for
            self._utility = bayes_opt.UtilityFunction(**utility)
        self._inner = bayes_opt.BayesianOptimization(
            f=None, pbounds=dict(bounds), random_state=seed, verbose=verbose, **options
        )

    def suggest(self) -> dict[str, float]:
        """Return a suggestion, which is random while nothing is registered."""
        found = self._inner.suggest(self._utility) if self._utility else self._inner.suggest()
        return {name: float(value) for name, value in found.items()}

    def random(self) -> dict[str, float]:
        space = self._inner.space
        found = space.array_to_params(space.random_sample())
        return {name: float(value) for name, value in found.items()}

    def register(self, values: Mapping[str, float], target: float) -> None:
        self._inner.register(params=dict(values), target=target)


def _check(utility: Mapping[str, Any]) -> None:
    for key in utility:
        if key not in _KEYS:
            raise ValueError(f"BayesOptSearch: utility_kwargs has {key!r}; it takes {', '.join(_KEYS)}")
    if utility.get("kind") not in _ACQUISITIONS:
        raise ValueError(
            f"BayesOptSearch: the kind in utility_kwargs is {utility.get('kind')!r}: "
            f"choose one of {', '.join(_ACQUISITIONS)}"
        )


def _acquisition(utility: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from bayes_opt import acquisition

    name, keys = _ACQUISITIONS[utility["kind"]]
    options = {key: utility[key] for key in keys if key in utility}
    if "kappa_decay" in utility:
        options["exploration_decay"] = utility["kappa_decay"]
    if "kappa_decay_delay" in utility:
        options["exploration_decay_delay"] = utility["kappa_decay_delay"]
    return getattr(acquisition, name)(**options)


logger = logging.getLogger(__name__)

_UTILITY = {"kind": "ucb", "kappa": 2.576, "xi": 0.0}
_MOST_REPEATS = 5  # with patience=None: then a random one is suggested instead
Values = dict[str, float]


class BayesOptSearch(LibrarySearcher):
    """Takes suggestions from bayesian-optimization (`pip install "muster-ml[bayesopt]"`).

    Args:
        space: A search space, or bounds by name, e.g. {"x": (0, 1)}. Usually left to the Tuner's
            `param_space`.
        metric: The result key to optimize.
        mode: "min" or "max".
        points_to_evaluate: Configurations to begin with.
        utility_kwargs: The acquisition function: `kind` ("ucb", "ei" or "poi"), `kappa`, `xi`.
        random_state: Makes the suggestions repeatable.
        random_search_steps: How many suggestions are random; their results reach the model together.
        verbose: Of the library; 0 is silent.
        patience: The search ends after a configuration came up more often than this; None: it continues with
            random ones.
        skip_duplicate: Do not suggest a configuration twice.
        analysis: An ExperimentAnalysis (or an experiment's directory) to learn from.
        repeat_float_precision: Digits after which two numbers are the same configuration.
    """

    library: ClassVar[str] = "bayes_opt"
    extra: ClassVar[str] = "bayesopt"
    features: ClassVar[Collection[Feature]] = frozenset[Feature]({"log"})

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any], join: bool = False) -> dict[str, Any]:
        """Return bounds by flat name; with `join`, in the shape of `spec` with its constants."""
        dimensions = BayesOptSearch._converted(spec)
        bounds = {name: (one.low, one.high) for name, one in dimensions.all.items()}
        return dimensions.joined(spec, bounds) if join else bounds

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int = 42,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int | None = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,  # noqa: ANN401 - an ExperimentAnalysis, trials, or a directory
        repeat_float_precision: int = 5,
    ) -> None:
        super().__init__(metric, mode, points_to_evaluate)
        self._precision = _checked_precision(repeat_float_precision)
        if patience is not None and patience <= 0:
            raise ValueError(f"BayesOptSearch: patience must be above 0, or None, not {patience}")
        self._utility, self._seed, self._verbose = dict(utility_kwargs or _UTILITY), random_state, verbose
        self._random_steps, self._patience, self._skips = random_search_steps, patience, skip_duplicate
        self._optimizer: Optimizer | None = None
        self._random_asked = 0
        self._random_received = 0
        self._worst: float | None = None
        self._block: list[tuple[Values, float | None]] = []
        self._seen: dict[tuple[float, ...], int] = {}  # how often a configuration has come up
        self._begin(space)
        if analysis is not None:
            if not self._metric:
                raise ValueError("BayesOptSearch: `analysis` needs `metric` and `mode` as well")
            self.add_evaluated_trials(analysis, str(self._metric))

    def _is_native(self, space: Any) -> bool:  # noqa: ANN401
        is_open = has_unresolved_values(dict(space))
        return not is_open and all(isinstance(one, (tuple, list)) and len(one) == 2 for one in space.values())

    def _bounds(self) -> dict[str, tuple[float, float]]:
        if self._dimensions is not None:
            return {
                name: (math.log(one.low), math.log(one.high)) if one.is_log else (one.low, one.high)
                for name, one in self._dimensions.variable.items()
            }
        return {name: (float(low), float(high)) for name, (low, high) in self._space.items()}

    def _logs(self) -> set[str]:
        """Return the variables that the model sees as exponents: it knows no log scale."""
        variables = self._dimensions.variable if self._dimensions else {}
        return {name for name, one in variables.items() if one.is_log}

    def _suggestion(self, values: Values) -> dict[str, Any]:
        logs = self._logs()
        return super()._suggestion(
            {name: math.exp(value) if name in logs else value for name, value in values.items()}
        )

    def _start(self) -> None:
        self._optimizer = Optimizer(self._bounds(), self._utility, self._seed, self._verbose)

    def _propose(self, point: dict[str, Any] | None) -> Proposal | str | None:
        is_random = self._random_received < self._random_steps
        if is_random and self._random_asked >= self._random_steps:
            return None  # the model begins when all of them are back
        found = self._new_values() if point is None else self._values(point)
        if found is None or isinstance(found, str):
            return found
        if point is not None:
            self._count(found)
        self._random_asked += is_random
        values: Values = found
        return (values, is_random), self._suggestion(values)

    def _new_values(self) -> Values | str | None:
        before = copy.deepcopy(self._optimizer)
        while True:  # ends, because every repetition is counted
            values = self._clipped(self._ready().suggest())
            if self._identity(values) not in self._seen:
                self._count(values)
                return values
            if self._live and self._skips:
                self._optimizer = before
                return None  # ask again when a result has changed the model; until then, no trace
            if self._count(values) > (self._patience or _MOST_REPEATS):
                return self._after_repetition()
            if not self._skips:
                return values

    def _after_repetition(self) -> Values | str:
        """Return a random suggestion or FINISHED, when the model repeats the same suggestion."""
        if self._patience is None:
            values = self._clipped(self._ready().random())
            self._count(values)
            return values
        logger.info(
            "BayesOptSearch: stopping early, because a configuration came up more than %d times; "
            "patience=None continues with random ones",
            self._patience,
        )
        return self.FINISHED

    def _count(self, values: Values) -> int:
        identity = self._identity(values)
        self._seen[identity] = self._seen.get(identity, 0) + 1
        return self._seen[identity]

    def _identity(self, values: Values) -> tuple[float, ...]:
        return tuple(round(values[name], self._precision) for name in sorted(values))

    def _ready(self) -> Optimizer:
        assert self._optimizer is not None
        return self._optimizer

    def _clipped(self, values: Values) -> Values:
        return {name: min(max(values[name], low), high) for name, (low, high) in self._bounds().items()}

    def _values(self, point: Mapping[str, Any]) -> Values:
        if self._dimensions is not None:
            logs = self._logs()
            found = self._dimensions.values(point)
            return {name: math.log(value) if name in logs else value for name, value in found.items()}
        missing = [name for name in self._bounds() if name not in point]
        if missing:
            raise ValueError(f"BayesOptSearch: the point {dict(point)!r} lacks {', '.join(missing)}")
        return {name: float(point[name]) for name in self._bounds()}

    def _inform(self, handle: tuple[Values, bool], loss: float) -> None:
        self._receive(handle, -loss)

    def _abandon(self, handle: tuple[Values, bool]) -> None:
        self._receive(handle, None)

    def _receive(self, handle: tuple[Values, bool], target: float | None) -> None:
        """Register results; random ones wait for each other, and failed ones count as results."""
        values, is_random = handle
        self._block.append((values, target))
        self._random_received += is_random
        if self._random_received >= self._random_steps:
            while self._block:
                self._register(*self._block.pop(0))

    def _register(self, values: Values, target: float | None) -> None:
        """Register a result; a failure counts as the worst so far, so that it is not suggested again."""
        if target is not None:
            self._worst = target if self._worst is None else min(self._worst, target)
        if self._worst is not None:
            self._ready().register(values, self._worst if target is None else target)

    def _learn(self, point: dict[str, Any], loss: float) -> None:
        values = self._values(point)
        self._register(values, -loss)
        self._count(values)


def _checked_precision(digits: Any) -> int:  # noqa: ANN401
    if isinstance(digits, bool) or not isinstance(digits, int):
        raise TypeError(f"BayesOptSearch: repeat_float_precision must be a whole number, not {digits!r}")
    if digits < 0:
        raise ValueError(f"BayesOptSearch: repeat_float_precision must not be negative, not {digits}")
    return digits

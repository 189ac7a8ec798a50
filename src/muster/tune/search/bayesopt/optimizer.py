"""The optimiser of bayesian-optimization, whose interface changed with version 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ACQUISITIONS = {
    "ucb": ("UpperConfidenceBound", ("kappa",)),
    "ei": ("ExpectedImprovement", ("xi",)),
    "poi": ("ProbabilityOfImprovement", ("xi",)),
}
_KEYS = ("kind", "kappa", "xi", "kappa_decay", "kappa_decay_delay")


class Optimizer:
    """Maximises over a box; as one object it can be copied and pickled, its random stream included."""

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
        """Random while nothing is registered."""
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

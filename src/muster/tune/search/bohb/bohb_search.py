"""Define TuneBOHB, TPESearch under Ray's name and with its parameters, for HyperBandForBOHB."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from muster.tune.search.sample import Float
from muster.tune.search.space import choice, lograndint, loguniform, randint, uniform
from muster.tune.search.space_tree import Dimensions
from muster.tune.search.tpe.tpe_search import TPESearch


class TuneBOHB(TPESearch):
    """A TPESearch with the parameters of Ray's class of this name.

    With a scheduler that has rungs, such as HyperBandForBOHB, the model learns from the values at the highest
    rung that each trial reached.

    Args:
        space: A search space, or a ConfigSpace.ConfigurationSpace without conditions. Usually left to the
            Tuner's `param_space`.
        bohb_config: Ignored with a warning: these are settings of hpbandster's model.
        metric: The result key to optimize, or several.
        mode: "min" or "max", or as many of them as there are metrics.
        points_to_evaluate: Configurations to begin with.
        seed: Makes the suggestions repeatable.
        max_concurrent: How many trials may run at a time, paused ones not included; 0 means any number.
    """

    _plain_attributes = (*TPESearch._plain_attributes, "_paused")

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
        if bohb_config:
            warnings.warn(
                f"TuneBOHB(bohb_config={dict(bohb_config)!r}): hpbandster's model is not used any more, so "
                "that its settings are ignored; leave them out",
                stacklevel=2,
            )
        self._max_concurrent = max_concurrent
        self._paused: dict[str, None] = {}
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a ConfigSpace.ConfigurationSpace by flat name; needs ConfigSpace."""
        import ConfigSpace as Cs

        made = Cs.ConfigurationSpace()
        for name, one in Dimensions("TuneBOHB", spec, features=("int", "choice", "log")).all.items():
            if one.kind == "choice":
                made.add(Cs.CategoricalHyperparameter(name, choices=one.options))
            elif one.kind == "int":
                made.add(Cs.UniformIntegerHyperparameter(name, int(one.low), int(one.high), log=one.is_log))
            else:
                made.add(Cs.UniformFloatHyperparameter(name, one.low, one.high, log=one.is_log))
        return made

    def _set_space(self, space: Any) -> None:  # noqa: ANN401
        super()._set_space(_read(space) if hasattr(space, "forbidden_clauses") else space)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self._max_concurrent = max_concurrent
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        is_full = self._max_concurrent and len(self._live) - len(self._paused) >= self._max_concurrent
        return None if is_full and trial_id not in self._live else super().suggest(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False, stopped: bool = False
    ) -> None:
        self._paused.pop(trial_id, None)
        super().on_trial_complete(trial_id, result, error, stopped)

    def on_pause(self, trial_id: str) -> None:
        """Free the place of a paused trial."""
        if trial_id in self._live:
            self._paused[trial_id] = None

    def on_unpause(self, trial_id: str) -> None:
        """Note that a paused trial runs again."""
        self._paused.pop(trial_id, None)


def _read(space: Any) -> dict[str, Any]:  # noqa: ANN401 - a ConfigSpace.ConfigurationSpace
    if space.conditions or space.forbidden_clauses:
        raise ValueError(
            "TuneBOHB cannot take a ConfigurationSpace with conditions or forbidden clauses: "
            "write domains inside the options of tune.choice()"
        )
    return {name: _domain(one) for name, one in space.items()}


def _domain(one: Any) -> Any:  # noqa: ANN401 - a hyperparameter of ConfigSpace
    kind = type(one).__name__
    if kind == "UniformFloatHyperparameter":
        return (loguniform if one.log else uniform)(one.lower, one.upper)
    if kind == "UniformIntegerHyperparameter":
        return (lograndint if one.log else randint)(one.lower, one.upper + 1)
    if kind == "NormalFloatHyperparameter":
        return Float(one.lower, one.upper).normal(one.mu, one.sigma)
    if kind in {"CategoricalHyperparameter", "OrdinalHyperparameter"}:
        return choice(list(one.choices if kind == "CategoricalHyperparameter" else one.sequence))
    if kind == "Constant":
        return one.value
    raise ValueError(f"TuneBOHB cannot take the {kind} '{one.name}': use a uniform number or a choice")

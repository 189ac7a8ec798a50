"""Stopper: the base class of everything that ends trials or an experiment early."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.tune.execution.plugin_state import PluginState

if TYPE_CHECKING:
    from muster.tune.stopper.combined import CombinedStopper

__all__ = ["CombinedStopper", "Stopper"]


class Stopper(PluginState):
    """Asked with every result of every trial; a trial's criteria are asked beside it.

    What a stock stopper saves is what it has seen, not its parameters: those come from the script, so a
    resumed experiment may be given more time or more iterations.
    """

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether this trial is to end."""
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Whether everything is to end; asked once per step of the controller."""
        raise NotImplementedError

    def _left_s(self) -> float:
        """Seconds until everything ends, where time decides."""
        return math.inf


def metric_of(stopper: Stopper, metric: str, result: Mapping[str, Any]) -> float:
    """The metric as a number, also from a nested result by its flat name (`a/b`)."""
    value: Any = result
    if metric in result:
        value = result[metric]
    else:
        for part in metric.split("/"):
            if not isinstance(value, Mapping) or part not in value:
                raise KeyError(
                    f"{type(stopper).__name__} needs the metric {metric!r} in every result; reported were: "
                    f"{', '.join(map(str, result))}"
                )
            value = value[part]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{type(stopper).__name__}: {metric} = {value!r} is not a number; report a float"
        ) from None


def __getattr__(name: str) -> object:  # Ray defines CombinedStopper here
    if name == "CombinedStopper":
        from muster.tune.stopper.combined import CombinedStopper

        return CombinedStopper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

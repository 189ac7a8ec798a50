"""Define Stopper, the base class of everything that ends trials or an experiment early."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from muster.errors import RestoreError
from muster.trials.model import Trial
from muster.tune.plugin_state import Plain, PluginState

__all__ = ["CombinedStopper", "Stopper"]


class Stopper(PluginState):
    """Called with every result of every trial, in addition to the trial's criteria.

    What a built-in stopper saves is what it has seen, not its parameters: those come from the script, so a
    resumed experiment may be given more time or more iterations.
    """

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether this trial is to end."""
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Return whether to stop the experiment; called once per step of the controller."""
        raise NotImplementedError

    def why(self, trial_id: str = "") -> str:
        """Return why it has just ended this trial, or without one the experiment, in words."""
        del trial_id
        return f"{type(self).__name__} returned True"

    def _left_s(self) -> float:
        """Return the seconds until the experiment ends, where time decides."""
        return math.inf


def metric_of(stopper: Stopper, metric: str, result: Mapping[str, Any]) -> float:
    """Return the metric as a number, also from a nested result by its flat name (`a/b`)."""
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


class CombinedStopper(Stopper):
    """Asks stoppers in order up to the first True: later ones do not see that result."""

    _state_kind = "combined"

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise ValueError(
                    f"CombinedStopper: {stopper!r} is not a Stopper; wrap functions in FunctionStopper"
                )
        self._stoppers = stoppers
        self._last: Stopper | None = None  # that returned True

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._last = next((one for one in self._stoppers if one(trial_id, result)), None)
        return self._last is not None

    def stop_all(self) -> bool:
        self._last = next((one for one in self._stoppers if one.stop_all()), None)
        return self._last is not None

    def why(self, trial_id: str = "") -> str:
        return super().why() if self._last is None else self._last.why(trial_id)

    def _left_s(self) -> float:
        return min((stopper._left_s() for stopper in self._stoppers), default=math.inf)

    def _to_plain(self) -> Plain:
        states = [base64.b64encode(stopper.save_state()).decode() for stopper in self._stoppers]
        return {"stoppers": states}

    def restore_state(self, state: bytes, trials: Mapping[str, Trial] | None = None) -> None:
        if not self._saves_plain_data:
            super().restore_state(state, trials)
            return
        saved = self._checked(state)["stoppers"]
        if len(saved) != len(self._stoppers):
            raise RestoreError(
                f"CombinedStopper: {len(saved)} stoppers were saved, now there are {len(self._stoppers)}",
                fix="pass the same ones in the same order",
            )
        for stopper, one in zip(self._stoppers, saved, strict=True):
            stopper.restore_state(base64.b64decode(one), trials)

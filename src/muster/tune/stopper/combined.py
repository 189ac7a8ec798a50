"""CombinedStopper: several stoppers, any of which may stop."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from muster.errors import RestoreError
from muster.trials.model import Trial
from muster.tune.execution.plugin_state import Plain
from muster.tune.stopper.stopper import Stopper


class CombinedStopper(Stopper):
    """Asks in order and stops asking at the first True: later ones do not see that result."""

    _state_kind = "combined"

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise ValueError(
                    f"CombinedStopper: {stopper!r} is no Stopper; wrap functions in FunctionStopper"
                )
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return any(stopper(trial_id, result) for stopper in self._stoppers)

    def stop_all(self) -> bool:
        return any(stopper.stop_all() for stopper in self._stoppers)

    def _left_s(self) -> float:
        return min((stopper._left_s() for stopper in self._stoppers), default=math.inf)

    def _to_plain(self) -> Plain:
        states = [base64.b64encode(stopper.save_state()).decode() for stopper in self._stoppers]
        return {"stoppers": states}

    def restore_state(self, state: bytes, trials: Mapping[str, Trial] | None = None) -> None:
        if not self._is_stock:
            super().restore_state(state, trials)
            return
        saved = self._checked(state)["stoppers"]
        if len(saved) != len(self._stoppers):
            raise RestoreError(
                f"CombinedStopper: {len(saved)} stoppers were saved, now there are {len(self._stoppers)}; "
                "pass the same ones in the same order"
            )
        for stopper, one in zip(self._stoppers, saved, strict=True):
            stopper.restore_state(base64.b64decode(one), trials)

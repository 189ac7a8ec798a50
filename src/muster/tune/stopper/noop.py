"""Define a stopper that never stops anything."""

from __future__ import annotations

from typing import Any

from muster.tune.stopper.stopper import Stopper


class NoopStopper(Stopper):
    """Stops nothing, where a stopper is required."""

    _state_kind = "noop"

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False

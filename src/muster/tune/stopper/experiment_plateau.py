"""End the experiment when the best results no longer change."""

from __future__ import annotations

import math
from bisect import insort
from typing import Any

from muster.tune.config import is_int
from muster.tune.plugin_state import Plain, refuse
from muster.tune.stopper.stopper import Stopper, metric_of
from muster.tune.stopper.trial_plateau import spread


class ExperimentPlateauStopper(Stopper):
    """Stops the experiment when the `top` best values differ by at most `std`.

    The plateau must hold for `patience` results in a row (0 is the same as 1).

    Args:
        metric: The metric.
        std: The largest standard deviation of a plateau.
        top: Number of best values to compare.
        mode: "min" or "max".
        patience: How many results in a row the plateau must hold.
    """

    _state_kind = "experiment_plateau"

    def __init__(
        self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0
    ) -> None:
        refuse(
            "ExperimentPlateauStopper",
            (mode not in ("min", "max"), f"mode is {mode!r}; it must be 'min' or 'max'"),
            (not is_int(top) or top <= 1, f"top is {top!r}; it must be a whole number above 1"),
            (not is_int(patience) or patience < 0, f"patience is {patience!r}; it must be 0 or more"),
            (
                isinstance(std, bool) or not isinstance(std, (int, float)) or not std > 0,
                f"std is {std!r}; it must be a number above 0",
            ),
        )
        self._metric, self._std, self._top, self._mode, self._patience = metric, std, top, mode, patience
        self._best: list[float] = []  # best first, signed so that smaller is better
        self._plateau_results = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = metric_of(self, self._metric, result)
        if not math.isnan(value):  # it is not among the best
            insort(self._best, value if self._mode == "min" else -value)
            del self._best[self._top :]
        self._plateau_results = self._plateau_results + 1 if self.has_plateaued() else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._plateau_results >= max(1, self._patience)

    def why(self, trial_id: str = "") -> str:
        return f"the best {self._top} values of {self._metric} spread by no more than {self._std:g}"

    def has_plateaued(self) -> bool:
        """Return whether the best values are close enough together; patience is not counted here."""
        return len(self._best) == self._top and spread(self._best) <= self._std

    def _to_plain(self) -> Plain:
        about = [self._metric, self._mode]
        return {"about": about, "best": self._best, "plateau_results": self._plateau_results}

    def _from_plain(self, state: Plain) -> None:
        if state["about"] == [self._metric, self._mode]:  # values of another metric have no meaning
            self._best, self._plateau_results = state["best"][: self._top], state["plateau_results"]

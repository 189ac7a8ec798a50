"""What HyperBandScheduler was built with, checked, and the table of brackets that follows from it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class HyperBandParameters(NamedTuple):
    """Plain data that is saved with the scheduler's state."""

    time_attr: str
    max_t: float
    reduction_factor: float
    stop_last_trials: bool

    def check(self, component: str) -> HyperBandParameters:
        """Itself, with plain numbers; ValueError names the parameter to change."""
        eta = self.reduction_factor
        faults = (
            (not 1 <= self.max_t < math.inf, f"max_t is {self.max_t}; it must be at least 1, e.g. 81"),
            (not 1 < eta < math.inf, f"reduction_factor is {eta}; it must be greater than 1, e.g. 3"),
        )
        for is_wrong, message in faults:
            if is_wrong:
                raise ValueError(f"{component}: {message}")
        return self._replace(
            max_t=_plain(self.max_t),
            reduction_factor=_plain(eta),
            stop_last_trials=bool(self.stop_last_trials),
        )

    @property
    def brackets_per_band(self) -> int:
        return round(math.log(self.max_t) / math.log(self.reduction_factor)) + 1

    def first_rung(self, s: int) -> tuple[int, int]:
        """How many trials a bracket with `s` halvings begins with, and their first milestone (0: none)."""
        power = self.reduction_factor**s
        return math.ceil(self.brackets_per_band * power / (s + 1)), int(self.max_t / power)

    def next_rung(self, n: int, milestone: int) -> tuple[int, int]:
        eta = self.reduction_factor
        return math.ceil(n / eta), int(min(milestone * eta, self.max_t))

    def total_time(self, s: int) -> float:
        """What a full bracket spends in all, roughly: the measure of how far it has come."""
        n, first = self.first_rung(s)
        total, milestone = 0, first
        for _ in range(s + 1):
            total += n * milestone
            n = math.ceil(n / self.reduction_factor)
            milestone = int(min(milestone * self.reduction_factor, self.max_t - first))
        return total


def _plain(value: Any) -> float:  # noqa: ANN401 - numpy scalars are welcome, but cannot be saved as they are
    return value if type(value) in (int, float) else float(value)

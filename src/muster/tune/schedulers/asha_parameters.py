"""What AsyncHyperBandScheduler was built with, checked; plain data that is saved with its state."""

from __future__ import annotations

from typing import Any, NamedTuple

TYPES = ("stopping", "promotion")


class AshaParameters(NamedTuple):
    time_attr: str
    max_t: float
    grace_period: float
    reduction_factor: float
    brackets: int
    stop_last_trials: bool
    type: str
    seed: int | None

    def check(self, component: str) -> AshaParameters:
        """Itself, with plain numbers; ValueError names the parameter to change."""
        faults = (
            (self.max_t <= 0, f"max_t is {self.max_t}; it must be greater than 0"),
            (self.grace_period <= 0, f"grace_period is {self.grace_period}; it must be greater than 0"),
            (
                self.max_t < self.grace_period,
                f"grace_period ({self.grace_period}) must not be greater than max_t ({self.max_t})",
            ),
            (
                self.reduction_factor <= 1,
                f"reduction_factor is {self.reduction_factor}; it must be greater than 1, e.g. 4",
            ),
            (self.brackets <= 0, f"brackets is {self.brackets}; it must be at least 1"),
            (self.type not in TYPES, f"type is {self.type!r}; it must be one of {', '.join(TYPES)}"),
        )
        for is_wrong, message in faults:
            if is_wrong:
                raise ValueError(f"{component}: {message}")
        return self._replace(
            max_t=_plain(self.max_t),
            grace_period=_plain(self.grace_period),
            reduction_factor=_plain(self.reduction_factor),
            brackets=int(self.brackets),
            stop_last_trials=bool(self.stop_last_trials),
        )


def _plain(value: Any) -> float:  # noqa: ANN401 - numpy scalars are welcome, but cannot be saved as they are
    return value if type(value) in (int, float) else float(value)

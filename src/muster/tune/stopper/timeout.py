"""End the experiment after a time budget."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from muster.base.clock import Clock, SystemClock
from muster.tune.plugin_state import Plain
from muster.tune.stopper.stopper import Stopper

logger = logging.getLogger(__name__)


class TimeoutStopper(Stopper):
    """Stops the experiment once `timeout` has passed between calls of `stop_all`.

    Time without calls does not count: the experiment was down. That also holds after unpickling.
    The clock has a default because users make this object themselves.
    """

    _state_kind = "timeout"
    _plain_attributes = ("_spent_s",)

    def __init__(self, timeout: float | timedelta, *, clock: Clock | None = None) -> None:
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise ValueError(f"TimeoutStopper: timeout is {timeout!r}; pass seconds or a datetime.timedelta")
        self._timeout_s = timeout
        self._spent_s = 0.0
        self._clock: Clock = clock or SystemClock()
        self._last_check: float | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        now = self._clock.monotonic()
        was_over = self._spent_s >= self._timeout_s
        if self._last_check is not None:
            self._spent_s += now - self._last_check
        self._last_check = now
        is_over = self._spent_s >= self._timeout_s
        if is_over and not was_over:
            logger.info("the time budget of %g s is used up: stopping all trials", self._timeout_s)
        return is_over

    def why(self, trial_id: str = "") -> str:
        return f"the time budget of {self._timeout_s:g} s is used up"

    def _left_s(self) -> float:
        since = 0.0 if self._last_check is None else self._clock.monotonic() - self._last_check
        return max(0.0, self._timeout_s - self._spent_s - since)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last_check": None}

    def _from_plain(self, state: Plain) -> None:
        super()._from_plain(state)
        self._last_check = None

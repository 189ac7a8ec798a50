"""Dates in names, and a warning about a piece of code that takes long."""

from __future__ import annotations

import logging
from types import TracebackType

from muster.base.clock import SystemClock
from muster.tune.naming import dated

logger = logging.getLogger(__name__)


def date_str() -> str:
    """Now, as it stands in the names of experiments: `2026-11-16_02-10-00`."""
    return dated(SystemClock().now())


class warn_if_slow:
    """Logs a warning when the block takes longer than `threshold` seconds (0.5).

    Example:
        >>> with warn_if_slow("loading"):
        ...     pass
    """

    DEFAULT_THRESHOLD = 0.5
    DEFAULT_MESSAGE = "{name} took {duration:.3f} s; that may slow down the experiment"

    def __init__(
        self, name: str, threshold: float | None = None, message: str | None = None, disable: bool = False
    ) -> None:
        """`message` may use {name} and {duration}."""
        self.name, self.disable = name, disable
        self.threshold = self.DEFAULT_THRESHOLD if threshold is None else threshold
        self.message = message or self.DEFAULT_MESSAGE
        self._clock = SystemClock()
        self._began_at = 0.0

    def __enter__(self) -> warn_if_slow:
        self._began_at = self._clock.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took_s = self._clock.monotonic() - self._began_at
        if took_s > self.threshold and not self.disable:
            logger.warning("%s", self.message.format(name=self.name, duration=took_s))

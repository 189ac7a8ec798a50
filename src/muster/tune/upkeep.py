"""Upkeep: now and then, tells the person what went wrong in the background (log files, uploads)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from muster.base.clock import Clock
from muster.tune.callback import Callback

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.reporting.reporter import Reporter

EVERY_S = 5.0


class Troubled(Protocol):
    """Works in the background and remembers what failed."""

    def take_problems(self) -> tuple[str, ...]: ...


class Upkeep(Callback):
    """Asks the background workers for their problems; a problem is shown once, then every ten minutes."""

    AGAIN_S = 600.0

    def __init__(self, sources: Sequence[Troubled], reporter: Reporter, clock: Clock) -> None:
        self._sources, self._reporter, self._clock = tuple(sources), reporter, clock
        self._due_at = clock.monotonic() + EVERY_S
        self._shown: dict[str, float] = {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        now = self._clock.monotonic()
        if now >= self._due_at:
            self._due_at = now + EVERY_S
            self._tell(now)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        self._tell(self._clock.monotonic())

    def _tell(self, now: float) -> None:
        for source in self._sources:
            for problem in source.take_problems():
                key = problem.partition(" (failure")[0]
                if now - self._shown.get(key, float("-inf")) >= self.AGAIN_S:
                    self._shown[key] = now
                    self._reporter.note(f"warning: {problem}")

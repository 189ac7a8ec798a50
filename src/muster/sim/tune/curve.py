"""Curve: what a simulated trial does. Problems and recorded traces are curves; the engine asks them.

Pure: equal configs and iterations give equal answers, so a run can be repeated and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]
Metrics = Mapping[str, Any]
Report = Callable[[Config, int], Metrics]  # config, iteration (1 is the first) -> metrics


class Curve:
    """Subclasses say `metrics`; those whose past matters (their config may change) say `begin`, `advance`."""

    def iterations(self, config: Config) -> int | None:
        """After so many reports the trial's code returns; None: it never does."""
        return None

    def seconds(self, config: Config, iteration: int) -> float:
        """How long this iteration takes."""
        return 1.0

    def metrics(self, config: Config, iteration: int) -> Metrics:
        """What is reported at its end. An exception is the trial's own error."""
        raise NotImplementedError

    def begin(self, config: Config) -> Any:  # noqa: ANN401 - the curve's own; plain data, as it is saved
        """What a trial without a checkpoint knows; part of every checkpoint from then on."""
        return None

    def advance(self, config: Config, iteration: int, memory: Any) -> tuple[Metrics, Any]:  # noqa: ANN401
        """`metrics`, for a trial that remembers `memory`, and what it remembers afterwards."""
        return self.metrics(config, iteration), memory


class FunctionCurve(Curve):
    """A function of config and iteration, with the same duration for every iteration or one per config."""

    def __init__(
        self,
        report: Report,
        *,
        seconds: float | Callable[[Config, int], float] = 1.0,
        iterations: int | Callable[[Config], int | None] | None = None,
    ) -> None:
        self._report = report
        self._seconds = seconds
        self._iterations = iterations

    def iterations(self, config: Config) -> int | None:
        return self._iterations(config) if callable(self._iterations) else self._iterations

    def seconds(self, config: Config, iteration: int) -> float:
        return self._seconds(config, iteration) if callable(self._seconds) else self._seconds

    def metrics(self, config: Config, iteration: int) -> Metrics:
        return self._report(config, iteration)


def as_curve(given: Curve | Report) -> Curve:
    """A plain function becomes a curve of one second per iteration that never ends by itself."""
    return given if isinstance(given, Curve) else FunctionCurve(given)

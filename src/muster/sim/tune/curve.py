"""Defines what a simulated trial does. Problems and recorded traces are curves; the engine calls them.

Pure: equal configs and iterations give equal answers, so a run can be repeated and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]
Metrics = Mapping[str, Any]
Report = Callable[[Config, int], Metrics]  # config, iteration (1 is the first) -> metrics


class Curve:
    """A Curve defines `metrics`; one whose past matters also defines `begin` and `advance`."""

    def iterations(self, config: Config) -> int | None:
        """Returns after how many reports the trial's code returns; None: never."""
        return None

    def seconds(self, config: Config, iteration: int) -> float:
        """Returns how long this iteration takes."""
        return 1.0

    def metrics(self, config: Config, iteration: int) -> Metrics:
        """Returns what is reported at the end of the iteration. An exception is the trial's own error."""
        raise NotImplementedError

    def begin(self, config: Config) -> Any:  # noqa: ANN401 - the curve's own; plain data, as it is saved
        """Returns the initial memory of a trial without a checkpoint; checkpoints contain the memory."""
        return None

    def advance(self, config: Config, iteration: int, memory: Any) -> tuple[Metrics, Any]:  # noqa: ANN401
        """Returns `metrics` for a trial with this memory, and the memory afterwards."""
        return self.metrics(config, iteration), memory


class FunctionCurve(Curve):
    """A FunctionCurve calls a function of config and iteration, with a fixed or computed duration."""

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
    """Turns a plain function into a curve of one second per iteration that never ends by itself."""
    return given if isinstance(given, Curve) else FunctionCurve(given)

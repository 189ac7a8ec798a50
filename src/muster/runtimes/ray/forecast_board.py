"""Carries forecasts of tuners to the monitor through the cluster's key-value store.

The driver of a RayEngine writes with a ForecastWriter, one entry for each experiment; a GcsForecastBoard is
the monitor's ForecastSource. Neither decides anything; whether a forecast still holds is the reader's to say.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.codec import decode, encode
from muster.base.forecast import Forecast
from muster.base.text import shortened
from muster.cluster.ports import ForecastReport
from muster.cluster.snapshot import Quarantined
from muster.runtimes.ray.client import GcsClient

SPACE = "__muster"
PREFIX = "forecast/"
KEPT_S = 3600.0  # a tuner that died leaves its entry, which nobody uses once it is stale
RENEWED = 1 / 3  # of the time for which a forecast holds


class ForecastWriter:
    """A ForecastWriter writes when a forecast says something new, and before the last one gets stale."""

    def __init__(self, client: GcsClient) -> None:
        self._client = client
        self._written: Forecast | None = None
        self._generation = 0

    def write(self, forecast: Forecast) -> None:
        """Writes the forecast if necessary; raises an EngineError when the GCS is away."""
        last = self._written
        is_same = last is not None and _timeless(forecast) == _timeless(last)
        is_known = is_same and self._generation == self._client.generation
        if is_known and last is not None and 0 <= forecast.at - last.at < forecast.valid_s * RENEWED:
            return
        self._client.kv_put(_key(forecast.experiment), encode(forecast), SPACE)
        self._written, self._generation = forecast, self._client.generation


class GcsForecastBoard:
    """A GcsForecastBoard reads all forecasts at once; raises an EngineError without a GCS."""

    def __init__(self, client: GcsClient, clock: Clock | None = None) -> None:
        self._client, self._clock = client, clock or SystemClock()
        self.has_any = False  # at the last look

    def read(self) -> ForecastReport:
        """Returns every entry, also stale ones; those that are stale for long are deleted."""
        forecasts: list[Forecast] = []
        damaged: list[Quarantined] = []
        for key, value in sorted(self._client.kv_with_prefix(PREFIX, SPACE).items()):
            name = key.removeprefix(PREFIX)
            try:
                forecast = decode(value, Forecast)
                if forecast.experiment != name:
                    raise ValueError(f"it is of {shortened(forecast.experiment, 60)}")
            except (msgspec.DecodeError, ValueError, KeyError) as error:
                text = f"{shortened(str(error), 200)}: ignored"
                damaged.append(Quarantined(source=f"forecast {shortened(name, 60)}", message=text))
                continue
            kept_s = KEPT_S if forecast.trials or forecast.coming else 0.0  # nothing: the experiment is over
            if self._clock.now() - forecast.at > kept_s + forecast.valid_s:
                self._client.kv_delete(key, SPACE)
            else:
                forecasts.append(forecast)
        self.has_any = bool(forecasts)
        return ForecastReport(forecasts=tuple(forecasts), damaged=tuple(damaged))


def _key(experiment: str) -> str:
    return f"{PREFIX}{experiment}"


def _timeless(forecast: Forecast) -> Forecast:
    """Returns the forecast without what moves with the clock alone."""
    trials = tuple(
        replace(trial, unsaved_s=0.0, rest_s=None if trial.rest_s is None else _coarse(trial.rest_s))
        for trial in forecast.trials
    )
    return replace(forecast, at=0.0, trials=trials)


def _coarse(seconds: float) -> float:
    """Rounds so that a rest which only went by with the clock is the same for some seconds."""
    return math.ceil(seconds / 15.0)

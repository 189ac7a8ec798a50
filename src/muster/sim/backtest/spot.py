"""Models pools of spot machines by recorded series of how many could be had; read from a file.

A pool is a node type in a zone. When its series falls, the newest machines above the new number are taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.base.rng import Seed
from muster.errors import ConfigError

MANY = 32  # machines of a pool whose series knows only "some" and "none"
TAKEN_WITHIN_S = 180.0
NOTICE_S = 120.0
WITHOUT_NOTICE = 0.1  # of the machines that are taken


@dataclass(frozen=True)
class PoolSeries:
    """A PoolSeries is how many machines there were, as runs of (machines, seconds)."""

    runs: tuple[tuple[int, float], ...]

    @property
    def length_s(self) -> float:
        return sum(length for _, length in self.runs)

    def at(self, time_s: float) -> tuple[int, float]:
        """Returns how many there are then, and for how many seconds; the series begins again at its end."""
        left = time_s % self.length_s
        for machines, length in self.runs:
            if left < length:
                return machines, length - left
            left -= length
        return self.runs[0]  # by rounding


class SpotPools:
    """SpotPools gives every pool a series, always the same, and a start in it by the seed."""

    def __init__(self, series: tuple[PoolSeries, ...], seed: Seed) -> None:
        self._series, self._seed = series, seed

    def level(self, pool: str, time_s: float) -> tuple[int, float]:
        """Returns how many machines the pool has at this time, and for how long."""
        chosen = Seed(0).derive(f"spot.{pool}").choice(self._series)
        offset_s = self._seed.derive(f"spot.start.{pool}").uniform(0.0, chosen.length_s)
        return chosen.at(offset_s + time_s)


def read_spot(path: Path) -> tuple[PoolSeries, ...]:
    """Reads a file of series: {"series": [{"step_s": 60, "runs": [[machines, steps], ...]}, ...]}."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", file=str(path), fix="name a file of spot series"
        ) from None
    except ValueError as error:
        raise ConfigError(f"is not JSON ({error})", file=str(path), fix='write {"series": [...]}') from None
    series = data.get("series") if isinstance(data, Mapping) else None
    if not isinstance(series, list) or not series:
        raise ConfigError('has no "series": a list of {"step_s", "runs"}', file=str(path), fix="add it")
    return tuple(_series(entry, f"series[{position}]", str(path)) for position, entry in enumerate(series))


def _series(entry: object, where: str, file: str) -> PoolSeries:
    step_s = entry.get("step_s") if isinstance(entry, Mapping) else None
    runs = entry.get("runs") if isinstance(entry, Mapping) else None
    if not isinstance(step_s, int | float) or not _is_number(step_s) or step_s <= 0:
        raise ConfigError("step_s is not a number of seconds", path=where, file=file, fix="write one above 0")
    if not isinstance(runs, list) or not runs or not all(map(_is_run, runs)):
        raise ConfigError(
            "runs is not a list of [machines, steps]",
            path=where,
            file=file,
            fix="write numbers, steps above 0",
        )
    most = max(machines for machines, _ in runs)
    times = MANY if most <= 1 else 2
    return PoolSeries(tuple((int(machines * times), float(steps * step_s)) for machines, steps in runs))


def _is_run(run: object) -> bool:
    return (
        isinstance(run, list) and len(run) == 2 and all(map(_is_number, run)) and run[0] >= 0 and run[1] > 0
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

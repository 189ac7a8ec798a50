"""Defines what a reporter shows at one moment, as data; PeriodicReporter makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from muster.tune.reporting.reporter import RunInfo
from muster.tune.reporting.tables import ALL_UP_TO, PER_STATUS, chosen
from muster.tune.reporting.tally import ExperimentTally, FailureLine, ScoreRank

if TYPE_CHECKING:
    from muster.trials.model import Trial


@dataclass(frozen=True, kw_only=True)
class ExperimentSnapshot:
    """An ExperimentSnapshot is one moment of an experiment."""

    info: RunInfo
    now: float  # wall clock
    elapsed_s: float
    counts: Mapping[str, int]
    running: Sequence[Trial]
    best: Sequence[ScoreRank]  # the best first
    best_value: float | None
    recent: Sequence[Trial]  # finished, the latest first
    pending: Sequence[Trial]
    paused: Sequence[Trial]
    failures: Sequence[FailureLine]  # the latest last
    causes: Sequence[tuple[str, int]] = ()  # why trials failed in the end, and how many; only at the end
    used: Mapping[str, float]
    per_second: float | None = None
    eta_s: float | None = None

    @property
    def finished(self) -> int:
        return self.counts["TERMINATED"] + self.counts["ERROR"]

    @property
    def best_trial(self) -> Trial | None:
        return self.best[0].trial if self.best else None


def rows_of(snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> tuple[list[Trial], str]:
    """Returns all trials when they are few, else some of each status, the best and latest first."""
    if len(trials) <= ALL_UP_TO:
        return chosen(trials, snapshot.counts, ALL_UP_TO)
    best = [each.trial for each in snapshot.best if each.trial.status == "TERMINATED"]
    candidates = [
        *islice(snapshot.running, PER_STATUS),
        *best,
        *snapshot.recent,
        *islice(snapshot.paused, PER_STATUS),
        *snapshot.pending,
    ]
    return chosen(dict.fromkeys(candidates), snapshot.counts, PER_STATUS)


def waiting(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Returns some pending trials: new ones are at the end of the list, so the rest is not searched."""
    found = [trial for trial in islice(reversed(trials), 4 * count) if trial.status == "PENDING"]
    return found[: -count - 1 : -1]


def best_of(tally: ExperimentTally, count: int) -> tuple[list[ScoreRank], float | None]:
    ranked = tally.ranked(count)
    return ranked, tally.value(ranked[0]) if ranked else None

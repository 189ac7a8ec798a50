"""One rung of promotion-type ASHA: who is among its best 1/eta, and who of them waits to go on.

O(log n) per score and per choice. Called by PromotionRule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from heapq import heappop, heappush

from muster.trials.model import Trial
from muster.trials.states import TrialState

Rank = tuple[float, int]  # smaller is better: the score turned round (NaN as the worst), then who came first
Lookup = Callable[[str], Trial | None]


class PromotionRung:
    """Scores at one milestone. Failed and finished trials stay in: they were part of the comparison."""

    def __init__(self, milestone: float, eta: float) -> None:
        self.milestone = milestone
        self.scores: dict[str, float] = {}
        self._eta = eta
        self._ranks: dict[str, Rank] = {}
        self._top: list[Rank] = []  # ranks negated: the worst of the best comes first
        self._rest: list[Rank] = []
        self._waiting: list[tuple[Rank, str]] = []  # told to pause; may hold trials that have gone on since

    def record(self, trial_id: str, score: float) -> None:
        rank = (math.inf if math.isnan(score) else -score, len(self.scores))
        self.scores[trial_id] = score
        self._ranks[trial_id] = rank
        if self._top and rank < _negated(self._top[0]):
            heappush(self._top, _negated(rank))
        else:
            heappush(self._rest, rank)
        wanted = int(len(self.scores) / self._eta)
        while len(self._top) < wanted:
            heappush(self._top, _negated(heappop(self._rest)))
        while len(self._top) > wanted:
            heappush(self._rest, _negated(heappop(self._top)))

    def rank(self, trial_id: str) -> Rank:
        return self._ranks[trial_id]

    def is_promotable(self, trial_id: str) -> bool:
        """Among the best 1/eta of those seen here; NaN never is."""
        is_top = bool(self._top) and self._ranks[trial_id] <= _negated(self._top[0])
        return is_top and not math.isnan(self.scores[trial_id])

    def wait(self, trial_id: str) -> None:
        heappush(self._waiting, (self._ranks[trial_id], trial_id))

    @property
    def cutoff(self) -> float | None:
        """The score of the worst that may go on."""
        return self._top[0][0] if self._top else None

    def best_waiting(self, lookup: Lookup, waits_at: MutableMapping[str, PromotionRung]) -> Trial | None:
        """The best trial that rests here and may go on; `waits_at` says who still waits, and is kept true."""
        leaving, found = [], None
        while self._waiting and self.is_promotable(self._waiting[0][1]):
            entry = self._waiting[0]
            trial = lookup(entry[1]) if waits_at.get(entry[1]) is self else None
            if trial is not None and is_resting(trial):
                found = trial
                break
            heappop(self._waiting)
            if trial is not None and trial.status in ("RUNNING", "PAUSED"):
                leaving.append(entry)  # its checkpoint is being written, or its process ends
            elif waits_at.get(entry[1]) is self:
                del waits_at[entry[1]]
        for entry in leaving:
            heappush(self._waiting, entry)
        return found


def is_resting(trial: Trial) -> bool:
    """Paused, and without a process: it can be started now."""
    return trial.status == "PAUSED" and getattr(trial, "state", None) is not TrialState.STOPPING


def _negated(rank: Rank) -> Rank:
    return (-rank[0], -rank[1])

"""Orders the results of trials with several objectives: at a rung of ASHA, and in a bracket of HyperBand."""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableMapping
from typing import Any

from muster.base.text import counted
from muster.trials.metrics import in_words
from muster.trials.model import Trial
from muster.tune.pareto import ParetoOrder
from muster.tune.schedulers.asha_promotion import Lookup, Rank, Score, Shown, is_resting

Scores = tuple[
    tuple[float, ...], tuple[float, ...]
]  # objectives, larger is better; violations of constraints


def best_first(scores: Iterable[Score]) -> list[int]:
    """Return the places of all scores; a NaN is the score of a trial that reported nothing."""
    order = ParetoOrder()
    for score in scores:
        objectives, excesses = score if isinstance(score, tuple) else ((score,), ())
        order.add(objectives, sum(excesses))
    return [*order.best_first()]


class ParetoRung:
    """Results at one milestone, those of failed and finished trials included."""

    def __init__(self, milestone: float, eta: float) -> None:
        self.milestone = milestone
        self.scores: dict[str, Scores] = {}
        self._eta = eta
        self._order = ParetoOrder()
        self._ids: list[str] = []  # by number
        self._numbers: dict[str, int] = {}
        self._waiting: dict[int, str] = {}  # asked to pause; some may run again

    def record(self, trial_id: str, score: Scores) -> None:
        self.scores[trial_id] = score
        self._numbers[trial_id] = self._order.add(score[0], sum(score[1]))
        self._ids.append(trial_id)

    def stops(self, trial_id: str, score: Scores) -> bool:
        """Record a result; return whether its trial stops: NaN, or not among the best 1/eta."""
        self.record(trial_id, score)
        count = len(self.scores)
        is_worse = count > 1 and self._order.place(count - 1) > count / self._eta
        return is_worse or not self.is_comparable(trial_id)

    def is_comparable(self, trial_id: str) -> bool:
        return not any(map(math.isnan, self.scores[trial_id][0]))

    def rank(self, trial_id: str) -> Rank:
        return (self._order.place(self._numbers[trial_id]), 0)

    def is_promotable(self, trial_id: str) -> bool:
        """Return whether a result is among the best 1/eta; an infeasible one only if all are."""
        return self._order.place(self._numbers[trial_id]) < self._num_promotable

    @property
    def _num_promotable(self) -> int:
        return min(int(len(self.scores) / self._eta), self._order.num_feasible or len(self._order.infeasible))

    def wait(self, trial_id: str) -> None:
        self._waiting[self._numbers[trial_id]] = trial_id

    def best_waiting(self, lookup: Lookup, waits_at: MutableMapping[str, Any]) -> Trial | None:
        """Return the best trial that waits here and may be promoted; `waits_at` is updated on the way."""
        for number in [*self._order.best_first(self._waiting, self._num_promotable)]:
            trial_id = self._ids[number]
            trial = lookup(trial_id) if waits_at.get(trial_id) is self else None
            if trial is not None and is_resting(trial):
                return trial
            if trial is None or trial.status not in ("RUNNING", "PAUSED"):
                del self._waiting[number]
                if waits_at.get(trial_id) is self:
                    del waits_at[trial_id]
        return None

    def described(self, trial_id: str, verb: str, shown: Shown) -> str:
        """Return where a trial stands here: "rung 9: a = 1, b = 2 is in front 1 of 4, place 3 of 7"."""
        number, where = self._numbers[trial_id], f"rung {in_words(self.milestone)}: "
        where += shown(self.scores[trial_id])
        if not self.is_comparable(trial_id):
            return f"{where} cannot be compared"
        front, place = self._order.front(number), self._order.place(number) + 1
        fronts = "" if front is None else f"in front {front + 1} of {len(self._order.fronts)}, "
        where += f" {verb.removesuffix(' not yet')} {fronts}place {place} of {len(self.scores)}"
        continues = place <= self._num_promotable
        return where if continues else f"{where}; the best 1/{in_words(self._eta)} continue"

    @property
    def summary(self) -> str:
        return counted(len(self._order.fronts), "front")

"""Implement the promotion rule of ASHA: Algorithm 2 of Li et al., for a controller that can pause trials.

AsyncHyperBandScheduler calls it. Decisions on results depend on earlier results alone; only `choose` checks
which trials are paused, so a replay of the results leads to the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

from muster.base.text import counted
from muster.trials.metrics import in_words
from muster.trials.model import Trial
from muster.trials.plugins import CONTINUE, PAUSE, PROMOTED, STOP, STOPPED, ControllerView
from muster.trials.states import TrialState
from muster.tune.plugin_state import Plain, plain_number, refuse
from muster.tune.schedulers.trial_scheduler import explain, first_waiting

TYPES = ("stopping", "promotion")


class AshaParameters(NamedTuple):
    time_attr: str
    max_t: float
    grace_period: float
    reduction_factor: float
    brackets: int
    stop_last_trials: bool
    type: str
    seed: int | None

    def check(self, component: str) -> AshaParameters:
        """Return these parameters as plain numbers; ValueError names the parameter to change."""
        refuse(
            component,
            (self.max_t <= 0, f"max_t is {self.max_t}; it must be greater than 0"),
            (self.grace_period <= 0, f"grace_period is {self.grace_period}; it must be greater than 0"),
            (
                self.max_t < self.grace_period,
                f"grace_period ({self.grace_period}) must not be greater than max_t ({self.max_t})",
            ),
            (
                self.reduction_factor <= 1,
                f"reduction_factor is {self.reduction_factor}; it must be greater than 1, e.g. 4",
            ),
            (self.brackets <= 0, f"brackets is {self.brackets}; it must be at least 1"),
            (self.type not in TYPES, f"type is {self.type!r}; it must be one of {', '.join(TYPES)}"),
        )
        return self._replace(
            max_t=plain_number(self.max_t),
            grace_period=plain_number(self.grace_period),
            reduction_factor=plain_number(self.reduction_factor),
            brackets=int(self.brackets),
            stop_last_trials=bool(self.stop_last_trials),
        )


Rank = tuple[float, int]  # smaller is better: the score turned round (NaN as the worst), then who came first
Lookup = Callable[[str], Trial | None]
Score = Any  # a float; for several objectives a tuple of them, and one of violations
Rung = Any  # a PromotionRung, or a ParetoRung for several objectives
Shown = Callable[[Score], str]  # a score as the user knows it: "loss = 0.3"


class PromotionRung:
    """Holds the scores at one milestone, those of failed and finished trials included."""

    def __init__(self, milestone: float, eta: float) -> None:
        self.milestone = milestone
        self.scores: dict[str, float] = {}
        self._eta = eta
        self._ranks: dict[str, Rank] = {}
        self._top: list[Rank] = []  # ranks negated: the worst of the best comes first
        self._rest: list[Rank] = []
        self._waiting: list[tuple[Rank, str]] = []  # asked to pause; some may run again

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
        """Return whether a score is among the best 1/eta of those seen here; NaN never is."""
        is_top = bool(self._top) and self._ranks[trial_id] <= _negated(self._top[0])
        return is_top and self.is_comparable(trial_id)

    def is_comparable(self, trial_id: str) -> bool:
        return not math.isnan(self.scores[trial_id])

    def wait(self, trial_id: str) -> None:
        heappush(self._waiting, (self._ranks[trial_id], trial_id))

    def described(self, trial_id: str, verb: str, shown: Shown) -> str:
        """Return where a trial stands here, in words: "rung 9: loss = 0.3 is among the best 1/3 of 7"."""
        share, count = in_words(self._eta), counted(len(self.scores), "result")
        score = shown(self.scores[trial_id])
        return f"rung {in_words(self.milestone)}: {score} {verb} among the best 1/{share} of {count}"

    @property
    def summary(self) -> str:
        """Return the score of the worst trial that may be promoted."""
        return str(self._top[0][0] if self._top else None)

    def best_waiting(self, lookup: Lookup, waits_at: MutableMapping[str, PromotionRung]) -> Trial | None:
        """Return the best trial that waits here and may be promoted; `waits_at` is updated on the way."""
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
    """Return whether a trial is paused and has no process: it can be started now."""
    return trial.status == "PAUSED" and getattr(trial, "state", None) is not TrialState.STOPPING


def is_active(find: Lookup, trial_id: str) -> bool:
    """Return whether there is such a trial, and it has or gets a process."""
    trial = find(trial_id)
    return trial is not None and not is_resting(trial)


def _negated(rank: Rank) -> Rank:
    return (-rank[0], -rank[1])


Live = Mapping[str, int]  # trials that are not finished, and their brackets
Standing = tuple[Rung, Rank, Trial]  # the highest rung, the place there


class AshaRule:
    """Holds brackets of rungs; a subclass decides who continues.

    `times` returns the milestones of a bracket, in the order of its rungs.
    """

    def __init__(
        self, parameters: AshaParameters, times: Callable[..., list[float]], make_rung: Callable[..., Rung]
    ) -> None:
        self._max_t, self._stop_last_trials = parameters.max_t, parameters.stop_last_trials
        self._brackets: list[list[Rung]] = [
            [make_rung(time, parameters.reduction_factor) for time in times(parameters, bracket)]
            for bracket in range(parameters.brackets)
        ]
        self.rungs_per_bracket = [len(rungs) for rungs in self._brackets]

    def bracket_of(self, trial_id: str) -> int | None:
        """Return the bracket in which the trial has been judged before."""
        for bracket, rungs in enumerate(self._brackets):
            if any(trial_id in rung.scores for rung in rungs):
                return bracket
        return None

    def to_plain(self) -> Plain:
        return {"brackets": [[rung.scores for rung in rungs] for rungs in self._brackets]}

    def from_plain(self, state: Plain, live: Live) -> None:
        del live  # which trials live makes no difference to a score
        for rungs, saved in zip(self._brackets, state["brackets"], strict=True):
            for rung, scores in zip(rungs, saved, strict=True):
                for trial_id, score in scores.items():
                    rung.record(trial_id, as_score(score))


class PromotionRule(AshaRule):
    """Holds brackets of rungs, lowest first; the last one, at `max_t`, promotes no trial."""

    def __init__(self, parameters: AshaParameters, make_rung: Callable[..., Rung] = PromotionRung) -> None:
        super().__init__(parameters, _milestones, make_rung)
        below_max = [rung for rungs in self._brackets for rung in rungs[:-1]]
        self._high_to_low = sorted(below_max, key=lambda rung: -rung.milestone)
        self._is_settled = False  # a promoted trial has ended or reached max_t
        self._waits_at: dict[str, Rung] = {}  # asked to pause, without an event since
        self.passed: Any = None  # the rung that the last result reached
        self._maybe_active: dict[str, None] = {}  # a hint where to look first for trials that are not paused

    def judge(self, bracket: int, trial_id: str, time: float, score: Score) -> str:
        self._waits_at.pop(trial_id, None)  # it runs: the heaps of those who wait stay short
        self._maybe_active[trial_id] = None
        reached = self.passed = self.record(bracket, trial_id, time, score)
        if time >= self._max_t:
            return STOP if self._stop_last_trials else CONTINUE
        if reached is None or reached.is_promotable(trial_id):
            return CONTINUE  # promoted at once: pausing it would only cost a restart
        self._wait(trial_id, reached)
        return PAUSE

    def why(self, decision: str, trial_id: str, time: float, score: Score, shown: Shown) -> str:
        """Return why `judge` has just decided so, in words; called when a rung was reached, or `max_t`."""
        del score
        if time >= self._max_t or self.passed is None:
            return f"it reached max_t = {in_words(self._max_t)}"
        verb = "is not yet" if decision == PAUSE else "is"
        return f"at {self.passed.described(trial_id, verb, shown)}"

    def record(self, bracket: int, trial_id: str, time: float, score: Score) -> Rung | None:
        """Fill every rung that is newly reached; returns the highest of them, if any."""
        reached = None
        for rung in self._brackets[bracket]:
            if time >= rung.milestone and trial_id not in rung.scores:
                rung.record(trial_id, score)
                reached = rung
        if time >= self._max_t:
            self._is_settled = True
        return reached

    def end(self, bracket: int, trial_id: str, time: float, score: Score) -> None:
        """Record a last result; one at `max_t` means that no other trial need be promoted to the end."""
        self.record(bracket, trial_id, time, score)
        rung = self._highest(bracket, trial_id)
        furthest = max((r.milestone for r in self._high_to_low if r.scores), default=None)
        if rung is not None and furthest is not None and rung.milestone >= furthest:
            self._is_settled = True

    def forget(self, trial_id: str) -> None:
        self._waits_at.pop(trial_id, None)
        self._maybe_active.pop(trial_id, None)

    def _wait(self, trial_id: str, rung: Rung) -> None:
        rung.wait(trial_id)
        self._waits_at[trial_id] = rung

    def choose(self, tune_controller: ControllerView, live: Live, shown: Shown) -> Trial | None:
        """Return a promotion from the highest rung that has one, else a new trial: get_job of the paper."""
        trial = self._promotion(tune_controller, shown)
        if trial is None:
            waiting = first_waiting(tune_controller)
            trial = waiting if waiting is not None and waiting.status == "PENDING" else None
        if trial is None:
            trial = self._when_nothing_can_run(tune_controller, live)
        if trial is not None:
            self._maybe_active[trial.trial_id] = None
        return trial

    def _promotion(self, tune_controller: ControllerView, shown: Shown) -> Trial | None:
        for rung in self._high_to_low:
            trial: Trial | None = rung.best_waiting(tune_controller.get_trial, self._waits_at)
            if trial is not None:
                reason = f"from {rung.described(trial.trial_id, 'is now', shown)}"
                explain(tune_controller, trial.trial_id, PROMOTED, reason)
                return trial
        return None

    def _when_nothing_can_run(self, tune_controller: ControllerView, live: Live) -> Trial | None:
        """Choose among paused trials none of which is good enough, when no new ones come.

        No trial may wait forever. While the searcher waits (at a limit on concurrent trials), the least
        promising one ends to make space. When there is nothing more to try, the best one runs to `max_t` if
        none got there, and then the others end.
        """
        if self._any_trial_is_active(tune_controller, live):
            return None
        standings: list[Standing] = []
        for trial_id, bracket in live.items():
            trial = tune_controller.get_trial(trial_id)
            if trial is None or not is_resting(trial):
                continue
            rung = self._highest(bracket, trial_id)
            if rung is None:
                return trial  # paused by something else before its first rung
            standings.append((rung, rung.rank(trial_id), trial))
        if not standings:
            return None
        if not tune_controller.search_alg.is_finished():  # type: ignore[attr-defined]
            worst = max(standings, key=lambda one: (-one[0].milestone, one[1], one[2].trial_id))[2]
            reason = f"a new trial needs its place, and it was the least promising of {len(standings)} paused"
            explain(tune_controller, worst.trial_id, STOPPED, reason)
            tune_controller.stop_trial(worst)
            return None
        # The trial that got furthest and did best there, unless all of them are NaN.
        ranked = [one for one in standings if one[0].is_comparable(one[2].trial_id)]
        best = None
        if ranked and not self._is_settled:
            best = min(ranked, key=lambda one: (-one[0].milestone, one[1], one[2].trial_id))[2]
        if best is None:
            for rung, _, trial in standings:
                reason = f"it stayed at rung {in_words(rung.milestone)}, and there is nothing more to try"
                explain(tune_controller, trial.trial_id, STOPPED, reason)
                tune_controller.stop_trial(trial)
        else:
            reason = f"the best of {len(standings)} paused; nothing is left to try, and one runs to max_t"
            explain(tune_controller, best.trial_id, PROMOTED, reason)
        return best

    def _any_trial_is_active(self, tune_controller: ControllerView, live: Live) -> bool:
        """Return whether a later event can change anything; searches all trials only without hints."""
        find = tune_controller.get_trial
        while self._maybe_active:
            trial_id, _ = self._maybe_active.popitem()
            if trial_id in live and is_active(find, trial_id):
                self._maybe_active[trial_id] = None
                return True
        self._maybe_active = {one: None for one in live if is_active(find, one)}
        return bool(self._maybe_active)

    def _highest(self, bracket: int, trial_id: str) -> Rung | None:
        return next((rung for rung in reversed(self._brackets[bracket]) if trial_id in rung.scores), None)

    def summaries(self) -> Iterable[list[tuple[float, str]]]:
        for rungs in self._brackets:
            yield [(rung.milestone, rung.summary) for rung in reversed(rungs)]

    def to_plain(self) -> Plain:
        return {**super().to_plain(), "is_settled": self._is_settled}

    def from_plain(self, state: Plain, live: Live) -> None:
        """Restore a rule. Waiting trials are not saved: every live trial may wait at its highest rung."""
        super().from_plain(state, live)
        for trial_id, bracket in live.items():
            highest = self._highest(bracket, trial_id)
            if highest is not None and highest.milestone < self._max_t:
                self._wait(trial_id, highest)
        self._is_settled = state["is_settled"]


def as_score(saved: Any) -> Score:  # noqa: ANN401 - plain data
    return tuple(map(tuple, saved)) if isinstance(saved, list) else saved


def _milestones(parameters: AshaParameters, bracket: int) -> list[float]:
    """Return grace_period * reduction_factor ** k as long as it is below max_t, then max_t."""
    steps, milestone = [], parameters.grace_period * parameters.reduction_factor**bracket
    while milestone < parameters.max_t:
        steps.append(milestone)
        milestone *= parameters.reduction_factor
    return [*steps, parameters.max_t]

"""Implement one bracket of HyperBand: trials run to a milestone, wait for each other there, and are halved.

HyperBandScheduler calls it with ids of trials. Every call but a halving is O(1) in the number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from muster.tune.plugin_state import Plain, plain_number, refuse
from muster.tune.schedulers.asha_promotion import Score, as_score
from muster.tune.schedulers.pareto_rung import best_first


class HyperBandParameters(NamedTuple):
    """Plain data that is saved with the scheduler's state."""

    time_attr: str
    max_t: float
    reduction_factor: float
    stop_last_trials: bool

    def check(self, component: str) -> HyperBandParameters:
        """Return these parameters as plain numbers; ValueError names the parameter to change."""
        eta = self.reduction_factor
        refuse(
            component,
            (not 1 <= self.max_t < math.inf, f"max_t is {self.max_t}; it must be at least 1, e.g. 81"),
            (not 1 < eta < math.inf, f"reduction_factor is {eta}; it must be greater than 1, e.g. 3"),
        )
        return self._replace(
            max_t=plain_number(self.max_t),
            reduction_factor=plain_number(eta),
            stop_last_trials=bool(self.stop_last_trials),
        )

    @property
    def brackets_per_band(self) -> int:
        return round(math.log(self.max_t) / math.log(self.reduction_factor)) + 1

    def first_rung(self, s: int) -> tuple[int, int]:
        """Return how many trials a bracket with `s` halvings begins with, and the first milestone or 0."""
        power = self.reduction_factor**s
        return math.ceil(self.brackets_per_band * power / (s + 1)), int(self.max_t / power)

    def next_rung(self, n: int, milestone: int) -> tuple[int, int]:
        eta = self.reduction_factor
        return math.ceil(n / eta), int(min(milestone * eta, self.max_t))

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the milestones of all brackets, ascending."""
        found = set()
        for s in range(self.brackets_per_band):
            n, milestone = self.first_rung(s)
            for _ in range(s + 1 if milestone else 0):
                found.add(milestone)
                n, milestone = self.next_rung(n, milestone)
        return tuple(sorted(found))

    def total_time(self, s: int) -> float:
        """Return roughly what a full bracket spends in all, which measures its progress."""
        n, first = self.first_rung(s)
        total, milestone = 0, first
        for _ in range(s + 1):
            total += n * milestone
            n = math.ceil(n / self.reduction_factor)
            milestone = int(min(milestone * self.reduction_factor, self.max_t - first))
        return total


class Standing(NamedTuple):
    """A member's last report; larger scores are better, NaN is the worst."""

    time: float = 0.0
    score: Score = math.nan


class HalvingResult(NamedTuple):
    """What followed when all members had come to the milestone."""

    halved: dict[str, Standing]  # no longer members: others were better
    done: list[str]  # no longer members: they came to the end
    released: list[str]  # were to pause, and may continue; the best last
    where: str  # the last halving, in words: "the best 3 of 9 at milestone 27"


class Bracket:
    """Begins with `s` halvings left. A member is new or released (`waiting`), `parked`, or runs."""

    def __init__(
        self,
        parameters: HyperBandParameters,
        *,
        number: int,
        band: int,
        s: int,
        touched: dict[int, Bracket] | None = None,
    ) -> None:
        self._parameters = parameters
        self._touched = {} if touched is None else touched  # where it notes that it changed
        self.number, self.band, self.s = number, band, s
        self.size, self.milestone = parameters.first_rung(s)
        self._most = self.size
        self._total = parameters.total_time(s)
        self.halvings_left = s
        self.given = 0  # trials it ever got; one that is tried again counts once
        self.is_over = False
        self.members: dict[str, Standing] = {}
        self.waiting: dict[str, None] = {}  # to be started, or started without a report since
        self.unstarted: dict[str, None] = {}  # of `waiting`: not seen running yet; only an index
        self.parked: dict[str, None] = {}  # asked to pause at the milestone
        self._behind = 0  # members below the milestone
        self._done = 0.0

    @property
    def is_full(self) -> bool:
        return len(self.members) >= self.size or self.given >= self._most

    @property
    def has_arrived(self) -> bool:
        """Return whether every member is at the milestone."""
        return bool(self.members) and not self._behind

    @property
    def completion(self) -> float:
        """Return the progress from 0 to 1."""
        is_last = not self.halvings_left and self._parameters.stop_last_trials
        return 1.0 if is_last and not self._behind else min(1.0, self._done / self._total)

    def members_behind(self) -> tuple[str, ...]:
        """Return the members below the milestone."""
        return tuple(one for one, standing in self.members.items() if self._is_behind(standing))

    def rungs_ahead(self) -> Iterator[tuple[int, float]]:
        """Yield how many members each halving to come leaves, and how long those train then."""
        size, milestone, members = self.size, self.milestone, len(self.members)
        for _ in range(self.halvings_left):
            size, above = self._parameters.next_rung(size, milestone)
            members = min(members, size)
            yield members, above - milestone
            milestone = above

    def add(self, trial_id: str) -> None:
        """Add a member, which has to catch up with the others."""
        self.members[trial_id] = Standing()
        self.waiting[trial_id] = self.unstarted[trial_id] = None
        self._behind += 1
        self._touch()

    def drop(self, trial_id: str) -> None:
        self._behind -= self._is_behind(self.members.pop(trial_id))
        self._take_out(trial_id)

    def report(self, trial_id: str, time: float, score: Score) -> None:
        """Record a report. Time may go backwards, for a trial restarted without its newest checkpoint."""
        before, now = self.members[trial_id], Standing(time, score)
        self.members[trial_id] = now
        self._behind += self._is_behind(now) - self._is_behind(before)
        if math.isfinite(time - before.time):
            self._done += time - before.time
        self._take_out(trial_id)

    def _take_out(self, trial_id: str) -> None:
        for index in (self.waiting, self.unstarted, self.parked):
            index.pop(trial_id, None)
        self._touch()

    def _touch(self) -> None:
        self._touched[self.number] = self

    def may_continue(self, trial_id: str) -> bool:
        """Return whether a trial may continue: below the milestone, or beyond the last and never ended."""
        return self.runs_freely or self._is_behind(self.members[trial_id])

    def park(self, trial_id: str) -> None:
        self.parked[trial_id] = None

    def halve_if_complete(self) -> HalvingResult:
        """Halve, when all have arrived, until a member has something to do or all are done.

        Members that ran past the next milestone too are halved at once: no member would report there again.
        """
        halved: dict[str, Standing] = {}
        where = f"all at milestone {self.milestone}"
        while self.members and not self._behind and self.halvings_left:
            before, milestone = dict(self.members), self.milestone
            halved.update({trial_id: before[trial_id] for trial_id in self._halve()})
            where = f"the best {len(self.members)} of {len(before)} at milestone {milestone}"
        is_at_end = self.has_arrived and not self.runs_freely
        return HalvingResult(halved, self._end() if is_at_end else [], self._release(), where)

    @property
    def runs_freely(self) -> bool:
        """Return whether members are no longer compared or stopped."""
        return not self.halvings_left and not self._parameters.stop_last_trials

    def _is_behind(self, standing: Standing) -> bool:
        return not standing.time >= self.milestone  # NaN is behind

    def _halve(self) -> list[str]:
        """Keep the best."""
        self.halvings_left -= 1
        self.size, self.milestone = self._parameters.next_rung(self.size, self.milestone)
        ranked = _worst_first(self.members)
        worst = ranked[: max(0, len(ranked) - self.size)]
        for trial_id in worst:
            self.drop(trial_id)
        self._behind = sum(map(self._is_behind, self.members.values()))
        self._touch()
        return worst

    def _end(self) -> list[str]:
        self.is_over = True
        ended = list(self.members)
        for trial_id in ended:
            self.drop(trial_id)
        return ended

    def _release(self) -> list[str]:
        released = [one for one in self.members if one in self.parked and self.may_continue(one)]
        for trial_id in released:
            del self.parked[trial_id]
            self.waiting[trial_id] = None
        if released:
            released = [one for one in _worst_first(self.members) if one in released]
            self.waiting = {one: None for one in self.members if one in self.waiting}
            self.recheck_waiting()
        return released

    def recheck_waiting(self) -> None:
        """Mark waiting members to be checked: after a restore they may have lost their processes."""
        self.unstarted = dict(self.waiting)
        self._touch()

    def to_plain(self) -> Plain:
        return {
            "s": self.s,
            "size": self.size,
            "milestone": self.milestone,
            "halvings_left": self.halvings_left,
            "given": self.given,
            "is_over": self.is_over,
            "done": self._done,
            "members": self.members,
            "waiting": list(self.waiting),
            "parked": list(self.parked),
        }

    def from_plain(self, state: Plain) -> None:
        self.size, self.milestone = state["size"], state["milestone"]
        self.halvings_left, self.given = state["halvings_left"], state["given"]
        self.is_over, self._done = state["is_over"], state["done"]
        self.members = {
            trial_id: Standing(time, as_score(score)) for trial_id, (time, score) in state["members"].items()
        }
        self.waiting = dict.fromkeys(state["waiting"])
        self.recheck_waiting()
        self.parked = dict.fromkeys(state["parked"])
        self._behind = sum(map(self._is_behind, self.members.values()))


def _worst_first(standings: Mapping[str, Standing]) -> list[str]:
    """Return the members; of equal ones the earlier first, with several objectives the later."""
    scores = [standing.score for standing in standings.values()]
    if not any(isinstance(score, tuple) for score in scores):
        return sorted(standings, key=lambda one: _rank(standings[one].score))
    names = list(standings)
    return [names[place] for place in best_first(scores)][::-1]


def _rank(score: float) -> tuple[bool, float]:
    return (False, 0.0) if math.isnan(score) else (True, score)

"""The population of PBT: who is among the best and the worst, and who is most behind. O(log n) each; pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from sortedcontainers import SortedList  # type: ignore[import-untyped]

_MOST_OUTDATED = 64  # entries
Ranked = tuple[float, int, str]  # score, place in the order of joining, trial id
Turn = tuple[float, bool, int, str]  # time, whether it stands where another does, place, trial id


@dataclass(slots=True)
class Member:
    """One trial that is not finished. Times are those of `time_attr`."""

    number: int
    tag: str  # before any perturbation
    score: float | None = None  # larger is better; None: not known, or NaN
    last_train_time: float = 0.0
    last_perturbation_time: float = 0.0
    is_top: bool = False  # at its last perturbation; so it was asked to save
    is_copy: bool = False  # of another, and has not reported since


class Population:
    """Members by trial id, in the order in which they joined."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.joined = 0
        self._ranked: Any = SortedList()  # of Ranked: those with a score, worst first
        self._by_time: list[Turn] = []  # a heap with one true entry per member; others are outdated

    def __len__(self) -> int:
        return len(self.members)

    def join(self, trial_id: str, tag: str) -> Member:
        """A new member, or one that begins anew."""
        self.leave(trial_id)
        member = self.members[trial_id] = Member(self.joined, tag)
        self.joined += 1
        heappush(self._by_time, (0.0, False, member.number, trial_id))
        return member

    def leave(self, trial_id: str) -> None:
        member = self.members.pop(trial_id, None)
        if member is not None:
            self._unrank(trial_id, member)

    def note(self, trial_id: str, time: float, score: float) -> None:
        member = self.members[trial_id]
        self._unrank(trial_id, member)
        member.score = None if math.isnan(score) else score
        if member.score is not None:
            self._ranked.add((member.score, member.number, trial_id))
        self.set_time(trial_id, time)

    def set_time(self, trial_id: str, time: float, *, is_copy: bool = False) -> None:
        member = self.members[trial_id]
        if (time, is_copy) != (member.last_train_time, member.is_copy):
            member.last_train_time, member.is_copy = time, is_copy
            heappush(self._by_time, (time, is_copy, member.number, trial_id))
            if len(self._by_time) > _MOST_OUTDATED + 2 * len(self.members):
                self._by_time = list({entry for entry in self._by_time if self._is_true(entry)})
                heapify(self._by_time)

    def copy_times(self, to: str, of: str, perturbed_at: float, trained: float) -> None:
        """One member stands where another does; where that one stood, if it has left."""
        donor = self.members.get(of)
        if donor is not None:
            perturbed_at, trained = donor.last_perturbation_time, donor.last_train_time
        self.members[to].last_perturbation_time = perturbed_at
        self.set_time(to, trained, is_copy=True)

    def quantiles(self, fraction: float) -> tuple[list[str], list[str]]:
        """The worst and the best, worst first: equally many, nobody in both."""
        count = self._quantile_size(fraction)
        names = [trial_id for _, _, trial_id in self._ranked]
        return names[:count], names[len(names) - count :]

    def place(self, trial_id: str, fraction: float) -> int:
        """-1 among the worst, 1 among the best, 0 neither."""
        member, count = self.members[trial_id], self._quantile_size(fraction)
        if member.score is None:
            return 0
        position = self._ranked.bisect_left((member.score, member.number, trial_id))
        if position < count:
            return -1
        return 1 if position >= len(self._ranked) - count else 0

    def one_of_the_best(self, fraction: float, draw: Callable[[int], int]) -> str:
        """`draw(n)` is a number below n."""
        count = self._quantile_size(fraction)
        _, _, trial_id = self._ranked[len(self._ranked) - count + draw(count)]
        return str(trial_id)

    def _quantile_size(self, fraction: float) -> int:
        total = len(self._ranked)
        return min(math.ceil(total * fraction), total // 2)

    def least_time(self) -> float:
        """Of the member that is most behind; infinite without members."""
        while self._by_time and not self._is_true(self._by_time[0]):
            heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else math.inf

    def most_behind(self, may_run: Callable[[str], bool], below: float) -> str | None:
        """The trial that may run and has trained least, and less than `below`; of equals the first to join.

        Copies come after those they may be copies of: with one worker, a trial that is sent back to where
        another stands, again and again, would else keep that one from ever going on. Looks past those who may
        not: they run already, so there are few of them.
        """
        aside, found = [], None
        while self.least_time() < below:
            entry = self._by_time[0]
            if may_run(entry[-1]):
                found = entry[-1]
                break
            aside.append(heappop(self._by_time))
        for entry in aside:
            heappush(self._by_time, entry)
        return found

    def _is_true(self, entry: Turn) -> bool:
        member = self.members.get(entry[-1])
        return member is not None and entry[:-1] == (member.last_train_time, member.is_copy, member.number)

    def _unrank(self, trial_id: str, member: Member) -> None:
        if member.score is not None:
            self._ranked.remove((member.score, member.number, trial_id))

    def to_plain(self) -> dict[str, Any]:
        members = {trial_id: asdict(member) for trial_id, member in self.members.items()}
        return {"members": members, "joined": self.joined}

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> Population:
        population = cls()
        population.joined, ranked = saved["joined"], []
        for trial_id, content in saved["members"].items():
            member = population.members[trial_id] = Member(**content)
            turn = (member.last_train_time, member.is_copy, member.number, trial_id)
            population._by_time.append(turn)
            if member.score is not None:
                ranked.append((member.score, member.number, trial_id))
        heapify(population._by_time)
        population._ranked = SortedList(ranked)
        return population

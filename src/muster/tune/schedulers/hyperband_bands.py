"""Assign trials, which are known by their ids only, to the brackets of HyperBand, and brackets to bands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from heapq import heapify, heappop, heappush

from muster.trials.model import Trial
from muster.trials.states import TrialState
from muster.tune.plugin_state import Plain
from muster.tune.schedulers.asha_promotion import is_active, is_resting
from muster.tune.schedulers.hyperband_bracket import Bracket, HyperBandParameters

Find = Callable[[str], Trial | None]
_UNDER_WAY = (TrialState.STARTING, TrialState.RUNNING)  # one that saves may pause after it, and be started


def is_pending(trial: Trial) -> bool:
    """Return whether a trial waits for its first start, or for one after a failure."""
    return trial.status == "PENDING" and getattr(trial, "state", None) is not TrialState.STARTING


def first_ready(find: Find, brackets: Iterable[Bracket]) -> Trial | None:
    """Return the first trial that is new or released and has no process; running ones are dropped."""
    for bracket in brackets:
        found, under_way = None, []
        for trial_id in bracket.unstarted:
            trial = find(trial_id)
            if trial is None:
                continue
            if is_pending(trial) or is_resting(trial):
                found = trial
                break
            if getattr(trial, "state", None) in _UNDER_WAY:
                under_way.append(trial_id)
        for trial_id in under_way:
            del bracket.unstarted[trial_id]
        if found is not None:
            return found
    return None


def first_resting(find: Find, trial_ids: Iterable[str]) -> Trial | None:
    found = (find(trial_id) for trial_id in trial_ids)
    return next((trial for trial in found if trial is not None and is_resting(trial)), None)


def on_their_way(bracket: Bracket) -> Iterable[str]:
    """Return the members that were not asked to pause."""
    if len(bracket.parked) == len(bracket.members):
        return ()
    return (one for one in bracket.members if one not in bracket.parked)


def any_member_runs(find: Find, brackets: Collection[Bracket]) -> bool:
    """Return whether a member runs; those asked to pause are checked last, the latest first."""
    for bracket in brackets:
        if any(is_active(find, one) for one in on_their_way(bracket)):
            return True
    return any(is_active(find, one) for bracket in brackets for one in reversed(bracket.parked))


Key = tuple[int, float, int]  # the bracket's number comes last
_MOST_OUTDATED = 64  # entries


class Turns:
    """Orders brackets with trials to start, smallest key first; changed brackets go to `touched`."""

    def __init__(self, key: Callable[[Bracket], Key], brackets: Sequence[Bracket]) -> None:
        self._key, self._brackets = key, brackets
        self._heap: list[Key] = []  # every such bracket with its key of now, and outdated entries
        self.touched: dict[int, Bracket] = {}  # by number: since the last iteration

    def __iter__(self) -> Generator[Bracket]:
        """Iterate over brackets; closing the iterator puts back what it has passed."""
        self._take_up()
        past: list[Key] = []
        try:
            while self._heap:
                entry = heappop(self._heap)
                if self._is_true(entry) and entry not in past[-1:]:
                    past.append(entry)
                    yield self._brackets[entry[-1]]
        finally:
            for entry in past:
                heappush(self._heap, entry)

    def _take_up(self) -> None:
        for bracket in self.touched.values():
            if bracket.unstarted:
                heappush(self._heap, self._key(bracket))
        self.touched.clear()
        if len(self._heap) > _MOST_OUTDATED + 2 * len(self._brackets):
            self._heap = list({entry for entry in self._heap if self._is_true(entry)})
            heapify(self._heap)

    def _is_true(self, entry: Key) -> bool:
        bracket = self._brackets[entry[-1]]
        return bool(bracket.unstarted) and self._key(bracket) == entry


class Bands:
    """Holds bands, each a round of brackets with 0, 1, 2 and more halvings, or the reverse."""

    def __init__(self, parameters: HyperBandParameters, *, largest_first: bool) -> None:
        self._parameters = parameters
        self._largest_first = largest_first
        self.bands: list[list[Bracket | None]] = []  # None where the first milestone would be 0
        self.brackets: list[Bracket] = []  # the same, in the order of creation
        self.open: dict[int, Bracket] = {}  # by number: those with members
        self._bracket_of: dict[str, Bracket] = {}  # of members, and of trials that failed
        self.with_unstarted = Turns(self.turn, self.brackets)

    @property
    def total(self) -> int:
        """Return the number of brackets as Ray counts them, with those that were left out."""
        return sum(map(len, self.bands))

    def turn(self, bracket: Bracket) -> Key:
        """Return the sort key: the older band, there the bracket that did least; or the creation order."""
        if self._largest_first:
            return (0, 0.0, bracket.number)
        return (bracket.band, bracket.completion, bracket.number)

    def count_failed(self, bracket: Bracket) -> int:
        """Return how many of its trials failed and were not tried again."""
        assigned = self._bracket_of.items()
        return sum(one is bracket and trial_id not in one.members for trial_id, one in assigned)

    def bracket_of(self, trial_id: str) -> Bracket | None:
        return self._bracket_of.get(trial_id)

    def members(self) -> Iterable[str]:
        for bracket in self.open.values():
            yield from bracket.members

    def is_closed(self, bracket: Bracket) -> bool:
        """Return whether a bracket gets no more new trials."""
        return bracket is not self.brackets[-1] or bracket.is_full

    def place(self, trial_id: str) -> Bracket:
        """Return the bracket of a trial; a trial without one joins its old bracket, if any, or the next."""
        bracket = self._bracket_of.get(trial_id)
        if bracket is None or bracket.is_over:
            last = self.brackets[-1] if self.brackets else None  # as in the paper, each is filled once
            bracket = self._next() if last is None or last.is_full or last.is_over else last
            bracket.given += 1
        if trial_id not in bracket.members:
            bracket.add(trial_id)
            self._bracket_of[trial_id] = bracket
            self.open[bracket.number] = bracket
        return bracket

    def forget(self, trial_id: str) -> None:
        bracket = self._bracket_of.pop(trial_id, None)
        if bracket is None:
            return
        if trial_id in bracket.members:
            bracket.drop(trial_id)
        if not bracket.members:
            self.open.pop(bracket.number, None)

    def expect_again(self, trial_id: str, bracket: Bracket) -> None:
        """Remember the bracket of a trial that failed, in case it is tried again."""
        self._bracket_of[trial_id] = bracket

    def _next(self) -> Bracket:
        count = self._parameters.brackets_per_band
        while True:
            if not self.bands or len(self.bands[-1]) == count:
                self.bands.append([])
            place = len(self.bands[-1])
            s = count - place - 1 if self._largest_first else place
            if self._parameters.first_rung(s)[1] > 0:
                return self._append(s)
            self.bands[-1].append(None)

    def _append(self, s: int) -> Bracket:
        number, band = len(self.brackets), len(self.bands) - 1
        touched = self.with_unstarted.touched
        bracket = Bracket(self._parameters, number=number, band=band, s=s, touched=touched)
        self.brackets.append(bracket)
        self.bands[-1].append(bracket)
        return bracket

    def recheck_waiting(self) -> None:
        for bracket in self.open.values():
            bracket.recheck_waiting()

    def to_plain(self) -> Plain:
        self.recheck_waiting()  # as a restored one will: from here on both see the same
        failed = {
            one: bracket.number for one, bracket in self._bracket_of.items() if one not in bracket.members
        }
        return {
            "bands": [[one and one.to_plain() for one in band] for band in self.bands],
            "failed": dict(sorted(failed.items())),
        }

    def from_plain(self, state: Plain) -> None:
        for band in state["bands"]:
            self.bands.append([])
            for saved in band:
                if saved is None:
                    self.bands[-1].append(None)
                else:
                    bracket = self._append(saved["s"])
                    bracket.from_plain(saved)
                    self._bracket_of.update(dict.fromkeys(bracket.members, bracket))
                    if bracket.members:
                        self.open[bracket.number] = bracket
        for trial_id, number in state["failed"].items():
            self._bracket_of[trial_id] = self.brackets[number]

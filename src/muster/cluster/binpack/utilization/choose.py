"""The two greedy choices of an attempt: the best node there is, the best new machine.

Changes nothing but the filler's counts; `Fleet` makes the outcome real.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.cluster.binpack.utilization.fill import Fill
from muster.cluster.binpack.utilization.grouping import State
from muster.cluster.binpack.utilization.score import Key
from muster.cluster.binpack.utilization.select import FAR, Contest, Entry, Question


class Pick(NamedTuple):
    """Nodes that take the same, in list order."""

    state: State  # before
    fill: Fill
    places: tuple[int, ...]  # in the list of candidates


class Purchase(NamedTuple):
    """New machines of one type that take the same."""

    offer: int
    fill: Fill
    machines: int


def choose_nodes(question: Question, candidates: Mapping[State, Sequence[int]]) -> list[Pick]:
    """The best node first, each at most once, until nothing more fits."""
    alone = _one_for_all(question, candidates)
    if alone is not None:
        return [alone]
    contest = Contest(question)
    places = list(candidates.values())
    contest.enter((state, mine[0]) for state, mine in candidates.items())
    unused = [0] * len(places)
    picks: list[Pick] = []
    while (entry := contest.leader()) is not None:
        mine, start = places[entry.number], unused[entry.number]
        stop = _stop(contest, entry, mine, start)
        picks.append(_pick(entry, mine[start:stop]))
        contest.take(entry, stop - start)
        unused[entry.number] = stop
        if stop < len(mine):
            contest.enter_again(entry, mine[stop])
    return picks


def _one_for_all(question: Question, candidates: Mapping[State, Sequence[int]]) -> Pick | None:
    """The best node, if it takes everything: the usual case of a gang needs no contest."""
    filler = question.filler
    if not filler.fresh:
        return None
    best: tuple[Key, int] | None = None
    chosen: tuple[State, Fill] | None = None
    for state, places in candidates.items():
        _, fill, key = question.first_answer(state)
        if fill is not None and (best is None or (key, places[0]) < best):
            best, chosen = (key, places[0]), (state, fill)
    if best is None or chosen is None or sum(n for _, n in chosen[1].takes) < sum(filler.left):
        return None
    for run, amount in chosen[1].takes:
        filler.take(run, amount)
    return Pick(*chosen, (best[1],))


def _stop(contest: Contest, entry: Entry, places: Sequence[int], start: int) -> int:
    """How far into its places the leader stays the leader."""
    if start + 1 == len(places):
        return start + 1
    stop = min(len(places), start + contest.repeats(entry))
    return min(stop, max(start + 1, bisect_left(places, contest.rival_place(entry))))


def _pick(entry: Entry, places: Sequence[int]) -> Pick:
    assert entry.fill is not None
    return Pick(entry.state, entry.fill, tuple(places))


def choose_offers(
    question: Question, offers: Sequence[State], rooms: Sequence[int], room: int | None
) -> list[Purchase]:
    """The best type first; a type that was bought goes to the end of the line, so ties alternate."""
    contest = Contest(question)
    rooms = list(rooms)
    offer_of = [offer for offer, left in enumerate(rooms) if left > 0]
    contest.enter((offers[offer], line) for line, offer in enumerate(offer_of))
    line = len(offers)
    purchases: list[Purchase] = []
    while (room is None or room > 0) and (entry := contest.leader()) is not None:
        assert entry.fill is not None
        offer = offer_of[entry.number]
        tied = contest.rival_place(entry) < FAR
        count = 1 if tied else min(contest.repeats(entry), rooms[offer])
        count = count if room is None else min(count, room)
        purchases.append(Purchase(offer, entry.fill, count))
        contest.take(entry, count)
        rooms[offer] -= count
        room = None if room is None else room - count
        line += 1
        if rooms[offer] > 0:
            contest.enter_again(entry, line)
    return purchases

"""Select the best candidate, when taking one changes what the others would take.

An entry's fill stays right until fewer requests of some run are left than it takes; the claims per run
find the entries whose fill is void. They are not filled again at once: they wait under a bound on what
they could become, and only those whose bound beats the leader are filled again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from muster.base.resources import SCALE
from muster.cluster.planner.utilization.fill import Fill, Filler
from muster.cluster.planner.utilization.grouping import NodeShape, State, worth

Key = tuple[int, float, float, int]
TYPE_BITS = 20  # bits for the number of resource types


class Bound(NamedTuple):
    """The best that an entry could still become."""

    key: Key
    within: int  # columns, and the GPU mark, of the runs it could take


def key_of(state: State, fill: Fill, filler: Filler) -> Key:
    """Return the key of a node after this fill."""
    frame, used, free = state.frame, fill.used, fill.free
    gpu_mark = filler.gpu_mark
    label = filler.label_score(fill.lead, fill.labels) if fill.lead else 0
    lowest, total, count = float("inf"), 0.0, 0
    for column, size, fixed in frame.terms:
        if column < 0:
            value = fixed
        elif frame.late >> column & 1 and not used >> column & 1:
            continue
        else:
            value = size * ((size - free[column] / SCALE) / size) ** 3
        if value < lowest:  # noqa: PLR1730 - hot
            lowest = value
        total += value
        count += 1
    if not count:
        return _head(label, used, frame, gpu_mark), 0.0, 0.0, frame.tail
    return _head(label, used, frame, gpu_mark), -lowest, -(total / count), frame.tail


def bound_of(state: State, filler: Filler, fitting: int, known: Bound | None) -> Bound | None:
    """Return a key at least as good as any later fill can give; None when nothing can be placed any more.

    Requests only get fewer, so a bound stays a bound; it is computed again when fewer columns or labels
    are within reach than when it was `known`.
    """
    mask = filler.alive & fitting
    if not filler.entangled:
        mask &= filler.allowed(state.labels)
    if not mask:
        return None
    within = 0
    for bit, users in filler.users:
        if mask & users:
            within |= bit
    if known is not None and known.within == within:
        return known
    frame, used = state.frame, state.used | within
    lowest, mean = _best_worths(state, used, within)
    if filler.entangled:
        label = max(filler.longest, *(len(selectors) for selectors in state.lead), 0)
    elif state.lead:
        label = filler.label_score(state.lead, state.labels)
    else:
        label = filler.longest if mask & filler.selecting else 0
    key = (_head(label, used, frame, filler.gpu_mark), -lowest, -mean, frame.tail)
    return Bound(key, within)


def _best_worths(state: State, used: int, within: int) -> tuple[float, float]:
    """Return the lowest and the mean worth if every resource that can be used were used up."""
    frame, free, values = state.frame, state.free, []
    for column, size, fixed in frame.terms:
        if column < 0:
            values.append(fixed)
        elif within >> column & 1:
            values.append(size)
        elif not frame.late >> column & 1 or used >> column & 1:
            values.append(worth(size, free[column]))
    if not values:
        return 0.0, 0.0
    mean = 0.0
    for value in values:
        mean += value
    if frame.late:  # a resource that need not enter the mean: the highest one bounds it
        return max(values), max(values)
    return min(values), mean / len(values)


def _head(label: int, used: int, frame: NodeShape, gpu_mark: int) -> int:
    gpu_ok = not frame.saves_gpu or bool(used & gpu_mark)
    return -((label * 2 + gpu_ok) << TYPE_BITS | (used & frame.columns).bit_count())


Ranked = tuple[int, float, float, int, int, int, int]  # key, place in the list, entry, stamp
Note = tuple[int, int]  # entry, stamp
FAR = 1 << 62  # a place, or a number of times, beyond any other
_NOTHING: Key = (0, 0.0, 0.0, 0)
_REMEMBERED = 100_000  # first answers per question: bounds the memory, not the result


class CandidateGroup:
    """One kind of candidate; `place` is the position of its first one in the list."""

    __slots__ = ("bound", "fill", "fitting", "key", "number", "place", "stamp", "state")

    def __init__(self, number: int, state: State, place: int) -> None:
        self.number = number
        self.state = state
        self.place = place
        self.fitting = 0  # the runs whose shape fits
        self.stamp = 0  # raised whenever what is noted about the entry elsewhere becomes void
        self.fill: Fill | None = None
        self.key = _NOTHING
        self.bound: Bound | None = None


class FillCache:
    """Remembers the first fill per state, for the next gang with equal requests."""

    def __init__(self, filler: Filler) -> None:
        self.filler = filler
        self._first: dict[State, tuple[int, Fill | None, Key]] = {}

    def fits(self, state: State) -> bool:
        """Return whether any shape fits before anything is placed."""
        return bool(self.first_fill(state)[0])

    def first_fill(self, state: State) -> tuple[int, Fill | None, Key]:
        """Return the runs that fit, the fill and its key before anything is placed elsewhere."""
        answer = self._first.get(state)
        if answer is None:
            if len(self._first) >= _REMEMBERED:
                self._first.clear()
            fitting = self.filler.fitting(state.free, state.frame.pins)
            fill = self.filler.fill(state, fitting)
            key = _NOTHING if fill is None else key_of(state, fill, self.filler)
            answer = self._first[state] = (fitting, fill, key)
        return answer


class CandidateQueue:
    """Orders candidates for the requests that `filler` has left."""

    def __init__(self, cache: FillCache) -> None:
        self._cache = cache
        self._filler = filler = cache.filler
        self._entries: list[CandidateGroup] = []
        self._ready: list[Ranked] = []
        self._waiting: list[Ranked] = []
        self._claims = [RunClaims() for _ in filler.runs]

    def add(self, candidates: Iterable[tuple[State, int]]) -> None:
        """Add candidates, each with the position in the list of the first of its kind."""
        for state, place in candidates:
            entry = CandidateGroup(len(self._entries), state, place)
            self._entries.append(entry)
            if self._filler.fresh:
                entry.fitting, entry.fill, entry.key = self._cache.first_fill(state)
            else:
                entry.fitting = self._filler.fitting(state.free, state.frame.pins)
                self._update_fill(entry)
            if entry.fill is not None:
                self._ready.append((*entry.key, place, entry.number, entry.stamp))
                self._add_claims(entry, entry.fill)
        heapify(self._ready)

    def leader(self) -> CandidateGroup | None:
        """Return the best entry and remove it; `add_again` puts it back."""
        if not self._filler.alive:
            return None
        while True:
            first = self._first_ready()
            if not self._waiting or (first is not None and first < self._waiting[0]):
                break
            _, _, _, _, _, number, stamp = heappop(self._waiting)
            entry = self._entries[number]
            if entry.stamp == stamp:
                self._refill(entry)
        if first is None:
            return None
        entry = self._entries[heappop(self._ready)[5]]
        entry.stamp += 1  # it watches nothing until it enters again
        return entry

    def rival_place(self, entry: CandidateGroup) -> int:
        """Return the position of the first exactly tied other candidate; FAR when there is none."""
        place = FAR
        first = self._first_ready()
        for ranked in (first, self._waiting[0] if self._waiting else None):
            if ranked is not None and ranked[:4] == entry.key:
                place = min(place, ranked[4])
        return place

    def repeats(self, entry: CandidateGroup) -> int:
        """Return how often in a row the fill can be taken before any entry has to be filled again."""
        left, times = self._filler.left, FAR
        for run, amount in entry.fill.takes if entry.fill is not None else ():
            claimed = self._claims[run].most(self._entries)
            times = min(times, left[run] // amount, 1 + (left[run] - claimed) // amount)
        return times

    def take(self, entry: CandidateGroup, times: int) -> None:
        """Place the entry's fill that often; entries that counted on those requests wait."""
        for run, amount in entry.fill.takes if entry.fill is not None else ():
            left = self._filler.take(run, times * amount)
            claims = self._claims[run]
            if claims.highest > left and self._filler.alive:
                for number, stamp in claims.above(left):
                    other = self._entries[number]
                    if other.stamp == stamp:
                        other.stamp += 1
                        bound = other.bound = bound_of(other.state, self._filler, other.fitting, other.bound)
                        if bound is not None:
                            heappush(self._waiting, (*bound.key, other.place, other.number, other.stamp))

    def add_again(self, entry: CandidateGroup, place: int) -> None:
        """Add more candidates of this kind, the first of them at `place`."""
        entry.place = place
        left = self._filler.left
        if entry.fill is not None and all(amount <= left[run] for run, amount in entry.fill.takes):
            self._enqueue(entry, entry.fill)
        else:
            self._refill(entry)

    def _first_ready(self) -> Ranked | None:
        ready, entries = self._ready, self._entries
        while ready and entries[ready[0][5]].stamp != ready[0][6]:
            heappop(ready)
        return ready[0] if ready else None

    def _refill(self, entry: CandidateGroup) -> None:
        self._update_fill(entry)
        if entry.fill is None:
            entry.stamp += 1
        else:
            self._enqueue(entry, entry.fill)

    def _update_fill(self, entry: CandidateGroup) -> None:
        fill = entry.fill = self._filler.fill(entry.state, entry.fitting)
        if fill is not None:
            entry.key = key_of(entry.state, fill, self._filler)

    def _enqueue(self, entry: CandidateGroup, fill: Fill) -> None:
        entry.stamp += 1
        heappush(self._ready, (*entry.key, entry.place, entry.number, entry.stamp))
        self._add_claims(entry, fill)

    def _add_claims(self, entry: CandidateGroup, fill: Fill) -> None:
        note = (entry.number, entry.stamp)
        for run, amount in fill.takes:
            self._claims[run].add(amount, note)


class RunClaims:
    """RunClaims record which entries count on how many requests of one run."""

    __slots__ = ("_notes", "highest")

    def __init__(self) -> None:
        self._notes: dict[int, list[Note]] = {}
        self.highest = 0  # no note is above it

    def add(self, amount: int, note: Note) -> None:
        if amount in self._notes:
            self._notes[amount].append(note)
            return
        self._notes[amount] = [note]
        self.highest = max(self.highest, amount)

    def above(self, left: int) -> list[Note]:
        """Return those that count on more, and removes them."""
        gone = [amount for amount in self._notes if amount > left]
        notes = [note for amount in gone for note in self._notes.pop(amount)]
        self.highest = max(self._notes, default=0)
        return notes

    def most(self, entries: list[CandidateGroup]) -> int:
        """Return the most that any entry still counts on, or 0."""
        while self.highest:
            notes = self._notes[self.highest]
            while notes and entries[notes[-1][0]].stamp != notes[-1][1]:
                notes.pop()
            if notes:
                break
            del self._notes[self.highest]
            self.highest = max(self._notes, default=0)
        return self.highest


class Pick(NamedTuple):
    """Nodes that take the same, in list order."""

    state: State  # before
    fill: Fill
    places: tuple[int, ...]  # in the list of candidates


class NodePurchase(NamedTuple):
    """New machines of one type that take the same."""

    offer: int
    fill: Fill
    machines: int


def choose_nodes(cache: FillCache, candidates: Mapping[State, Sequence[int]]) -> list[Pick]:
    """Return the best node first, each at most once, until nothing more fits."""
    alone = _one_for_all(cache, candidates)
    if alone is not None:
        return [alone]
    queue = CandidateQueue(cache)
    places = list(candidates.values())
    queue.add((state, mine[0]) for state, mine in candidates.items())
    unused = [0] * len(places)
    picks: list[Pick] = []
    while (entry := queue.leader()) is not None:
        mine, start = places[entry.number], unused[entry.number]
        stop = _stop(queue, entry, mine, start)
        assert entry.fill is not None
        picks.append(Pick(entry.state, entry.fill, tuple(mine[start:stop])))
        queue.take(entry, stop - start)
        unused[entry.number] = stop
        if stop < len(mine):
            queue.add_again(entry, mine[stop])
    return picks


def _one_for_all(cache: FillCache, candidates: Mapping[State, Sequence[int]]) -> Pick | None:
    """Return the best node, if it takes everything: the usual case of a gang needs no queue."""
    filler = cache.filler
    if not filler.fresh:
        return None
    best: tuple[Key, int] | None = None
    chosen: tuple[State, Fill] | None = None
    for state, places in candidates.items():
        _, fill, key = cache.first_fill(state)
        if fill is not None and (best is None or (key, places[0]) < best):
            best, chosen = (key, places[0]), (state, fill)
    if best is None or chosen is None or sum(n for _, n in chosen[1].takes) < sum(filler.left):
        return None
    for run, amount in chosen[1].takes:
        filler.take(run, amount)
    return Pick(*chosen, (best[1],))


def _stop(queue: CandidateQueue, entry: CandidateGroup, places: Sequence[int], start: int) -> int:
    """Return how far into its places the leader stays the leader."""
    if start + 1 == len(places):
        return start + 1
    stop = min(len(places), start + queue.repeats(entry))
    return min(stop, max(start + 1, bisect_left(places, queue.rival_place(entry))))


def choose_offers(
    cache: FillCache, offers: Sequence[State], rooms: Sequence[int], room: int | None
) -> list[NodePurchase]:
    """Return the best type first; a type that was launched goes to the end of the list, so ties alternate."""
    queue = CandidateQueue(cache)
    rooms = list(rooms)
    offer_of = [offer for offer, left in enumerate(rooms) if left > 0]
    queue.add((offers[offer], line) for line, offer in enumerate(offer_of))
    line = len(offers)
    purchases: list[NodePurchase] = []
    while (room is None or room > 0) and (entry := queue.leader()) is not None:
        assert entry.fill is not None
        offer = offer_of[entry.number]
        tied = queue.rival_place(entry) < FAR
        count = 1 if tied else min(queue.repeats(entry), rooms[offer])
        count = count if room is None else min(count, room)
        purchases.append(NodePurchase(offer, entry.fill, count))
        queue.take(entry, count)
        rooms[offer] -= count
        room = None if room is None else room - count
        line += 1
        if rooms[offer] > 0:
            queue.add_again(entry, line)
    return purchases

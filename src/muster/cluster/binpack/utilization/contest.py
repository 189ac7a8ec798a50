"""Which candidate is best now, when taking one changes what the others would take.

An entry's fill stays right until fewer requests of some run are left than it takes; a watch list per run
finds those it no longer holds for. They are not filled again at once: they wait under a bound on what
they could become, and only those whose bound beats the leader are looked at.
"""

from __future__ import annotations

from heapq import heappop, heappush

from muster.cluster.binpack.utilization.fill import Fill, Filler
from muster.cluster.binpack.utilization.score import Key, bound_of, key_of
from muster.cluster.binpack.utilization.states import State

Ranked = tuple[int, float, float, int, int, int, int]  # key, place in the list, entry, stamp
_FAR = 1 << 62


class Entry:
    """One kind of candidate; `place` is where its first one stands in the list."""

    __slots__ = ("fill", "key", "number", "place", "stamp", "state")

    def __init__(self, number: int, state: State, place: int) -> None:
        self.number = number
        self.state = state
        self.place = place
        self.stamp = 0  # raised whenever what is noted about the entry elsewhere becomes void
        self.fill: Fill | None = None
        self.key: Key = (0, 0.0, 0.0, 0)


class Contest:
    """Candidates competing for what `filler` has left."""

    def __init__(self, filler: Filler, gpu_mark: int) -> None:
        self._filler = filler
        self._gpu_mark = gpu_mark
        self._entries: list[Entry] = []
        self._ready: list[Ranked] = []
        self._waiting: list[Ranked] = []
        self._watch: list[list[tuple[int, int, int]]] = [[] for _ in filler.runs]

    def enter(self, state: State, place: int) -> Entry:
        entry = Entry(len(self._entries), state, place)
        self._entries.append(entry)
        self._refill(entry)
        return entry

    def leader(self) -> Entry | None:
        """The best entry, taken out: `enter_again` puts it back."""
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
        return None if first is None else self._taken_out(heappop(self._ready)[5])

    def _taken_out(self, number: int) -> Entry:
        entry = self._entries[number]
        entry.stamp += 1  # it watches nothing until it enters again
        return entry

    def rival_place(self, entry: Entry) -> int:
        """Where the first exactly tied other candidate stands; far away when there is none."""
        place = _FAR
        first = self._first_ready()
        for ranked in (first, self._waiting[0] if self._waiting else None):
            if ranked is not None and ranked[:4] == entry.key:
                place = min(place, ranked[4])
        return place

    def repeats(self, entry: Entry) -> int:
        """How often in a row the entry's fill can be taken before any entry has to look again."""
        left, times = self._filler.left, _FAR
        for run, amount in entry.fill.takes if entry.fill is not None else ():
            times = min(times, left[run] // amount)
            watch = self._watch[run]
            while watch and self._entries[watch[0][1]].stamp != watch[0][2]:
                heappop(watch)
            if watch:
                times = min(times, 1 + (left[run] + watch[0][0]) // amount)
        return times

    def take(self, entry: Entry, times: int) -> None:
        """Place the entry's fill so often; whoever counted on those requests waits to be filled again."""
        for run, amount in entry.fill.takes if entry.fill is not None else ():
            left = self._filler.take(run, times * amount)
            watch = self._watch[run]
            while watch and -watch[0][0] > left:
                _, number, stamp = heappop(watch)
                other = self._entries[number]
                if other.stamp == stamp:
                    self._postpone(other)

    def enter_again(self, entry: Entry, place: int) -> None:
        """More candidates of this kind, the first of them at `place`."""
        entry.place = place
        left = self._filler.left
        if entry.fill is not None and all(amount <= left[run] for run, amount in entry.fill.takes):
            self._announce(entry)
        else:
            self._refill(entry)

    def _first_ready(self) -> Ranked | None:
        ready, entries = self._ready, self._entries
        while ready and entries[ready[0][5]].stamp != ready[0][6]:
            heappop(ready)
        return ready[0] if ready else None

    def _refill(self, entry: Entry) -> None:
        entry.fill = self._filler.fill(entry.state)
        if entry.fill is None:
            entry.stamp += 1
            return
        entry.key = key_of(entry.state, entry.fill, self._gpu_mark)
        self._announce(entry)

    def _announce(self, entry: Entry) -> None:
        entry.stamp += 1
        number, stamp = entry.number, entry.stamp
        heappush(self._ready, (*entry.key, entry.place, number, stamp))
        for run, amount in entry.fill.takes if entry.fill is not None else ():
            heappush(self._watch[run], (-amount, number, stamp))

    def _postpone(self, entry: Entry) -> None:
        entry.stamp += 1
        bound = bound_of(entry.state, self._filler, self._gpu_mark)
        if bound is not None:
            heappush(self._waiting, (*bound, entry.place, entry.number, entry.stamp))

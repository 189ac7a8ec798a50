"""What is asked for, without repeats: equal demands become one for the engine and are parted again after.

Called by `pack`, so that planning costs by kinds of request and not by requests. Which of several equal
requests gets a place first is their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from msgspec.structs import replace

from muster.base.resources import ItemKey
from muster.cluster.binpack.outcome import BOUGHT, COMING, NONE, PLACED, UNPLACED, Counts, Part, Tally
from muster.cluster.binpack.request import ItemOutcome
from muster.cluster.model import Demand, Gang, Selector

DemandKey = tuple[ItemKey, tuple[Selector, ...], tuple[str, str] | None]


def demand_key(demand: Demand) -> DemandKey:
    """Requests with the same key have the same fate."""
    return demand.shape.key, demand.selectors, demand.avoid


_NO_REQUEST = ItemOutcome(index=-1)


class MergedDemands:
    """Equal demands as one, empty ones left out, and the way back."""

    def __init__(self, asked: Sequence[Demand]) -> None:
        self._asked = asked
        places: dict[DemandKey, list[int]] = {}
        for index, demand in enumerate(asked):
            if demand.count > 0:
                key = demand_key(demand)
                members = places.get(key)
                if members is None:
                    places[key] = [index]
                else:
                    members.append(index)
        self._members = list(places.values())  # per kind of demand, the places of its members in `asked`
        self.demands = tuple(self._whole(members) for members in self._members)

    def _whole(self, members: Sequence[int]) -> Demand:
        first = self._asked[members[0]]
        if len(members) == 1:
            return first
        return replace(first, count=sum(self._asked[index].count for index in members))

    def outcomes(self, tally: Tally) -> tuple[ItemOutcome, ...]:
        """One outcome per demand asked; counts are shared out in the order of asking."""
        found = [_NO_REQUEST] * len(self._asked)
        for place, members in enumerate(self._members):
            if len(members) == 1:
                found[members[0]] = tally.outcome(members[0], place)
                continue
            count = self.demands[place].count
            # What is left when all places are given has none; were an engine to lose a request, that one too.
            parts = chain(tally.parts(place), (Part(UNPLACED, "", count),))
            if count == len(members):
                _share_among_singles(members, parts, found)
            else:
                self._share(members, parts, found)
        if sum(map(len, self._members)) == len(found):
            return tuple(found)
        return tuple(
            ItemOutcome(index=index) if outcome is _NO_REQUEST else outcome
            for index, outcome in enumerate(found)
        )

    def _share(self, members: Sequence[int], parts: Iterator[Part], found: list[ItemOutcome]) -> None:
        kind, where, left = next(parts)
        for index in members:
            needs = self._asked[index].count
            got: list[Counts] = [{}, {}, {}, {}]
            while needs > 0:
                while left == 0:
                    kind, where, left = next(parts)
                taken = min(needs, left)
                got[kind][where] = got[kind].get(where, 0) + taken
                needs, left = needs - taken, left - taken
            placed, coming, bought, unplaced = got
            found[index] = ItemOutcome(
                index=index, placed=placed, coming=coming, bought=bought, unplaced=unplaced.get("", 0)
            )


def _share_among_singles(members: Sequence[int], parts: Iterable[Part], found: list[ItemOutcome]) -> None:
    """Demands of one request each, often very many: those with the same fate share one mapping."""
    waiting = iter(members)
    for kind, where, amount in parts:
        single = {where: 1}
        placed = single if kind == PLACED else NONE
        coming = single if kind == COMING else NONE
        bought = single if kind == BOUGHT else NONE
        unplaced = 1 if kind == UNPLACED else 0
        for index in islice(waiting, amount):
            found[index] = ItemOutcome(
                index=index, placed=placed, coming=coming, bought=bought, unplaced=unplaced
            )


def gang_size(gang: Gang) -> int:
    """How many bundles the gang has, by its first option."""
    return sum(bundle.count for bundle in gang.options[0]) if gang.options else 0


class CountedGangs:
    """The gangs that have bundles, and the way back."""

    def __init__(self, asked: Sequence[Gang]) -> None:
        self.gangs = tuple(gang for gang in asked if gang_size(gang) > 0)
        places = iter(range(len(self.gangs)))
        self._places = [next(places) if gang_size(gang) > 0 else -1 for gang in asked]

    def outcomes(self, tally: Tally) -> tuple[ItemOutcome, ...]:
        return tuple(tally.outcome(index, place) for index, place in enumerate(self._places))

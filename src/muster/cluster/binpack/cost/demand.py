"""Serve one book: demands and gangs together, then what failed once more with its other forms.

Called by `engine`. When limits leave gangs out, other orders are tried and the one that serves most is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.allocate import Entry, Settled, Squad, settle
from muster.cluster.binpack.cost.asks import Ask, ask_of
from muster.cluster.binpack.cost.choose import Choice, choose, squads_of, ways_of
from muster.cluster.binpack.cost.forms import Form, bundle_count
from muster.cluster.binpack.cost.inventory import Stock
from muster.cluster.model import Demand, Gang

MOST_RETRIES = 64  # proposals for gangs that failed; each is a small problem of its own
LARGEST_RETHOUGHT = 200_000  # bins x (demands + gangs) up to which other orders are tried


class Served(NamedTuple):
    """What one book came to."""

    entries: list[Entry]
    short: dict[int, int]  # demand -> requests without a place
    failed: list[int]  # gangs without a place


class Case(NamedTuple):
    """What the book asks for; `forms` are the ways to ask for each gang, in order of preference."""

    demands: Sequence[Demand]
    gangs: Sequence[Gang]
    forms: Sequence[Sequence[Form]]


def serve(stock: Stock, case: Case) -> tuple[Served, Stock]:
    """What is served, and the stock after that; the one given stays as it is."""
    chosen = choose(stock, case.gangs, case.forms)
    together = _Try(stock, case, chosen)
    together.run(list(chosen), with_demands=True)
    size = (len(stock.free) + 1) * (len(case.demands) + len(case.gangs))
    if not together.refused or size > LARGEST_RETHOUGHT:
        return together.served(), together.stock
    others = [_Try(stock, case, chosen) for _ in range(3)]
    others[0].run([gang for gang in chosen if gang not in together.refused], with_demands=True)
    others[1].run(list(chosen), with_demands=False)
    others[2].run([], with_demands=False)
    best = min([together, *others], key=_Try.rank)
    return best.served(), best.stock


class _Try:
    """One order: some gangs (perhaps with the demands) first, the other gangs one by one, demands last."""

    def __init__(self, stock: Stock, case: Case, chosen: dict[int, Choice]) -> None:
        self.stock, self.case, self.chosen = stock.copy(), case, chosen
        self.entries: list[Entry] = []
        self.short: dict[int, int] = {}
        self.refused: list[int] = []  # gangs that the first step left out
        self.failed: list[int] = []

    def run(self, first: Sequence[int], with_demands: bool) -> None:
        everything = {index: demand.count for index, demand in enumerate(self.case.demands)}
        settled = self._attempt(everything if with_demands else {}, squads_of(self.chosen, first))
        self.refused = [gang for squad in settled.failed for gang in squad.gangs]
        self.short = settled.short if with_demands else everything
        later = [gang for gang in self.chosen if gang not in first]
        self._one_by_one(squads_of(self.chosen, [*self.refused, *sorted(later, key=self._size)]))
        if self.short and (settled.failed or later or not with_demands):
            self.short = self._attempt(self.short, []).short

    def _size(self, gang: int) -> tuple[int, int]:
        return bundle_count(self.case.gangs[gang]), gang

    def _one_by_one(self, squads: Sequence[tuple[tuple[int, ...], Form]]) -> None:
        """Equal gangs fail alike: the first that finds no place speaks for the rest."""
        retries = MOST_RETRIES
        for gangs, _ in squads:
            waiting = list(gangs)
            while waiting and retries > 0:
                ways = ways_of(self.stock, self.case.gangs[waiting[0]], self.case.forms[waiting[0]])
                retries -= 1 + len(ways)
                if not any(not self._attempt({}, [((waiting[0],), way)]).failed for way in ways):
                    break
                del waiting[0]
            self.failed += waiting

    def served(self) -> Served:
        impossible = [gang for gang in range(len(self.case.gangs)) if gang not in self.chosen]
        return Served(self.entries, self.short, sorted(self.failed + impossible))

    def rank(self) -> tuple[int, float]:
        """Requests without a place, then cost."""
        bundles = sum(bundle_count(self.case.gangs[gang]) for gang in self.failed)
        return sum(self.short.values()) + bundles, float(self.stock.cost[self.stock.machines].sum())

    def _attempt(self, demands: dict[int, int], squads: Sequence[tuple[tuple[int, ...], Form]]) -> Settled:
        """Propose, hand out, take."""
        asked = {index: (ask_of(self.case.demands[index]), count) for index, count in demands.items()}
        settled = _attempt(self.stock, asked, squads)
        self.entries += settled.entries
        return settled


def _attempt(
    stock: Stock, demands: dict[int, tuple[Ask, int]], squads: Sequence[tuple[tuple[int, ...], Form]]
) -> Settled:
    """Propose, hand out, take."""
    index: dict[Ask, int] = {}
    takers: dict[int, list[tuple[int, int]]] = {}
    for demand, (ask, count) in demands.items():
        if count > 0:
            takers.setdefault(index.setdefault(ask, len(index)), []).append((demand, count))
    members = [
        Squad(gangs, form, tuple(index.setdefault(part.ask, len(index)) for part in form.parts))
        for gangs, form in squads
    ]
    wanted = np.zeros(len(index))
    for cls, pairs in takers.items():
        wanted[cls] += sum(count for _, count in pairs)
    for squad in members:
        for cls, part in zip(squad.classes, squad.form.parts, strict=True):
            wanted[cls] += part.each * len(squad.gangs)
    asks = list(index)
    settled = settle(stock.propose(asks, wanted), members, takers)
    stock.take(settled.proposal, asks)
    return settled

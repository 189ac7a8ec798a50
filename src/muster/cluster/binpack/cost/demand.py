"""Serve one book: demands and gangs together first, then what failed once more with its other forms.

Called by `engine` with a stock that it may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.asks import Ask, Avoidance, ask_of
from muster.cluster.binpack.cost.forms import Form
from muster.cluster.binpack.cost.settle import Entry, Settled, Squad, settle
from muster.cluster.binpack.cost.stock import Stock
from muster.cluster.model import Demand, Gang

MOST_RETRIES = 64  # proposals for gangs that failed; each is a small problem of its own


class Served(NamedTuple):
    """What one book came to."""

    entries: list[Entry]
    short: dict[int, int]  # demand -> requests without a place
    failed: list[int]  # gangs without a place


def serve(
    stock: Stock, demands: Sequence[Demand], gangs: Sequence[Gang], forms: Sequence[Sequence[Form]]
) -> Served:
    """`forms` are the ways to ask for each gang, in order of preference."""
    chosen = _Choice(stock, gangs).first_forms(forms)
    first = _attempt(stock, {i: (ask_of(d), d.count) for i, d in enumerate(demands)}, chosen)
    entries = list(first.entries)
    if not first.failed:
        return Served(entries, first.short, _missing(chosen, len(gangs)))
    failed: list[int] = []
    retries = MOST_RETRIES
    for squad in first.failed:
        waiting = list(squad.gangs)
        # Equal gangs fail alike: the first that finds no place speaks for the rest.
        while waiting and retries > 0:
            ways = _ways(stock, gangs[waiting[0]], forms[waiting[0]])
            retries -= 1 + len(ways)
            again = _first_that_serves(stock, waiting[0], ways)
            if not again:
                break
            entries += again
            del waiting[0]
        failed += waiting
    second = _attempt(stock, {i: (ask_of(demands[i]), n) for i, n in first.short.items()}, [])
    return Served(entries + second.entries, second.short, sorted(failed + _missing(chosen, len(gangs))))


def _missing(squads: Sequence[tuple[tuple[int, ...], Form]], count: int) -> list[int]:
    """Gangs for which no form could hold every bundle."""
    asked = {gang for gangs, _ in squads for gang in gangs}
    return [gang for gang in range(count) if gang not in asked]


class _Choice:
    """Picks the form each gang asks for first; equal gangs become one squad."""

    def __init__(self, stock: Stock, gangs: Sequence[Gang]) -> None:
        self.stock, self.gangs = stock, gangs
        self.pinned: dict[tuple[Form, ...], Form] = {}

    def first_forms(self, forms: Sequence[Sequence[Form]]) -> list[tuple[tuple[int, ...], Form]]:
        squads: dict[tuple[Form, str], list[int]] = {}
        for index, ways in enumerate(forms):
            form = self._first(self.gangs[index], [w for w in ways if self._plausible(w)])
            if form is not None:
                label = self.gangs[index].label
                marked = form.apart and self.stock.has_label(label)
                squads.setdefault((form, label if marked else ""), []).append(index)
        result = []
        for number, ((form, label), members) in enumerate(squads.items()):
            mark = Avoidance(label, None, len(members), number)
            result.append((tuple(members), form.marked(mark) if form.apart else form))
        return result

    def _plausible(self, form: Form) -> bool:
        return bool(form.parts) and all(self.stock.holds(part.ask) for part in form.parts)

    def _first(self, gang: Gang, ways: list[Form]) -> Form | None:
        """The first form; with a locality, the cheapest place for it when it is alone."""
        if not ways or not gang.locality_label:
            return ways[0] if ways else None
        key = tuple(ways)
        if key not in self.pinned:
            ranks = [(*_alone(self.stock, gang, way), i) for i, way in enumerate(ways)]
            self.pinned[key] = ways[min(ranks)[-1]]
        return self.pinned[key]


def _alone(stock: Stock, gang: Gang, form: Form) -> tuple[float, float]:
    """(missing items, cost) of a form that has the stock for itself."""
    marked = form.marked(Avoidance(gang.label, None, 1, 0)) if form.apart else form
    wanted = np.array([float(part.each) for part in marked.parts])
    proposal = stock.propose([part.ask for part in marked.parts], wanted)
    return float(wanted.sum() - proposal.amounts.sum()), proposal.cost


def _ways(stock: Stock, gang: Gang, forms: Sequence[Form]) -> list[Form]:
    """Forms of one gang on its own; with a locality, the cheapest place first."""
    marked = [f.marked(Avoidance(gang.label, None, 1, 0)) if f.apart else f for f in forms]
    able = [f for f in marked if f.parts and all(stock.holds(part.ask) for part in f.parts)]
    if gang.locality_label:
        able = [able[i] for _, _, i in sorted((*_alone(stock, gang, f), i) for i, f in enumerate(able))]
    return able


def _first_that_serves(stock: Stock, gang: int, ways: Sequence[Form]) -> list[Entry]:
    for form in ways:
        settled = _attempt(stock, {}, [((gang,), form)])
        if not settled.failed:
            return settled.entries
    return []


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

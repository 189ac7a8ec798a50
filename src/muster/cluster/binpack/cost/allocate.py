"""Who gets what of a proposal: gangs first and only whole, then demands; what nobody may use is given back.

Called by `demand`. Works on copies; the proposal it returns holds exactly the seats it handed out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.gangs import (
    ChosenForm,
    Form,
    GangPart,
    bundle_count,
    choose,
    gang_batches_of,
    split_gangs,
    ways_of,
)
from muster.cluster.binpack.cost.inventory import Inventory, Proposal
from muster.cluster.binpack.cost.problem import Ask, Ints, ask_of
from muster.cluster.model import Demand, Gang


class BinEntry(NamedTuple):
    """`amount` requests of one item in one bin; of a gang: bundles, all of one part of its form."""

    is_gang: bool
    item: int
    bin: int
    amount: int
    part: GangPart | None = None


class GangBatch(NamedTuple):
    """Gangs that ask for exactly the same; `classes` are the columns of the form's parts."""

    gangs: tuple[int, ...]
    form: Form
    classes: tuple[int, ...]


class Allocation(NamedTuple):
    """What was handed out, and who went away empty-handed."""

    entries: list[BinEntry]
    failed: list[GangBatch]  # gangs that are not complete
    short: dict[int, int]  # demand -> requests without a place
    proposal: Proposal


def allocate(
    proposal: Proposal, squads: Sequence[GangBatch], demands: Mapping[int, Sequence[tuple[int, int]]]
) -> Allocation:
    """`demands`: per class the (demand, count) pairs that ask for it."""
    seats = _Seats(proposal)
    failed = [left for squad in squads if (left := seats.serve(squad)).gangs]
    short: dict[int, int] = {}
    for cls, takers in demands.items():
        for demand, count in takers:
            missing = count - seats.hand_out(cls, count, (False, demand, None))
            if missing:
                short[demand] = short.get(demand, 0) + missing
    if not seats.left_over():
        return Allocation(seats.entries, failed, short, proposal)
    return _without_what_is_left(proposal, seats, failed, short)


class _Seats:
    """Units of each class on bins, handed out from the first bin on."""

    def __init__(self, proposal: Proposal) -> None:
        classes = int(proposal.asks[-1]) + 1 if len(proposal.asks) else 0
        cuts = np.searchsorted(proposal.asks, np.arange(classes + 1)).tolist()
        # Last bin first, so that the next seat to hand out is at the end.
        rows, amounts = proposal.rows[::-1].tolist(), proposal.amounts[::-1].tolist()
        size = len(rows)
        slices = [slice(size - high, size - low) for low, high in pairwise(cuts)]
        self.rows: list[list[int]] = [rows[part] for part in slices]
        self.amounts: list[list[int]] = [amounts[part] for part in slices]
        self.entries: list[BinEntry] = []

    def left_over(self) -> bool:
        return any(self.rows)

    def serve(self, squad: GangBatch) -> GangBatch:
        """Hand out whole gangs; returns the squad of those that get nothing."""
        served = self._serve_apart(squad) if squad.form.apart else self._serve_anywhere(squad)
        return squad._replace(gangs=squad.gangs[served:])

    def _serve_anywhere(self, squad: GangBatch) -> int:
        pairs = list(zip(squad.classes, squad.form.parts, strict=True))
        served = min((self._total(cls) // part.each for cls, part in pairs), default=0)
        served = min(served, len(squad.gangs))
        for gang in squad.gangs[:served]:
            for cls, part in pairs:
                self.hand_out(cls, part.each, (True, gang, part))
        return served

    def _total(self, cls: int) -> int:
        return sum(self.amounts[cls]) if cls < len(self.amounts) else 0

    def _serve_apart(self, squad: GangBatch) -> int:
        """The classes of such a squad are its own; what is not part of a whole gang stays unused."""
        held: dict[int, list[int]] = {}
        for place, cls in enumerate(squad.classes):
            if cls < len(self.rows):
                for row, amount in zip(self.rows[cls], self.amounts[cls], strict=True):
                    held.setdefault(row, [0] * len(squad.classes))[place] = amount
        rows = sorted(held)
        per_gang = [part.each for part in squad.form.parts]
        complete = split_gangs([held[row] for row in rows], per_gang, len(squad.gangs))
        for gang, seats in zip(squad.gangs, complete, strict=False):
            for row, place in seats:
                self._use_one(squad.classes[place], rows[row])
                self.entries.append(BinEntry(True, gang, rows[row], 1, squad.form.parts[place]))
        return len(complete)

    def _use_one(self, cls: int, row: int) -> None:
        at = self.rows[cls].index(row)
        self.amounts[cls][at] -= 1
        if not self.amounts[cls][at]:
            del self.rows[cls][at], self.amounts[cls][at]

    def hand_out(self, cls: int, count: int, to: tuple[bool, int, GangPart | None]) -> int:
        """Up to `count` units of a class; returns how many there were."""
        if cls >= len(self.rows):
            return 0
        rows, amounts = self.rows[cls], self.amounts[cls]
        is_gang, item, part = to
        bundles = 1 if part is None else part.bundles
        wanted, taken = count, 0
        while wanted and taken < len(rows) and amounts[-1 - taken] <= wanted:
            wanted -= amounts[-1 - taken]
            taken += 1
        if taken:
            whole = (a * bundles for a in amounts[: -1 - taken : -1])
            self.entries += map(
                BinEntry, repeat(is_gang), repeat(item), rows[: -1 - taken : -1], whole, repeat(part)
            )
            del rows[-taken:], amounts[-taken:]
        if wanted and rows:
            self.entries.append(BinEntry(is_gang, item, rows[-1], wanted * bundles, part))
            amounts[-1] -= wanted
            wanted = 0
        return count - wanted

    def unused(self) -> tuple[Ints, Ints, Ints]:
        """Rows, classes and amounts that nobody got."""
        rows = [row for some in self.rows for row in some]
        classes = [cls for cls, some in enumerate(self.rows) for _ in some]
        amounts = [amount for some in self.amounts for amount in some]
        return np.array(rows), np.array(classes), np.array(amounts)


def _without_what_is_left(
    proposal: Proposal, seats: _Seats, failed: list[GangBatch], short: dict[int, int]
) -> Allocation:
    """Give unused seats back, and machines that hold nothing then."""
    rows, classes, amounts = seats.unused()
    bins = proposal.old + len(proposal.types)
    left = proposal.amounts.copy()
    # Both lists name each (class, bin) once: find the unused ones by that number.
    keys = proposal.asks * bins + proposal.rows
    left[np.searchsorted(keys, classes * bins + rows)] -= amounts
    keep = np.bincount(proposal.rows, left, minlength=bins) > 0
    keep[: proposal.old] = True
    number = np.cumsum(keep) - 1
    some = left > 0
    kept = Proposal(
        number[proposal.rows[some]],
        proposal.asks[some],
        left[some],
        proposal.old,
        proposal.types[keep[proposal.old :]],
        proposal.cost,
    )
    entries = [entry._replace(bin=int(number[entry.bin])) for entry in seats.entries]
    return Allocation(entries, failed, short, kept)


MOST_RETRIES = 64  # proposals for gangs that failed; each is a small problem of its own
LARGEST_RETHOUGHT = 200_000  # bins x (demands + gangs) up to which other orders are tried


class Served(NamedTuple):
    """What one book came to."""

    entries: list[BinEntry]
    short: dict[int, int]  # demand -> requests without a place
    failed: list[int]  # gangs without a place


class GangRequest(NamedTuple):
    """What the book asks for; `forms` are the ways to ask for each gang, in order of preference."""

    demands: Sequence[Demand]
    gangs: Sequence[Gang]
    forms: Sequence[Sequence[Form]]


def serve(stock: Inventory, case: GangRequest) -> tuple[Served, Inventory]:
    """What is served, and the stock after that; the one given stays as it is."""
    chosen = choose(stock, case.gangs, case.forms)
    together = _Attempt(stock, case, chosen)
    together.run(list(chosen), with_demands=True)
    size = (len(stock.free) + 1) * (len(case.demands) + len(case.gangs))
    if not together.refused or size > LARGEST_RETHOUGHT:
        return together.served(), together.stock
    others = [_Attempt(stock, case, chosen) for _ in range(3)]
    others[0].run([gang for gang in chosen if gang not in together.refused], with_demands=True)
    others[1].run(list(chosen), with_demands=False)
    others[2].run([], with_demands=False)
    best = min([together, *others], key=_Attempt.rank)
    return best.served(), best.stock


class _Attempt:
    """One order: some gangs (perhaps with the demands) first, the other gangs one by one, demands last."""

    def __init__(self, stock: Inventory, case: GangRequest, chosen: dict[int, ChosenForm]) -> None:
        self.stock, self.case, self.chosen = stock.copy(), case, chosen
        self.entries: list[BinEntry] = []
        self.short: dict[int, int] = {}
        self.refused: list[int] = []  # gangs that the first step left out
        self.failed: list[int] = []

    def run(self, first: Sequence[int], with_demands: bool) -> None:
        everything = {index: demand.count for index, demand in enumerate(self.case.demands)}
        settled = self._attempt(everything if with_demands else {}, gang_batches_of(self.chosen, first))
        self.refused = [gang for squad in settled.failed for gang in squad.gangs]
        self.short = settled.short if with_demands else everything
        later = [gang for gang in self.chosen if gang not in first]
        self._one_by_one(gang_batches_of(self.chosen, [*self.refused, *sorted(later, key=self._size)]))
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

    def _attempt(self, demands: dict[int, int], squads: Sequence[tuple[tuple[int, ...], Form]]) -> Allocation:
        """Propose, hand out, take."""
        asked = {index: (ask_of(self.case.demands[index]), count) for index, count in demands.items()}
        settled = _attempt(self.stock, asked, squads)
        self.entries += settled.entries
        return settled


def _attempt(
    stock: Inventory, demands: dict[int, tuple[Ask, int]], squads: Sequence[tuple[tuple[int, ...], Form]]
) -> Allocation:
    """Propose, hand out, take."""
    index: dict[Ask, int] = {}
    takers: dict[int, list[tuple[int, int]]] = {}
    for demand, (ask, count) in demands.items():
        if count > 0:
            takers.setdefault(index.setdefault(ask, len(index)), []).append((demand, count))
    members = [
        GangBatch(gangs, form, tuple(index.setdefault(part.ask, len(index)) for part in form.parts))
        for gangs, form in squads
    ]
    wanted = np.zeros(len(index))
    for cls, pairs in takers.items():
        wanted[cls] += sum(count for _, count in pairs)
    for squad in members:
        for cls, part in zip(squad.classes, squad.form.parts, strict=True):
            wanted[cls] += part.each * len(squad.gangs)
    asks = list(index)
    settled = allocate(stock.propose(asks, wanted), members, takers)
    stock.take(settled.proposal, asks)
    return settled

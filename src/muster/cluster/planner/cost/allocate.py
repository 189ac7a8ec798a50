"""Distribute a proposal: first to gangs, and only whole ones, then to demands; unused slots are returned.

Called by `solve`. Works on copies; the returned proposal holds exactly the slots that were assigned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from muster.cluster.model import Demand, Gang
from muster.cluster.planner.cost.gangs import (
    ChosenVariant,
    GangPart,
    GangVariant,
    choose,
    gang_batches_of,
    promising,
    propose_alone,
    split_gangs,
    ways_of,
)
from muster.cluster.planner.cost.inventory import Inventory, Proposal
from muster.cluster.planner.cost.problem import Ask, Ints, ask_of
from muster.cluster.planner.demand_classes import gang_size


class BinEntry(NamedTuple):
    """A BinEntry is `amount` requests of one item in one bin; of a gang: bundles of one part."""

    is_gang: bool
    item: int
    bin: int
    amount: int
    part: GangPart | None = None


class GangBatch(NamedTuple):
    """Holds gangs with equal requests; `classes` are the columns of the variant's parts."""

    gangs: tuple[int, ...]
    variant: GangVariant
    classes: tuple[int, ...]


class Allocation(NamedTuple):
    """Says what was assigned, and which gangs and requests got nothing."""

    entries: list[BinEntry]
    failed: list[GangBatch]  # gangs that are not complete
    short: dict[int, int]  # demand -> requests without a place
    proposal: Proposal


def allocate(
    proposal: Proposal, batches: Sequence[GangBatch], demands: Mapping[int, Sequence[tuple[int, int]]]
) -> Allocation:
    """Assign the proposal's slots; `demands` has, per class, the (demand, count) pairs that ask for it."""
    slots = _Slots(proposal)
    failed = [left for batch in batches if (left := slots.serve(batch)).gangs]
    short: dict[int, int] = {}
    for cls, takers in demands.items():
        for demand, count in takers:
            missing = count - slots.assign(cls, count, (False, demand, None))
            if missing:
                short[demand] = short.get(demand, 0) + missing
    if not any(slots.rows):
        return Allocation(slots.entries, failed, short, proposal)
    return _without_unused(proposal, slots, failed, short)


class _Slots:
    """Units of each class on bins, assigned from the first bin on."""

    def __init__(self, proposal: Proposal) -> None:
        classes = int(proposal.asks[-1]) + 1 if len(proposal.asks) else 0
        cuts = np.searchsorted(proposal.asks, np.arange(classes + 1)).tolist()
        # Last bin first, so that the next slot to assign is at the end.
        rows, amounts = proposal.rows[::-1].tolist(), proposal.amounts[::-1].tolist()
        size = len(rows)
        slices = [slice(size - high, size - low) for low, high in pairwise(cuts)]
        self.rows: list[list[int]] = [rows[part] for part in slices]
        self.amounts: list[list[int]] = [amounts[part] for part in slices]
        self.entries: list[BinEntry] = []

    def serve(self, batch: GangBatch) -> GangBatch:
        """Assign whole gangs; return the batch of those that get nothing."""
        served = self._serve_apart(batch) if batch.variant.apart else self._serve_anywhere(batch)
        return batch._replace(gangs=batch.gangs[served:])

    def _serve_anywhere(self, batch: GangBatch) -> int:
        pairs = list(zip(batch.classes, batch.variant.parts, strict=True))
        totals = [sum(self.amounts[cls]) if cls < len(self.amounts) else 0 for cls, _ in pairs]
        served = min((total // part.each for total, (_, part) in zip(totals, pairs, strict=True)), default=0)
        served = min(served, len(batch.gangs))
        for gang in batch.gangs[:served]:
            for cls, part in pairs:
                self.assign(cls, part.each, (True, gang, part))
        return served

    def _serve_apart(self, batch: GangBatch) -> int:
        """Each class of such a batch is its own; a unit that is not part of a whole gang stays unused."""
        held: dict[int, list[int]] = {}
        for place, cls in enumerate(batch.classes):
            if cls < len(self.rows):
                for row, amount in zip(self.rows[cls], self.amounts[cls], strict=True):
                    held.setdefault(row, [0] * len(batch.classes))[place] = amount
        rows = sorted(held)
        per_gang = [part.each for part in batch.variant.parts]
        complete = split_gangs([held[row] for row in rows], per_gang, len(batch.gangs))
        for gang, slots in zip(batch.gangs, complete, strict=False):
            for row, place in slots:
                cls = batch.classes[place]
                at = self.rows[cls].index(rows[row])
                self.amounts[cls][at] -= 1
                if not self.amounts[cls][at]:
                    del self.rows[cls][at], self.amounts[cls][at]
                self.entries.append(BinEntry(True, gang, rows[row], 1, batch.variant.parts[place]))
        return len(complete)

    def assign(self, cls: int, count: int, to: tuple[bool, int, GangPart | None]) -> int:
        """Assign up to `count` units of a class; return how many there were."""
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
            held = amounts[: -1 - taken : -1]
            whole = held if bundles == 1 else [amount * bundles for amount in held]
            fields = zip(repeat(is_gang), repeat(item), rows[: -1 - taken : -1], whole, repeat(part))
            # Very many of them: made without a call of Python's for each.
            self.entries += map(tuple.__new__, repeat(BinEntry), fields)
            del rows[-taken:], amounts[-taken:]
        if wanted and rows:
            self.entries.append(BinEntry(is_gang, item, rows[-1], wanted * bundles, part))
            amounts[-1] -= wanted
            wanted = 0
        return count - wanted

    def unused(self) -> tuple[Ints, Ints, Ints]:
        """Return the rows, classes and amounts that were not assigned."""
        rows = [row for some in self.rows for row in some]
        classes = [cls for cls, some in enumerate(self.rows) for _ in some]
        amounts = [amount for some in self.amounts for amount in some]
        return np.array(rows), np.array(classes), np.array(amounts)


def _without_unused(
    proposal: Proposal, slots: _Slots, failed: list[GangBatch], short: dict[int, int]
) -> Allocation:
    """Return unused slots, and machines that hold nothing after that."""
    rows, classes, amounts = slots.unused()
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
    entries = [entry._replace(bin=int(number[entry.bin])) for entry in slots.entries]
    return Allocation(entries, failed, short, kept)


Batches = Sequence[tuple[tuple[int, ...], GangVariant]]  # equal gangs, and how they are asked for
MOST_RETRIES = 64  # proposals for gangs that failed; each is a small separate problem
LARGEST_RETHOUGHT = 200_000  # bins x (demands + gangs) up to which other orders are tried


class Served(NamedTuple):
    """Holds the result of one kind of demand."""

    entries: list[BinEntry]
    short: dict[int, int]  # demand -> requests without a place
    failed: list[int]  # gangs without a place


class GangRequest(NamedTuple):
    """Holds demands and gangs; `variants` of each gang are in order of preference."""

    demands: Sequence[Demand]
    gangs: Sequence[Gang]
    variants: Sequence[Sequence[GangVariant]]


def serve(
    inventory: Inventory, request: GangRequest, rival: Served | None = None
) -> tuple[Served, Inventory]:
    """Return what is served and the inventory after that; the given inventory does not change.

    With a `rival`, only a plan that serves as much is of use: its gangs are tried, and no other order.
    """
    chosen = choose(inventory, request.gangs, request.variants)
    able = promising(inventory, chosen)
    if rival is not None and rival.failed:
        lost = set(rival.failed)
        able = [gang for gang in chosen if gang not in lost]
    together = _Attempt(inventory, request, chosen)
    together.run(able, with_demands=True)
    size = (len(inventory.free) + 1) * (len(request.demands) + len(request.gangs))
    is_whole = not (together.refused or together.failed)
    if is_whole or size > LARGEST_RETHOUGHT or (rival is not None and rival.failed):
        return together.served(), together.inventory
    refused = set(together.refused)
    orders = [([gang for gang in able if gang not in refused], True), ([], False)]
    if request.demands:  # without them it is the first order again
        orders.append((able, False))
    attempts = [together]
    for first, with_demands in orders:
        attempts.append(_Attempt(inventory, request, chosen))
        attempts[-1].run(first, with_demands)
    best = min(attempts, key=_Attempt.rank)
    return best.served(), best.inventory


class _Attempt:
    """One order: some gangs (perhaps with the demands) first, the other gangs one by one, demands last."""

    def __init__(self, inventory: Inventory, request: GangRequest, chosen: dict[int, ChosenVariant]) -> None:
        self.inventory, self.request, self.chosen = inventory.copy(), request, chosen
        self.entries: list[BinEntry] = []
        self.short: dict[int, int] = {}
        self.refused: list[int] = []  # gangs that the first step left out
        self.failed: list[int] = []

    def run(self, first: Sequence[int], with_demands: bool) -> None:
        everything = {index: demand.count for index, demand in enumerate(self.request.demands)}
        allocation = self._attempt(everything if with_demands else {}, gang_batches_of(self.chosen, first))
        self.refused = [gang for batch in allocation.failed for gang in batch.gangs]
        self.short = allocation.short if with_demands else everything
        included = set(first)
        later = [gang for gang in self.chosen if gang not in included]
        later.sort(key=lambda gang: (gang_size(self.request.gangs[gang]), gang))
        self._one_by_one(gang_batches_of(self.chosen, [*self.refused, *later]))
        if self.short and (allocation.failed or later or not with_demands):
            self.short = self._attempt(self.short, []).short

    def _one_by_one(self, batches: Batches) -> None:
        """Equal gangs fail alike: when one of them finds no place, the rest is not tried."""
        retries = MOST_RETRIES
        for gangs, _ in batches:
            waiting = list(gangs)
            while waiting and retries > 0:
                ways = ways_of(
                    self.inventory, self.request.gangs[waiting[0]], self.request.variants[waiting[0]]
                )
                retries -= 1 + len(ways)
                if all(self._attempt({}, [((waiting[0],), way)], alone=True).failed for way in ways):
                    break
                del waiting[0]
            self.failed += waiting

    def served(self) -> Served:
        impossible = [gang for gang in range(len(self.request.gangs)) if gang not in self.chosen]
        return Served(self.entries, self.short, sorted(self.failed + impossible))

    def rank(self) -> tuple[int, float]:
        """Return the number of requests without a place, then the cost."""
        bundles = sum(gang_size(self.request.gangs[gang]) for gang in self.failed)
        return sum(self.short.values()) + bundles, float(self.inventory.cost[self.inventory.machines].sum())

    def _attempt(self, demands: dict[int, int], batches: Batches, alone: bool = False) -> Allocation:
        """Propose, allocate, take; one gang alone is first tried on nodes as they are."""
        index: dict[Ask, int] = {}
        takers: dict[int, list[tuple[int, int]]] = {}
        for demand, count in demands.items():
            if count > 0:
                cls = index.setdefault(ask_of(self.request.demands[demand]), len(index))
                takers.setdefault(cls, []).append((demand, count))
        members = [
            GangBatch(gangs, variant, tuple(index.setdefault(part.ask, len(index)) for part in variant.parts))
            for gangs, variant in batches
        ]
        wanted = np.zeros(len(index))
        for cls, pairs in takers.items():
            wanted[cls] += sum(count for _, count in pairs)
        for batch in members:
            for cls, part in zip(batch.classes, batch.variant.parts, strict=True):
                wanted[cls] += part.each * len(batch.gangs)
        asks = list(index)
        simple = propose_alone(self.inventory, asks, wanted) if alone else None
        allocation = allocate(simple or self.inventory.propose(asks, wanted), members, takers)
        self.inventory.take(allocation.proposal, asks)
        self.entries += allocation.entries
        return allocation

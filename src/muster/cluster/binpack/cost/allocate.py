"""Who gets what of a proposal: gangs first and only whole, then demands; what nobody may use is given back.

Called by `demand`. Works on copies; the proposal it returns holds exactly the seats it handed out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.forms import Form, Part
from muster.cluster.binpack.cost.gangs import split_gangs
from muster.cluster.binpack.cost.inventory import Proposal
from muster.cluster.binpack.cost.problem import Ints


class Entry(NamedTuple):
    """`amount` requests of one item in one bin; of a gang: bundles, all of one part of its form."""

    is_gang: bool
    item: int
    bin: int
    amount: int
    part: Part | None = None


class Squad(NamedTuple):
    """Gangs that ask for exactly the same; `classes` are the columns of the form's parts."""

    gangs: tuple[int, ...]
    form: Form
    classes: tuple[int, ...]


class Settled(NamedTuple):
    """What was handed out, and who went away empty-handed."""

    entries: list[Entry]
    failed: list[Squad]  # gangs that are not complete
    short: dict[int, int]  # demand -> requests without a place
    proposal: Proposal


def settle(
    proposal: Proposal, squads: Sequence[Squad], demands: Mapping[int, Sequence[tuple[int, int]]]
) -> Settled:
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
        return Settled(seats.entries, failed, short, proposal)
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
        self.entries: list[Entry] = []

    def left_over(self) -> bool:
        return any(self.rows)

    def serve(self, squad: Squad) -> Squad:
        """Hand out whole gangs; returns the squad of those that get nothing."""
        served = self._serve_apart(squad) if squad.form.apart else self._serve_anywhere(squad)
        return squad._replace(gangs=squad.gangs[served:])

    def _serve_anywhere(self, squad: Squad) -> int:
        pairs = list(zip(squad.classes, squad.form.parts, strict=True))
        served = min((self._total(cls) // part.each for cls, part in pairs), default=0)
        served = min(served, len(squad.gangs))
        for gang in squad.gangs[:served]:
            for cls, part in pairs:
                self.hand_out(cls, part.each, (True, gang, part))
        return served

    def _total(self, cls: int) -> int:
        return sum(self.amounts[cls]) if cls < len(self.amounts) else 0

    def _serve_apart(self, squad: Squad) -> int:
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
                self.entries.append(Entry(True, gang, rows[row], 1, squad.form.parts[place]))
        return len(complete)

    def _use_one(self, cls: int, row: int) -> None:
        at = self.rows[cls].index(row)
        self.amounts[cls][at] -= 1
        if not self.amounts[cls][at]:
            del self.rows[cls][at], self.amounts[cls][at]

    def hand_out(self, cls: int, count: int, to: tuple[bool, int, Part | None]) -> int:
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
                Entry, repeat(is_gang), repeat(item), rows[: -1 - taken : -1], whole, repeat(part)
            )
            del rows[-taken:], amounts[-taken:]
        if wanted and rows:
            self.entries.append(Entry(is_gang, item, rows[-1], wanted * bundles, part))
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
    proposal: Proposal, seats: _Seats, failed: list[Squad], short: dict[int, int]
) -> Settled:
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
    return Settled(entries, failed, short, kept)

"""Who gets what of a proposal: gangs first and only whole, then demands; what nobody may use is given back.

Called by `engine`. Works on copies; the proposal it returns holds exactly the seats it handed out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.arrays import Floats
from muster.cluster.binpack.cost.forms import Form, Part
from muster.cluster.binpack.cost.spread import split_gangs
from muster.cluster.binpack.cost.stock import Proposal


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
    entries: list[Entry]
    failed: list[Squad]  # gangs that are not complete
    short: dict[int, int]  # demand -> requests without a place
    proposal: Proposal


def settle(
    proposal: Proposal, squads: Sequence[Squad], demands: Mapping[int, Sequence[tuple[int, int]]]
) -> Settled:
    """`demands`: per class the (demand, count) pairs that ask for it."""
    seats = _Seats(proposal.loads)
    failed = [left for squad in squads if (left := seats.serve(squad)).gangs]
    short: dict[int, int] = {}
    for cls, takers in demands.items():
        for demand, count in takers:
            missing = count - seats.hand_out(cls, count, (False, demand, None))
            if missing:
                short[demand] = short.get(demand, 0) + missing
    return _without_what_is_left(proposal, seats, failed, short)


class _Seats:
    """Units of each class on bins, handed out from the first bin on."""

    def __init__(self, loads: Floats) -> None:
        self.left = loads.copy()
        self.totals = loads.sum(axis=0)
        self.cursor: dict[int, list[list[int]]] = {}
        self.entries: list[Entry] = []

    def serve(self, squad: Squad) -> Squad:
        """Hand out whole gangs; returns the squad of those that get nothing."""
        served = self._serve_apart(squad) if squad.form.apart else self._serve_anywhere(squad)
        return squad._replace(gangs=squad.gangs[served:])

    def _serve_anywhere(self, squad: Squad) -> int:
        pairs = list(zip(squad.classes, squad.form.parts, strict=True))
        served = min((int(self.totals[cls]) // part.each for cls, part in pairs), default=0)
        served = min(served, len(squad.gangs))
        for gang in squad.gangs[:served]:
            for cls, part in pairs:
                self.hand_out(cls, part.each, (True, gang, part))
        return served

    def _serve_apart(self, squad: Squad) -> int:
        classes = list(squad.classes)
        rows = np.flatnonzero(self.left[:, classes].any(axis=1))
        per_gang = [part.each for part in squad.form.parts]
        complete = split_gangs(self.left[rows][:, classes], per_gang, len(squad.gangs))
        for gang, seats in zip(squad.gangs, complete, strict=False):
            for row, place in seats:
                self.left[rows[row], classes[place]] -= 1
                part = squad.form.parts[place]
                self.entries.append(Entry(True, gang, int(rows[row]), 1, part))
        return len(complete)

    def hand_out(self, cls: int, count: int, to: tuple[bool, int, Part | None]) -> int:
        """Up to `count` units of a class; returns how many there were."""
        if cls not in self.cursor:
            rows = np.flatnonzero(self.left[:, cls])[::-1]
            amounts = self.left[rows, cls].astype(np.int64)
            self.cursor[cls] = [rows.tolist(), amounts.tolist()]
        rows_left, amounts_left = self.cursor[cls]
        is_gang, item, part = to
        bundles = 1 if part is None else part.bundles
        wanted = count
        while wanted and rows_left:
            amount = min(wanted, amounts_left[-1])
            self.entries.append(Entry(is_gang, item, rows_left[-1], amount * bundles, part))
            wanted -= amount
            amounts_left[-1] -= amount
            if not amounts_left[-1]:
                rows_left.pop()
                amounts_left.pop()
        self.totals[cls] -= count - wanted
        return count - wanted

    def unused(self) -> Floats:
        """Units that nobody got."""
        rest: Floats = self.left
        for cls, (rows, amounts) in self.cursor.items():
            rest[:, cls] = 0.0
            rest[rows, cls] = amounts
        return rest


def _without_what_is_left(
    proposal: Proposal, seats: _Seats, failed: list[Squad], short: dict[int, int]
) -> Settled:
    """Give unused seats back, and machines that hold nothing then."""
    loads = proposal.loads - seats.unused()
    bins = len(loads) - len(proposal.types)
    keep = np.concatenate([np.ones(bins, dtype=bool), loads[bins:].any(axis=1)])
    if keep.all():
        return Settled(seats.entries, failed, short, proposal._replace(loads=loads))
    number = np.cumsum(keep) - 1
    entries = [entry._replace(bin=int(number[entry.bin])) for entry in seats.entries]
    kept = Proposal(loads[keep], proposal.types[keep[bins:]], proposal.cost)
    return Settled(entries, failed, short, kept)

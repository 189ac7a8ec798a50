"""Compute how one node would be filled: every run in order, as many requests of it as fit.

The inner loop of the engine. Bit s of a mask stands for run s, so the runs a node could take are found
with one table look-up per column instead of one test per run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from muster.cluster.planner.demand_classes import first_match
from muster.cluster.planner.utilization.grouping import Labels, Lead, NodeRun, RelevantColumns, State


class Fill(NamedTuple):
    """What a node would take, and the node's state after that."""

    takes: tuple[tuple[int, int], ...]  # (run, how many)
    free: tuple[int, ...]
    used: int
    lead: Lead
    labels: Labels


class Needs(NamedTuple):
    """One run, prepared for the inner loop."""

    units: tuple[tuple[int, int, list[int], list[int]], ...]  # column, units, table; without zeros
    columns: int  # with the GPU mark
    run: NodeRun | None  # only when it has selectors or avoids a label


class Filler:
    """Has the runs of one attempt and how many requests of each are left."""

    def __init__(self, runs: Sequence[NodeRun], columns: RelevantColumns) -> None:
        self.runs = runs
        self.entangled = columns.entangled
        self.longest = max((len(run.selectors) for run in runs), default=0)
        wanted = [{columns.index[name]: value for name, value in run.shape.key if value > 0} for run in runs]
        used = sorted({column for units in wanted for column in units})  # of a gang: few of all columns
        self._tables = {column: _table(wanted, column) for column in used}
        self._pinned, self._by_pin = _by_pin(runs, columns)
        self._needs = [self._ready(run, units, columns) for run, units in zip(runs, wanted, strict=True)]
        # The runs that may not use some nodes, whatever is free there.
        picky = ((run.avoid is not None or (run.selectors and () not in run.selectors)) for run in runs)
        self._picky = [s for s, is_picky in enumerate(picky) if is_picky]
        self._label_masks: dict[Labels, int] = {}
        self._label_scores: dict[tuple[Lead, Labels], int] = {}
        self.gpu_mark = columns.gpu_mark
        self.users = [  # per column, and for the GPU mark: its bit, and the runs that use it
            (1 << column, sum(1 << s for s, needs in enumerate(self._needs) if needs.columns >> column & 1))
            for column in (*used, columns.width)
        ]
        self.selecting = sum(1 << s for s, run in enumerate(runs) if run.selectors)
        self.renew()

    def renew(self) -> None:
        """Reset the counts, as if nothing had been placed."""
        self.left = [run.amount for run in self.runs]
        self.alive = (1 << len(self.runs)) - 1
        self.fresh = True

    def _ready(self, run: NodeRun, units: dict[int, int], columns: RelevantColumns) -> Needs:
        used = sum(1 << column for column in units)
        if "GPU" in run.shape:
            used |= columns.gpu_mark
        steps = tuple((column, quantity, *self._tables[column]) for column, quantity in units.items())
        return Needs(steps, used, run if run.selectors or run.avoid is not None else None)

    def fitting(self, free: Sequence[int], pins: Sequence[str] = ()) -> int:
        """Return the runs whose shape fits, whether requests of them are left or not."""
        mask = ~self._pinned
        for name in pins if self._pinned else ():
            for others, runs in self._by_pin.get(name, {}).items():
                if all(other in pins for other in others):
                    mask |= runs
        for column, (cuts, masks) in self._tables.items():
            mask &= masks[bisect_right(cuts, free[column])]
        return mask & (1 << len(self.runs)) - 1

    def allowed(self, labels: Labels) -> int:
        """Return the runs that a node with these labels may take."""
        if not self._picky:
            return -1
        mask = self._label_masks.get(labels)
        if mask is None:
            values = dict(labels)
            mask = ~sum(1 << s for s in self._picky if not _may_take(self.runs[s], values))
            self._label_masks[labels] = mask
        return mask

    def label_score(self, lead: Lead, labels: Labels) -> int:
        """Return how early the matching selector of the first placed request that has one is in its list."""
        score = self._label_scores.get((lead, labels))
        if score is None:
            score = self._label_scores[lead, labels] = _label_score(lead, dict(labels))
        return score

    def take(self, run: int, amount: int) -> int:
        """Count requests as placed; returns how many are left."""
        left = self.left[run] = self.left[run] - amount
        self.fresh = False
        if not left:
            self.alive &= ~(1 << run)
        return left

    def fill(self, state: State, fitting: int) -> Fill | None:
        """Return what the node, which these runs fit, would take of what is left; None when nothing."""
        mask = self.alive & fitting & self.allowed(state.labels)
        if not mask:
            return None
        free, used = list(state.free), state.used
        lead, labels, takes = state.lead, state.labels, []
        left, needs, watchful = self.left, self._needs, self.entangled
        while mask:
            lowest = mask & -mask
            s = lowest.bit_length() - 1
            units, columns, run = needs[s]
            mask ^= lowest
            amount = left[s]
            for column, quantity, _, _ in units:
                fits = free[column] // quantity
                if fits < amount:  # noqa: PLR1730 - the hottest line: a call would double it
                    amount = fits
            if run is not None and run.avoid is not None:
                amount = 1
            for column, quantity, cuts, masks in units:
                rest = free[column] = free[column] - amount * quantity
                if mask:
                    mask &= masks[bisect_right(cuts, rest)]
            used |= columns
            takes.append((s, amount))
            if run is None or (lead and not watchful and run.avoid is None):
                continue
            lead, labels, mask = self._noted(run, (lead, labels), (free, state.frame.pins), (s, mask))
        return Fill(tuple(takes), tuple(free), used, lead, labels)

    def _noted(
        self,
        run: NodeRun,
        so_far: tuple[Lead, Labels],
        left: tuple[Sequence[int], Sequence[str]],
        at: tuple[int, int],
    ) -> tuple[Lead, Labels, int]:
        """Return the selectors, the labels with the new one, and the runs that may still follow."""
        lead, labels = so_far
        s, mask = at
        if run.selectors and (not lead or (self.entangled and run.selectors not in lead)):
            lead = (*lead, run.selectors)
        if run.avoid is None:
            return lead, labels, mask
        labels = tuple(sorted({**dict(labels), run.avoid[0]: run.avoid[1]}.items()))
        later = self.alive & self.fitting(*left) & self.allowed(labels)
        return lead, labels, later >> (s + 1) << (s + 1)


def _by_pin(
    runs: Sequence[NodeRun], columns: RelevantColumns
) -> tuple[int, dict[str, dict[tuple[str, ...], int]]]:
    """Return the runs that ask for resources in shared columns; then by the first of these, and by all."""
    pinned = 0
    found: dict[str, dict[tuple[str, ...], int]] = {}
    for s, run in enumerate(runs):
        pins = columns.pins_of(name for name, value in run.shape.key if value > 0)
        if pins:
            pinned |= 1 << s
            mine = found.setdefault(pins[0], {})
            mine[pins] = mine.get(pins, 0) | 1 << s
    return pinned, found


def _table(wanted: Sequence[dict[int, int]], column: int) -> tuple[list[int], list[int]]:
    """Return the sorted quantities, and for each gap between them the runs that ask no more."""
    asked: dict[int, int] = {}
    for s, units in enumerate(wanted):
        quantity = units.get(column, 0)
        asked[quantity] = asked.get(quantity, 0) | 1 << s
    cuts, masks, mask = sorted(asked), [0], 0
    for quantity in cuts:
        mask |= asked[quantity]
        masks.append(mask)
    return cuts, masks


def _label_score(lead: Lead, labels: dict[str, str]) -> int:
    for selectors in lead:
        index = first_match(selectors, labels)
        if index is not None:
            return len(selectors) - index
    return 0


def _may_take(run: NodeRun, labels: dict[str, str]) -> bool:
    if run.selectors and first_match(run.selectors, labels) is None:
        return False
    return run.avoid is None or labels.get(run.avoid[0]) != run.avoid[1]

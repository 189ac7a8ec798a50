"""Who went where: turns placed runs back into placements of single items."""

from __future__ import annotations

from collections.abc import Sequence

from muster.cluster.binpack.request import Book, Placement, Unplaced
from muster.cluster.binpack.utilization.runs import Run

_Where = tuple[Book, bool, int, int, str]  # a Placement without its amount


class Ledger:
    """Placements and leftovers of a whole pass."""

    def __init__(self) -> None:
        self._amounts: dict[_Where, int] = {}
        self.unplaced: list[Unplaced] = []

    def note(self, where: _Where, amount: int) -> None:
        self._amounts[where] = self._amounts.get(where, 0) + amount

    def placements(self) -> tuple[Placement, ...]:
        return tuple(Placement(*where, amount) for where, amount in self._amounts.items())


class Posting:
    """One committed attempt: the items of a run are served first come, first served."""

    def __init__(self, ledger: Ledger, runs: Sequence[Run], book: Book, is_gang: bool) -> None:
        self._ledger = ledger
        self._book = book
        self._is_gang = is_gang
        self._shares = [[*run.shares] for run in runs]
        for shares in self._shares:
            shares.reverse()  # the next to be served is the last

    def note(self, takes: Sequence[tuple[int, int]], node: int, node_type: str, times: int = 1) -> None:
        """The same requests on so many nodes."""
        for run, amount in takes:
            left = amount * times
            shares = self._shares[run]
            while left:
                item, count, bundles = shares[-1]
                served = min(left, count)
                where = (self._book, self._is_gang, item, node, node_type)
                self._ledger.note(where, served * bundles)
                left -= served
                if served == count:
                    shares.pop()
                else:
                    shares[-1] = shares[-1]._replace(amount=count - served)

    def close(self) -> None:
        """What was not served found no place."""
        for shares in self._shares:
            for item, count, bundles in reversed(shares):
                self._ledger.unplaced.append(Unplaced(self._book, self._is_gang, item, count * bundles))

"""Who went where: turns placed runs back into placements of single items."""

from __future__ import annotations

from collections.abc import Sequence

from muster.cluster.binpack.request import Book, Placement, Unplaced
from muster.cluster.binpack.utilization.grouping import Run


class Ledger:
    """Placements and leftovers of a whole pass."""

    def __init__(self) -> None:
        self.placements: list[Placement] = []
        self.unplaced: list[Unplaced] = []


class Posting:
    """One committed attempt: the items of a run are served first come, first served."""

    def __init__(self, runs: Sequence[Run]) -> None:
        # Per run, the item served next is the last: [item, requests not served yet, bundles per request].
        self._queues = [[[*share] for share in reversed(run.shares)] for run in runs]
        self._amounts: dict[tuple[int, int, str], int] = {}

    def note(self, takes: Sequence[tuple[int, int]], node: int, node_type: str, times: int = 1) -> None:
        """The same requests on so many nodes."""
        amounts = self._amounts
        for run, amount in takes:
            left = amount * times
            queue = self._queues[run]
            while left:
                share = queue[-1]
                served = min(left, share[1])
                where = (share[0], node, node_type)
                amounts[where] = amounts.get(where, 0) + served * share[2]
                left -= served
                share[1] -= served
                if not share[1]:
                    queue.pop()

    def close(self, ledger: Ledger, book: Book, is_gang: bool) -> None:
        """Into the ledger: what was served, and that the rest found no place."""
        ledger.placements += [
            Placement(book, is_gang, *where, amount) for where, amount in self._amounts.items()
        ]
        ledger.unplaced += [
            Unplaced(book, is_gang, item, count * bundles)
            for queue in self._queues
            for item, count, bundles in reversed(queue)
        ]

"""Turns: which of HyperBand's brackets gets the next worker, without looking at all of them.

Called by Bands. O(log n) in the brackets for each change, since their keys change with every report.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from heapq import heapify, heappop, heappush

from muster.tune.schedulers.hyperband_bracket import Bracket

Key = tuple[int, float, int]  # the bracket's number comes last
_MOST_OUTDATED = 64  # entries


class Turns:
    """Brackets with trials to start, smallest key first. Whoever changes a bracket puts it in `touched`."""

    def __init__(self, key: Callable[[Bracket], Key], brackets: Sequence[Bracket]) -> None:
        self._key, self._brackets = key, brackets
        self._heap: list[Key] = []  # every such bracket with its key of now, and outdated entries
        self.touched: dict[int, Bracket] = {}  # by number: since the last look

    def __iter__(self) -> Generator[Bracket]:
        """Close the iterator: what it has gone past is put back then."""
        self._take_up()
        past: list[Key] = []
        try:
            while self._heap:
                entry = heappop(self._heap)
                if self._is_true(entry) and entry not in past[-1:]:
                    past.append(entry)
                    yield self._brackets[entry[-1]]
        finally:
            for entry in past:
                heappush(self._heap, entry)

    def _take_up(self) -> None:
        for bracket in self.touched.values():
            if bracket.unstarted:
                heappush(self._heap, self._key(bracket))
        self.touched.clear()
        if len(self._heap) > _MOST_OUTDATED + 2 * len(self._brackets):
            self._heap = list({entry for entry in self._heap if self._is_true(entry)})
            heapify(self._heap)

    def _is_true(self, entry: Key) -> bool:
        bracket = self._brackets[entry[-1]]
        return bool(bracket.unstarted) and self._key(bracket) == entry

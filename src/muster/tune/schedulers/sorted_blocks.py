"""SortedBlocks: values in order that come and go one by one, and are found by place or by rank.

Kept in blocks, so that a change moves a few thousand values at most: one list of a million would move half of
them each time. Called by schedulers that compare all trials; pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

_MOST = 8_000  # values in a block

Value = TypeVar("Value", bound=Any)  # anything with an order


class SortedBlocks(Generic[Value]):
    """A sorted list of values that may be equal.

    Example:
        >>> values = SortedBlocks([3, 1, 2])
        >>> values.add(0)
        >>> list(values), values[1], values.place(2)
        ([0, 1, 2, 3], 1, 2)
    """

    def __init__(self, values: Iterable[Value] = ()) -> None:
        ordered = sorted(values)
        half = _MOST // 2
        self._blocks = [ordered[start : start + half] for start in range(0, len(ordered), half)]
        self._last = [block[-1] for block in self._blocks]  # of each block
        self._length = len(ordered)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Value]:
        for block in self._blocks:
            yield from block

    def add(self, value: Value) -> None:
        self._length += 1
        if not self._blocks:
            self._blocks, self._last = [[value]], [value]
            return
        at = min(bisect_left(self._last, value), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, value)
        self._last[at] = block[-1]
        if len(block) > _MOST:
            half = len(block) // 2
            self._blocks[at : at + 1] = [block[:half], block[half:]]
            self._last[at : at + 1] = [block[half - 1], block[-1]]

    def remove(self, value: Value) -> None:
        """One of those that are equal to it; ValueError when there is none."""
        at = bisect_left(self._last, value)
        block = self._blocks[at] if at < len(self._blocks) else []
        place = bisect_left(block, value)
        if place == len(block) or block[place] != value:
            raise ValueError(f"{value!r} is not among them")
        self._length -= 1
        del block[place]
        if block:
            self._last[at] = block[-1]
        else:
            del self._blocks[at], self._last[at]

    def place(self, value: Value) -> int:
        """How many are smaller."""
        at = bisect_left(self._last, value)
        before = sum(map(len, self._blocks[:at]))
        return before if at == len(self._blocks) else before + bisect_left(self._blocks[at], value)

    def __getitem__(self, place: int) -> Value:
        """From 0 to its length less 1."""
        left = place
        for block in self._blocks:
            if left < len(block):
                return block[left]
            left -= len(block)
        raise IndexError(place)

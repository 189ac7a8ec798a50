"""An engine's answer as the planner's: indices become instance ids, and every request is counted once.

Called by `pack`; changes no decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from muster.cluster.binpack.request import Book, ItemOutcome, PackNode, PackSolution

Counts = dict[str, int]
NONE: Counts = {}  # shared by the many outcomes that have nothing of a kind; outcomes are never changed


class Tally:
    """Where the requests of the items of one kind (demands, gangs, constraints) went, by item."""

    def __init__(self) -> None:
        self.placed: dict[int, Counts] = {}
        self.coming: dict[int, Counts] = {}
        self.bought: dict[int, Counts] = {}
        self.unplaced: dict[int, int] = {}

    def outcome(self, index: int, position: int) -> ItemOutcome:
        """The outcome of the item that is `index` for the asker and `position` for the engine."""
        return ItemOutcome(
            index=index,
            placed=self.placed.get(position, NONE),
            coming=self.coming.get(position, NONE),
            bought=self.bought.get(position, NONE),
            unplaced=self.unplaced.get(position, 0),
        )

    def parts(self, position: int) -> Iterator[Part]:
        """The requests that found a place, as a row of parts: running nodes first."""
        for kind, counts in enumerate((self.placed, self.coming, self.bought)):
            for where, amount in counts.get(position, NONE).items():
                yield Part(kind, where, amount)


PLACED, COMING, BOUGHT, UNPLACED = range(4)


class Part(NamedTuple):
    """`amount` requests that went the same way."""

    kind: int  # PLACED, COMING, BOUGHT or UNPLACED
    where: str
    amount: int


class Tallies:
    """A solution counted: one tally per kind of item, and which existing nodes anything was planned onto."""

    def __init__(self) -> None:
        self.demands = Tally()
        self.gangs = Tally()
        self.constraints = Tally()
        self.needed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, solution: PackSolution, nodes: Sequence[PackNode]) -> Tallies:
        tallies = cls()
        plain, in_demand = tallies.demands, Book.DEMAND
        used: set[int] = set()
        for book, is_gang, item, node, node_type, amount in solution.placements:
            tally = plain if book is in_demand and not is_gang else tallies._kind(book, is_gang)
            if node < 0:
                _add(tally.bought, item, node_type, amount)
                continue
            used.add(node)
            where = nodes[node]
            if not where.key:
                _add(tally.bought, item, where.node_type, amount)
            else:
                _add(tally.placed if where.runs else tally.coming, item, where.key, amount)
        for book, is_gang, item, amount in solution.unplaced:
            unplaced = tallies._kind(book, is_gang).unplaced
            unplaced[item] = unplaced.get(item, 0) + amount
        tallies.needed = frozenset(nodes[node].key for node in used) - {""}
        return tallies

    def _kind(self, book: Book, is_gang: bool) -> Tally:
        if book is Book.CONSTRAINT:
            return self.constraints
        return self.gangs if is_gang else self.demands


def _add(counts: dict[int, Counts], item: int, where: str, amount: int) -> None:
    of_item = counts.get(item)
    if of_item is None:
        counts[item] = {where: amount}
    else:
        of_item[where] = of_item.get(where, 0) + amount

"""The cost engine's problem as arrays: item classes, what can be bought, what is there already.

Quantities are whole numbers held in float64 (scaled so that they stay exact); infinity means "no limit".
Column r < `real` is a resource; later columns count members of a group that exclude each other on a node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Items(NamedTuple):
    """Classes of equal requests: what one takes of each column."""

    size: Floats  # classes x columns
    real: int  # how many of the columns are resources


class Market(NamedTuple):
    """Machine types that can be bought."""

    size: Floats  # types x columns
    cost: Floats  # per machine; always > 0
    allowed: Bools  # types x classes
    room: Floats  # how many machines of each type
    total_room: float

    def only(self, keep: Ints) -> Market:
        return Market(self.size[keep], self.cost[keep], self.allowed[keep], self.room[keep], self.total_room)


class Bins(NamedTuple):
    """Nodes that are there, are coming, or were bought earlier: free of charge."""

    free: Floats  # bins x columns
    allowed: Bools | None  # bins x classes; None: everything
    tier: Ints  # lower tiers are filled first
    growth: Floats | None = None  # by how much each could grow in place, free of charge


class Purchase(NamedTuple):
    """`copies` machines of one type, each loaded with `load` (items of each class)."""

    type: int
    load: Floats
    copies: int


class Layout(NamedTuple):
    """Where everything went."""

    loads: Floats  # bins x classes
    bought: tuple[Purchase, ...]
    unserved: Floats  # per class
    cost: float


def counts_that_fit(free: Floats, size: Floats) -> Floats:
    """How many of each item fit alone on each row: rows x items."""
    fits = np.full((len(free), len(size)), np.inf)
    for column in range(size.shape[1]):
        users = np.flatnonzero(size[:, column])
        if len(users):
            held = np.floor(free[:, column, None] / size[users, column])
            fits[:, users] = np.minimum(fits[:, users], held)
    return fits


def group_columns(items: Items) -> tuple[Ints, Ints]:
    """The classes that belong to a group, and per class the column of its group (0: none).

    A class is in at most one group and takes one place of it; column 0 is always a resource.
    """
    marks = items.size[:, items.real :]
    if not marks.shape[1]:
        return np.zeros(0, dtype=np.int64), np.zeros(len(items.size), dtype=np.int64)
    grouped = marks.any(axis=1)
    return np.flatnonzero(grouped), np.where(grouped, items.real + marks.argmax(axis=1), 0)


def load_size(loads: Floats, items: Items) -> Floats:
    """What each row of loads takes of each column; loads are mostly zeros."""
    rows, classes = np.nonzero(loads)
    amounts = loads[rows, classes]
    taken: Floats = np.zeros((len(loads), items.size.shape[1]))
    for column in range(items.real):
        taken[:, column] = np.bincount(rows, amounts * items.size[classes, column], minlength=len(loads))
    grouped, group = group_columns(items)
    if len(grouped):
        marked = np.flatnonzero(group[classes])
        np.add.at(taken, (rows[marked], group[classes[marked]]), amounts[marked])
    return taken

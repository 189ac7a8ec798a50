"""Tell k equal gangs apart: which bundle on which node belongs to which of them, none twice on one node.

Called by `settle`. Bundles on nodes are edges of a bipartite graph (node, place in the gang); a colouring of
its edges with k colours in which equal colours never meet is such an assignment, and it exists (König).
"""

from __future__ import annotations

from collections.abc import Sequence

Seat = tuple[int, int]  # (bin, class)


def split_gangs(loads: Sequence[Sequence[int]], per_gang: Sequence[int], gangs: int) -> list[list[Seat]]:
    """Seats of as many whole gangs as the loads (bins x classes, at most `gangs` on any bin) hold."""
    whole, loads = _whole_gangs(loads, per_gang, gangs)
    places = [cls for cls, count in enumerate(per_gang) for _ in range(count)]
    starts = [sum(per_gang[:cls]) for cls in range(len(per_gang))]
    colouring = _Colouring(len(places), whole)
    used = [0] * len(per_gang)
    for row, load in enumerate(loads):
        for cls, amount in enumerate(load):
            for _ in range(min(amount, whole * per_gang[cls] - used[cls])):
                colouring.add(row, starts[cls] + used[cls] % per_gang[cls])
                used[cls] += 1
    return [[(row, places[place]) for place, row in sorted(seats.items())] for seats in colouring.gangs()]


def _whole_gangs(
    loads: Sequence[Sequence[int]], per_gang: Sequence[int], gangs: int
) -> tuple[int, Sequence[Sequence[int]]]:
    """How many gangs are complete, and the loads without what no node may hold for that many."""
    while gangs:
        loads = [_capped(load, gangs) for load in loads]
        totals = [sum(load[cls] for load in loads) for cls in range(len(per_gang))]
        enough = min((total // count for total, count in zip(totals, per_gang, strict=True)), default=0)
        if enough >= gangs:
            break
        gangs = enough
    return gangs, loads


def _capped(load: Sequence[int], most: int) -> Sequence[int]:
    """At most `most` seats of one node, the most frequent class giving way first."""
    if sum(load) <= most:
        return load
    left = list(load)
    while sum(left) > most:
        left[left.index(max(left))] -= 1
    return left


class _Colouring:
    """Edges node-place coloured so that equal colours never meet at a node or at a place."""

    def __init__(self, places: int, colours: int) -> None:
        self.colours = colours
        self.at_place: list[dict[int, int]] = [{} for _ in range(places)]  # colour -> node
        self.at_node: dict[int, dict[int, int]] = {}  # node -> colour -> place

    def add(self, node: int, place: int) -> None:
        mine = self.at_node.setdefault(node, {})
        theirs = self.at_place[place]
        node_free = next(c for c in range(self.colours) if c not in mine)
        place_free = next(c for c in range(self.colours) if c not in theirs)
        if node_free in theirs:
            self._swap_path(place, node_free, place_free)
        self.at_node[node][node_free] = place
        theirs[node_free] = node

    def _swap_path(self, place: int, first: int, second: int) -> None:
        """Exchange two colours along the path that leaves `place` by `first`; it never ends at the node."""
        path: list[tuple[int, int, int]] = []  # node, place, colour
        here, colour = place, first
        while True:
            node = self.at_place[here].get(colour)
            if node is None:
                break
            path.append((node, here, colour))
            other = second if colour == first else first
            onward = self.at_node[node].get(other)
            if onward is None:
                break
            path.append((node, onward, other))
            here = onward
        for node, at, colour in path:
            del self.at_place[at][colour], self.at_node[node][colour]
        for node, at, colour in path:
            other = second if colour == first else first
            self.at_place[at][other] = node
            self.at_node[node][other] = at

    def gangs(self) -> list[dict[int, int]]:
        """Per colour: place -> node."""
        result: list[dict[int, int]] = [{} for _ in range(self.colours)]
        for place, taken in enumerate(self.at_place):
            for colour, node in taken.items():
                result[colour][place] = node
        return result

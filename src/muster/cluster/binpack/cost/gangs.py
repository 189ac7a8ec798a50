"""Creates variants of gangs, and separates k equal gangs: which bundle on which node belongs to which gang.

Called by `allocate`. Bundles on nodes are edges of a bipartite graph (node, place in the gang); a colouring
of its edges with k colours in which equal colours never meet is such an assignment, and one always exists
(König).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from muster.base.resources import Resources
from muster.cluster.binpack.cost.inventory import Inventory
from muster.cluster.binpack.cost.problem import Ask, Avoidance, ask_of, selectors_of
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, Strategy

Slot = tuple[int, int]  # (bin, class)


def split_gangs(loads: Sequence[Sequence[int]], per_gang: Sequence[int], gangs: int) -> list[list[Slot]]:
    """Returns slots of as many whole gangs as the loads (bins x classes, at most `gangs` on any bin) hold."""
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
    return [[(row, places[place]) for place, row in sorted(slots.items())] for slots in colouring.gangs()]


def _whole_gangs(
    loads: Sequence[Sequence[int]], per_gang: Sequence[int], gangs: int
) -> tuple[int, Sequence[Sequence[int]]]:
    """Returns how many gangs are complete, and the loads without what no node may hold for that many."""
    while gangs:
        loads = [_capped(load, gangs) for load in loads]
        totals = [sum(load[cls] for load in loads) for cls in range(len(per_gang))]
        enough = min((total // count for total, count in zip(totals, per_gang, strict=True)), default=0)
        if enough >= gangs:
            break
        gangs = enough
    return gangs, loads


def _capped(load: Sequence[int], most: int) -> Sequence[int]:
    """Returns at most `most` slots of one node; the most frequent class is reduced first."""
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
        """Exchanges two colours along the path that leaves `place` by `first`; it never ends at the node."""
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
        """Returns per colour: place -> node."""
        result: list[dict[int, int]] = [{} for _ in range(self.colours)]
        for place, taken in enumerate(self.at_place):
            for colour, node in taken.items():
                result[colour][place] = node
        return result


class GangPart(NamedTuple):
    """A GangPart is `each` equal items of one gang; each stands for `bundles` of its bundles."""

    ask: Ask
    each: int  # items
    bundles: int


class GangVariant(NamedTuple):
    """A GangVariant is one way to place a gang: all parts or nothing."""

    parts: tuple[GangPart, ...]
    bundles: int
    apart: bool  # its items lie on different nodes
    option: int  # which of the gang's options it is

    def marked(self, mark: Avoidance) -> GangVariant:
        """Returns the same variant with every item in the group of `mark`."""
        parts = tuple(part._replace(ask=part.ask._replace(apart=mark)) for part in self.parts)
        return self._replace(parts=parts)


def variants_of(gang: Gang, values: Sequence[str], spread_strictly: bool) -> list[GangVariant]:
    """Returns variants in order of preference; `values` are those of the gang's locality label."""
    apart = gang.strategy is Strategy.STRICT_SPREAD or (spread_strictly and gang.strategy is Strategy.SPREAD)
    variants = []
    for number, option in enumerate(gang.options):
        asked = [option]
        if gang.locality_label:
            pins = [LabelMatch(gang.locality_label, LabelOperator.IN, (value,)) for value in values]
            asked = [tuple(_pinned(demand, pin) for demand in option) for pin in pins]
        for bundles in asked:
            packed = gang.strategy is Strategy.STRICT_PACK
            parts = _merged(bundles) if packed else _counted(bundles)
            variants.append(GangVariant(parts, sum(demand.count for demand in option), apart, number))
    return variants


def _pinned(demand: Demand, pin: LabelMatch) -> Demand:
    selectors = tuple((*selector, pin) for selector in selectors_of(demand.selectors) or ((),))
    return Demand(shape=demand.shape, count=demand.count, selectors=selectors, avoid=demand.avoid)


def _counted(option: Sequence[Demand]) -> tuple[GangPart, ...]:
    """Groups equal bundles."""
    counts: dict[Ask, int] = {}
    for demand in option:
        ask = ask_of(demand)
        counts[ask] = counts.get(ask, 0) + demand.count
    ranked = sorted(counts, key=lambda ask: ask.shape)
    return tuple(GangPart(ask, counts[ask], 1) for ask in ranked if counts[ask])


def _merged(option: Sequence[Demand]) -> tuple[GangPart, ...]:
    """Returns one item per distinct selector list, as large as its bundles together."""
    sums: dict[tuple[object, object], tuple[Ask, Resources, int]] = {}
    for demand in option:
        ask = ask_of(demand)
        key = (ask.selectors, ask.apart)
        _, shape, count = sums.get(key, (ask, Resources(), 0))
        sums[key] = (ask, shape.plus(demand.shape.positive().times(demand.count)), count + demand.count)
    return tuple(GangPart(ask._replace(shape=shape.key), 1, n) for ask, shape, n in sums.values() if n)


class ChosenVariant(NamedTuple):
    """A ChosenVariant is what a gang asks for; `label` when nodes carry the gang's mark already."""

    variant: GangVariant
    label: str


def choose(
    inventory: Inventory, gangs: Sequence[Gang], variants: Sequence[Sequence[GangVariant]]
) -> dict[int, ChosenVariant]:
    """Returns the chosen variant per gang; gangs of which no variant could be held are left out."""
    best_place: dict[tuple[GangVariant, ...], GangVariant] = {}
    chosen: dict[int, ChosenVariant] = {}
    for index, gang in enumerate(gangs):
        ways = tuple(way for way in variants[index] if _plausible(inventory, way))
        if not ways:
            continue
        if gang.locality_label and ways not in best_place:
            best_place[ways] = _by_place(inventory, gang, ways)[0]
        variant = best_place[ways] if gang.locality_label else ways[0]
        marked = variant.apart and any(gang.label in labels for labels in inventory.bin_labels)
        chosen[index] = ChosenVariant(variant, gang.label if marked else "")
    return chosen


def gang_batches_of(
    chosen: dict[int, ChosenVariant], gangs: Iterable[int]
) -> list[tuple[tuple[int, ...], GangVariant]]:
    """Groups equal gangs; those that spread share their places."""
    members: dict[ChosenVariant, list[int]] = {}
    for gang in gangs:
        members.setdefault(chosen[gang], []).append(gang)
    result = []
    for number, (choice, equal) in enumerate(members.items()):
        mark = Avoidance(choice.label, None, len(equal), number)
        result.append((tuple(equal), choice.variant.marked(mark) if choice.variant.apart else choice.variant))
    return result


def ways_of(inventory: Inventory, gang: Gang, variants: Sequence[GangVariant]) -> list[GangVariant]:
    """Returns variants of one gang alone, in order; with a locality, the cheapest place first."""
    able = [variant for variant in variants if _plausible(inventory, variant)]
    if gang.locality_label:
        able = _by_place(inventory, gang, able)
    return [_alone(gang, variant) for variant in able]


def _plausible(inventory: Inventory, variant: GangVariant) -> bool:
    return bool(variant.parts) and all(inventory.holds(part.ask) for part in variant.parts)


def _alone(gang: Gang, variant: GangVariant) -> GangVariant:
    return variant.marked(Avoidance(gang.label, None, 1, 0)) if variant.apart else variant


def _by_place(inventory: Inventory, gang: Gang, variants: Sequence[GangVariant]) -> list[GangVariant]:
    """Sorts: complete before incomplete, then by option, then by the cost with the whole inventory."""
    ranks = []
    for index, variant in enumerate(variants):
        parts = _alone(gang, variant).parts
        wanted = np.array([float(part.each) for part in parts])
        proposal = inventory.propose([part.ask for part in parts], wanted)
        missing = float(wanted.sum() - proposal.amounts.sum())
        ranks.append((missing > 0, variant.option, proposal.cost, index))
    return [variants[rank[-1]] for rank in sorted(ranks)]

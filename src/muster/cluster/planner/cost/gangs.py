"""Create variants of gangs, and separates k equal gangs: which bundle on which node belongs to which gang.

Called by `allocate`. Bundles on nodes are edges of a bipartite graph (node, place in the gang); a colouring
of its edges with k colours in which equal colours never meet is such an assignment, and one always exists
(König).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, Strategy
from muster.cluster.planner.cost.inventory import Inventory, Proposal, no_proposal
from muster.cluster.planner.cost.problem import Ask, Avoidance, Floats, ask_of, counts_that_fit, selectors_of

Slot = tuple[int, int]  # (bin, class)
TINY = 1e-9


def split_gangs(loads: Sequence[Sequence[int]], per_gang: Sequence[int], gangs: int) -> list[list[Slot]]:
    """Return slots of as many whole gangs as the loads (bins x classes, at most `gangs` on any bin) hold."""
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
    """Return how many gangs are complete, and the loads without what no node may hold for that many."""
    while gangs:
        loads = [_capped(load, gangs) for load in loads]
        totals = [sum(load[cls] for load in loads) for cls in range(len(per_gang))]
        enough = min((total // count for total, count in zip(totals, per_gang, strict=True)), default=0)
        if enough >= gangs:
            break
        gangs = enough
    return gangs, loads


def _capped(load: Sequence[int], most: int) -> Sequence[int]:
    """Return at most `most` slots of one node; the most frequent class is reduced first."""
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
        """Return per colour: place -> node."""
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
    """One way to place a gang: all parts or nothing."""

    parts: tuple[GangPart, ...]
    bundles: int
    apart: bool  # its items lie on different nodes
    option: int  # which of the gang's options it is

    def marked(self, mark: Avoidance) -> GangVariant:
        """Return the same variant with every item in the group of `mark`."""
        parts = tuple(part._replace(ask=part.ask._replace(apart=mark)) for part in self.parts)
        return self._replace(parts=parts)


def variants_of(gang: Gang, values: Sequence[str], spread_strictly: bool) -> list[GangVariant]:
    """Return variants in order of preference; `values` are those of the gang's locality label."""
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
    """Group equal bundles."""
    counts: dict[Ask, int] = {}
    for demand in option:
        ask = ask_of(demand)
        counts[ask] = counts.get(ask, 0) + demand.count
    ranked = sorted(counts, key=lambda ask: ask.shape)
    return tuple(GangPart(ask, counts[ask], 1) for ask in ranked if counts[ask])


def _merged(option: Sequence[Demand]) -> tuple[GangPart, ...]:
    """Return one item per distinct selector list, as large as its bundles together."""
    sums: dict[tuple[object, object], tuple[Ask, Resources, int]] = {}
    for demand in option:
        ask = ask_of(demand)
        key = (ask.selectors, ask.apart)
        _, shape, count = sums.get(key, (ask, Resources(), 0))
        sums[key] = (ask, shape.plus(demand.shape.positive().times(demand.count)), count + demand.count)
    return tuple(GangPart(ask._replace(shape=shape.key), 1, n) for ask, shape, n in sums.values() if n)


class ChosenVariant(NamedTuple):
    """What a gang asks for; `label` when nodes carry the gang's mark already."""

    variant: GangVariant
    label: str


def choose(
    inventory: Inventory, gangs: Sequence[Gang], variants: Sequence[Sequence[GangVariant]]
) -> dict[int, ChosenVariant]:
    """Return the chosen variant per gang; gangs of which no variant could be held are left out."""
    best_place: dict[tuple[GangVariant, ...], GangVariant] = {}
    chosen: dict[int, ChosenVariant] = {}
    carried = {label for labels in inventory.bin_labels for label in labels}
    for index, gang in enumerate(gangs):
        ways = tuple(way for way in variants[index] if _plausible(inventory, way))
        if not ways:
            continue
        if gang.locality_label and ways not in best_place:
            best_place[ways] = _by_place(inventory, gang, ways)[0]
        variant = best_place[ways] if gang.locality_label else ways[0]
        marked = variant.apart and gang.label in carried
        chosen[index] = ChosenVariant(variant, gang.label if marked else "")
    return chosen


def gang_batches_of(
    chosen: dict[int, ChosenVariant], gangs: Iterable[int]
) -> list[tuple[tuple[int, ...], GangVariant]]:
    """Group equal gangs; those that spread share their places."""
    members: dict[ChosenVariant, list[int]] = {}
    for gang in gangs:
        members.setdefault(chosen[gang], []).append(gang)
    result = []
    for number, (choice, equal) in enumerate(members.items()):
        mark = Avoidance(choice.label, None, len(equal), number)
        result.append((tuple(equal), choice.variant.marked(mark) if choice.variant.apart else choice.variant))
    return result


def promising(inventory: Inventory, chosen: dict[int, ChosenVariant]) -> list[int]:
    """Return the gangs that are worth a joint plan: all, unless they need more than there can ever be.

    Then those that hold the most bundles for what they take: gangs are all or nothing, and a joint plan for
    the bundles of far too many gangs completes few of them.
    """
    needs = {variant: _needs(inventory, variant) for variant in {c.variant: None for c in chosen.values()}}
    most = np.maximum(inventory.most_room(), TINY)
    share = {variant: float((need / most).max()) / variant.bundles for variant, need in needs.items()}
    left, kept = most.copy(), set()
    for gang in sorted(chosen, key=lambda gang: (share[chosen[gang].variant], gang)):
        need = needs[chosen[gang].variant]
        if (need <= left).all():
            left -= need
            kept.add(gang)
    return [gang for gang in chosen if gang in kept]


def _needs(inventory: Inventory, variant: GangVariant) -> Floats:
    total: Floats = np.zeros(len(inventory.scale.names))
    for part in variant.parts:
        total += part.each * np.array(inventory.scale.need(part.ask))
    return total


def propose_alone(inventory: Inventory, asks: Sequence[Ask], wanted: Floats) -> Proposal | None:
    """Return where one gang is placed on nodes as they are, the fullest first; None when that needs a search.

    Nothing is cheaper than nodes that are there. A gang that can have no place at all gets an empty proposal.
    """
    if (_most_of_each(inventory, asks, wanted) < wanted).any():
        return no_proposal(len(inventory.free))
    items, bins = inventory.bins_for(asks)
    free, loads = bins.free.copy(), np.zeros((len(bins.free), len(asks)))
    scale = np.maximum(items.size[:, : items.real].max(axis=0, initial=0.0), 1.0)
    for ask in np.argsort(-(items.size[:, : items.real] / scale).sum(axis=1), kind="stable").tolist():
        size, used = items.size[ask], items.size[ask] > 0
        able = np.ones(len(free), dtype=bool) if bins.allowed is None else bins.allowed[:, ask]
        left = int(wanted[ask])
        while left > 0:
            rows = np.flatnonzero((free >= size).all(axis=1) & able)
            if not len(rows):
                return None
            spare = (free[rows, : items.real] / scale).sum(axis=1)
            row = rows[np.lexsort((spare, bins.tier[rows]))[0]]
            amount = int((free[row, used] // size[used]).min(initial=left))
            loads[row, ask] += amount
            free[row] -= amount * size
            left -= amount
    where, which = np.nonzero(loads)
    order = np.lexsort((where, which))
    amounts = loads[where, which][order].astype(np.int64)
    return no_proposal(len(free))._replace(rows=where[order], asks=which[order], amounts=amounts)


def _most_of_each(inventory: Inventory, asks: Sequence[Ask], wanted: Floats) -> Floats:
    """Return how many of each ask alone could have a place, nodes at their largest and new machines."""
    items, bins = inventory.bins_for(asks)
    room = bins.free if bins.growth is None else bins.free + bins.growth
    fits = np.minimum(counts_that_fit(room, items.size), wanted)
    if bins.allowed is not None:
        fits = fits * bins.allowed
    market = inventory.market_for(asks)
    new = np.minimum(counts_that_fit(market.size, items.size), wanted) * market.allowed
    machines = np.minimum(np.minimum(market.room, market.total_room), wanted.sum())
    most: Floats = fits.sum(axis=0) + (machines[:, None] * new).sum(axis=0)
    return most


def ways_of(inventory: Inventory, gang: Gang, variants: Sequence[GangVariant]) -> list[GangVariant]:
    """Return variants of one gang alone, in order; with a locality, the cheapest place first."""
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

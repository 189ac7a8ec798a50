"""Serve the most requests, then pays the least: the `cost` engine. Called by `pack` and by `muster plan`.

Plans both kinds of demand (requests on what is free, constraints on totals) in both orders, machines of the
first being free for the second, and keeps the cheaper. Values in, values out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from muster.base.resources import ItemKey
from muster.cluster.model import Demand, Gang, Strategy
from muster.cluster.planner.cost.allocate import BinEntry, GangRequest, Served, serve
from muster.cluster.planner.cost.gangs import GangPart, variants_of
from muster.cluster.planner.cost.inventory import Inventory, grow, growth_limit, inventory_of
from muster.cluster.planner.cost.problem import Ask, ask_of, machine_costs, selectors_of
from muster.cluster.planner.demand_classes import gang_size, names_of_no_type
from muster.cluster.planner.request import DemandKind, PackProblem, PackSolution, Placement, Unplaced


class CostOutcome(NamedTuple):
    """Has what is served and the machines launched: machine i is bin n + i, with n nodes."""

    served: Mapping[DemandKind, Served]
    machines: Sequence[int]  # index into PackProblem.offers
    grown: Sequence[int]
    buyers: Sequence[DemandKind]  # the kinds that launched any
    cost: float

    def unserved(self, problem: PackProblem) -> int:
        """Return how many requests and bundles have no place."""
        short = sum(sum(each.short.values()) for each in self.served.values())
        gangs = sum(gang_size(problem.gangs[g]) for each in self.served.values() for g in each.failed)
        return short + gangs


class Holding(NamedTuple):
    """A Holding is `amount` pieces of one item on one node or new machine.

    A piece is a request, a bundle of a gang or, with STRICT_PACK, several bundles in one.
    """

    kind: DemandKind
    is_gang: bool
    item: int
    shape: ItemKey  # of one piece
    bundles: int  # that one piece stands for
    amount: int


class Detail(NamedTuple):
    """The answer with the load of every node and of every new machine."""

    solution: PackSolution
    nodes: tuple[tuple[Holding, ...], ...]  # one per node of the problem
    machines: tuple[tuple[str, tuple[Holding, ...]], ...]  # type and load of each new machine


def solution_of(problem: PackProblem, outcome: CostOutcome) -> PackSolution:
    """Return the planner's answer."""
    names = [offer.node_type.name for offer in problem.offers]
    launch = Counter(outcome.machines)
    limits = {offer.node_type.name: offer.node_type for offer in problem.offers}
    resize = {row: growth_limit(problem.nodes[row], limits) for row in sorted(outcome.grown)}
    return PackSolution(
        launch={name: launch[index] for index, name in enumerate(names) if launch[index]},
        placements=tuple(_placements(problem, outcome)),
        unplaced=tuple(_unplaced(problem, outcome)),
        # A machine that is still coming is simply asked for at its full size.
        resize={row: size for row, size in resize.items() if problem.nodes[row].runs},
    )


def detail_of(problem: PackProblem, outcome: CostOutcome) -> Detail:
    """Return the answer with the load of every node and of every new machine."""
    nodes = len(problem.nodes)
    held: list[list[Holding]] = [[] for _ in range(nodes + len(outcome.machines))]
    for kind, done in outcome.served.items():
        demands = problem.demands if kind is DemandKind.DEMAND else problem.constraints
        for is_gang, item, where, amount, part in done.entries:
            shape = demands[item].shape.positive().key if part is None else part.ask.shape
            bundles = 1 if part is None else part.bundles
            held[where].append(Holding(kind, is_gang, item, shape, bundles, amount // bundles))
    names = [problem.offers[index].node_type.name for index in outcome.machines]
    loads = [tuple(load) for load in held]
    machines = tuple(zip(names, loads[nodes:], strict=True))
    return Detail(solution_of(problem, outcome), tuple(loads[:nodes]), machines)


def _placements(problem: PackProblem, outcome: CostOutcome) -> list[Placement]:
    """Return placements on nodes one by one, and on new machines summed up by type."""
    nodes = len(problem.nodes)
    names = [offer.node_type.name for offer in problem.offers]
    # Where a bin is reported: a node under its own number, a machine under -1 - its type.
    place = [*range(nodes), *(-1 - index for index in outcome.machines)]
    found: list[Placement] = []
    for kind, done in outcome.served.items():
        sums: dict[tuple[bool, int, int], int] = {}
        for is_gang, item, where, amount, _ in done.entries:
            key = (is_gang, item, place[where])
            sums[key] = sums.get(key, 0) + amount
        for (is_gang, item, at), amount in sums.items():
            if at >= 0:
                found.append(Placement(kind, is_gang, item, at, problem.nodes[at].node_type, amount))
            else:
                found.append(Placement(kind, is_gang, item, -1, names[-1 - at], amount))
    return found


def _unplaced(problem: PackProblem, outcome: CostOutcome) -> list[Unplaced]:
    missing = []
    for kind, done in outcome.served.items():
        missing += [Unplaced(kind, False, item, amount) for item, amount in sorted(done.short.items())]
        sizes = [(gang, gang_size(problem.gangs[gang])) for gang in done.failed]
        missing += [Unplaced(kind, True, gang, size) for gang, size in sizes if size]
    return missing


def narrowed(demand: Demand, inventory: Inventory) -> Demand:
    """Return the demand with its first selector under which some node or type could hold it."""
    if len(demand.selectors) < 2:
        return demand
    for selector in demand.selectors:
        narrow = replace(demand, selectors=(selector,))
        if inventory.holds(ask_of(narrow)):
            return narrow
    return demand


def narrowed_gang(gang: Gang, inventory: Inventory) -> Gang:
    """Narrow every bundle; strict packing merges bundles by their original selectors, so those stay."""
    if gang.strategy is Strategy.STRICT_PACK:
        return gang
    options = tuple(tuple(narrowed(demand, inventory) for demand in option) for option in gang.options)
    return replace(gang, options=options)


SAME_COST = 1e-6  # relative: two plans this close cost the same


def solve_cost(problem: PackProblem) -> PackSolution:
    """Return where the demand goes at the least cost."""
    return solution_of(problem, _outcome(problem))


def solve_detailed(problem: PackProblem) -> Detail:
    """Return the same with the load of every single node and new machine."""
    return detail_of(problem, _outcome(problem))


def _outcome(problem: PackProblem) -> CostOutcome:
    """Return the plan; what only one node can hold is placed before everything else."""
    asked = {
        name
        for ask in _asks((*problem.demands, *problem.constraints), problem.gangs)
        for name, _ in ask.shape
    }
    names = names_of_no_type(sorted(asked), problem.offers)
    if not names:
        return _best(problem)
    from muster.cluster.planner.pinned import place_pinned

    pinned = place_pinned(problem, names)
    outcome = _best(pinned.problem)
    served = {kind: outcome.served.get(kind, Served([], {}, [])) for kind in DemandKind}
    for (kind, is_gang, item, node, _, amount), shape, bundles in pinned.pieces:
        part = GangPart(Ask(shape), 1, bundles) if is_gang else None
        served[kind].entries.append(BinEntry(is_gang, item, node, amount, part))
    for kind, is_gang, item, amount in pinned.unplaced:
        if not is_gang:  # a gang without options has failed already
            served[kind].short[item] = amount
    placed = {piece.placement.item for piece in pinned.pieces if piece.placement.is_gang}
    gangs = served[DemandKind.DEMAND].failed
    gangs[:] = [gang for gang in gangs if gang not in placed]
    return outcome._replace(served=served)


def _best(problem: PackProblem) -> CostOutcome:
    """Return the plain plan, unless one that also respects every preference is as good."""
    plain = _cheaper_order(problem)
    if not _has_preferences(problem):
        return plain
    preferred = _cheaper_order(problem, plain)
    as_good = preferred.unserved(problem) <= plain.unserved(problem)
    return preferred if as_good and preferred.cost <= plain.cost * (1 + SAME_COST) else plain


def _has_preferences(problem: PackProblem) -> bool:
    asked = [
        *problem.demands,
        *problem.constraints,
        *(d for g in problem.gangs for o in g.options for d in o),
    ]
    choosy = any(len(selectors_of(demand.selectors)) > 1 for demand in asked)
    return choosy or any(gang.strategy is Strategy.SPREAD for gang in problem.gangs)


def _cheaper_order(problem: PackProblem, plain: CostOutcome | None = None) -> CostOutcome:
    """Return the better of both orders; with a plain plan, one that respects every preference."""
    first = _in_order(problem, (DemandKind.DEMAND, DemandKind.CONSTRAINT), plain)
    if len(first.buyers) < 2 and not first.unserved(problem):
        return first  # at most one kind buys, and that for itself: the other order buys no less
    if len(first.served) < 2:
        return first
    second = _in_order(problem, (DemandKind.CONSTRAINT, DemandKind.DEMAND), plain)
    ranks = [(outcome.unserved(problem), outcome.cost) for outcome in (first, second)]
    return first if ranks[0] <= ranks[1] else second


def _in_order(problem: PackProblem, order: Sequence[DemandKind], plain: CostOutcome | None) -> CostOutcome:
    """Machines and growth of the first kind of demand are available to the second."""
    served: dict[DemandKind, Served] = {}
    machines: list[int] = []
    grown: list[int] = []
    buyers: list[DemandKind] = []
    for kind in order:
        demands = problem.demands if kind is DemandKind.DEMAND else problem.constraints
        gangs = problem.gangs if kind is DemandKind.DEMAND else ()
        if not any(demand.count for demand in demands) and not gangs:
            continue
        inventory = inventory_of(problem, kind, _asks(demands, gangs))
        grow(inventory, grown)
        inventory.add_machines(np.array(machines, dtype=np.int64))
        if plain is not None:
            demands = tuple(narrowed(demand, inventory) for demand in demands)
            gangs = tuple(narrowed_gang(gang, inventory) for gang in gangs)
        variants = [variants_of(gang, _values(problem, gang), plain is not None) for gang in gangs]
        rival = None if plain is None else plain.served.get(kind)
        served[kind], inventory = serve(inventory, GangRequest(demands, gangs, variants), rival)
        if len(inventory.machines) > len(machines):
            buyers.append(kind)
        machines, grown = inventory.machines, grown + inventory.grown
    cost = float(machine_costs(problem.offers)[machines].sum())
    return CostOutcome(served, machines, grown, buyers, cost)


def _asks(demands: Sequence[Demand], gangs: Sequence[Gang]) -> list[Ask]:
    """Return every class that is asked for; strictly packed bundles also as one."""
    bundles = (demand for gang in gangs for option in gang.options for demand in option)
    return list(dict.fromkeys(ask_of(demand) for demand in (*demands, *bundles) if demand.count > 0))


def _values(problem: PackProblem, gang: Gang) -> list[str]:
    """Return every value of the gang's locality label that a node or a type has."""
    if not gang.locality_label:
        return []
    labels = [node.labels for node in problem.nodes] + [offer.node_type.labels for offer in problem.offers]
    return sorted({have[gang.locality_label] for have in labels if gang.locality_label in have})

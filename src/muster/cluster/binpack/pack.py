"""Runs the whole planning pass of one tick: limits, then demand, then idle nodes.

Called by the scale rules and by `muster plan`; a pure function of its request.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from muster.cluster.binpack.demand_classes import CountedGangs, MergedDemands, PlacementTallies
from muster.cluster.binpack.idle import remove_idle
from muster.cluster.binpack.limits import LimitedCluster, resolve_limits
from muster.cluster.binpack.offers import at_prices, bought_offers, by_type, price_of, without
from muster.cluster.binpack.request import Packing, PackProblem, PackRequest, PackSolution
from muster.cluster.model import NodeKind, NodeType, Objective

Engine = Callable[[PackProblem], PackSolution]


def pack(request: PackRequest, engine: Engine | None = None) -> Packing:
    """Returns what to buy, what to remove, and where every request goes. Tests may pass their own engine."""
    limited = resolve_limits(request)
    wanted = _Wanted(request)
    launch = dict(limited.bought)
    tallies, resize = PlacementTallies(), {}
    if wanted.is_any:
        solution = (engine or _engine(request))(_problem(request, limited, wanted))
        tallies = PlacementTallies.of(solution, limited.nodes)
        resize = {limited.nodes[index].key: size for index, size in solution.resize.items()}
        for name, count in solution.launch.items():
            if count > 0:
                launch[name] = launch.get(name, 0) + count
    idle = remove_idle(request, limited.nodes, tallies.needed, launch)
    return Packing(
        launch=launch,
        bought_offers=bought_offers(launch, limited.offers),
        removals=limited.removals + idle.removals,
        resize=resize,
        demands=wanted.demands.outcomes(tallies.demands),
        gangs=wanted.gangs.outcomes(tallies.gangs),
        constraints=wanted.constraints.outcomes(tallies.constraints),
        needed=tallies.needed,
        pending_idle=idle.pending_idle,
        offers=limited.offers,
        room=limited.room,
        price_per_hour=price_of(launch, limited.offers),
    )


class _Wanted:
    """The requests that are not empty, equal ones once; constraints flattened in order."""

    def __init__(self, request: PackRequest) -> None:
        self.demands = MergedDemands(request.demands)
        self.gangs = CountedGangs(request.gangs)
        self.constraints = MergedDemands(
            tuple(demand for constraint in request.constraints for demand in constraint.demands)
        )

    @property
    def is_any(self) -> bool:
        return bool(self.demands.demands or self.gangs.gangs or self.constraints.demands)


def objective_of(request: PackRequest) -> Objective:
    """Returns the objective of a request; a type that only the head may have needs no price."""
    heads = Counter(node.node_type for node in request.nodes if node.kind is NodeKind.HEAD)
    types = (offer.node_type for offer in request.offers)
    return choose_objective(request.objective, (t for t in types if t.max_nodes > heads[t.name]))


def choose_objective(objective: Objective, worker_types: Iterable[NodeType]) -> Objective:
    """Resolves AUTO: by cost when every type that may be bought has a price, else Ray's rule."""
    if objective is not Objective.AUTO:
        return objective
    priced = [node_type.is_priced for node_type in worker_types if node_type.max_nodes > 0]
    return Objective.COST if priced and all(priced) else Objective.UTILIZATION


def _problem(request: PackRequest, limited: LimitedCluster, wanted: _Wanted) -> PackProblem:
    bought = limited.bought
    left = None if limited.room is None else limited.room - sum(bought.values())
    return PackProblem(
        nodes=limited.nodes,
        offers=tuple(without(offer, bought.get(offer.node_type.name, 0)) for offer in limited.offers),
        room=left,
        constraints=wanted.constraints.demands,
        gangs=wanted.gangs.gangs,
        demands=wanted.demands.demands,
        conserve_gpus=request.conserve_gpus,
    )


def _engine(request: PackRequest) -> Engine:
    if objective_of(request) is Objective.COST:
        return _cheaper_engine
    from muster.cluster.binpack.utilization import solve_utilization

    return solve_utilization


FEWEST_COMPARED = 5  # shapes and gangs; with fewer the `cost` engine searches thoroughly
MOST_OF_EACH = 128  # requests per shape; with more of each, the `cost` engine is close to the bound
MOST_CELLS = 1_500_000  # shapes x nodes; beyond it a second plan takes too long
MOST_GANG_CELLS = 50_000  # gangs x nodes


def _cheaper_engine(problem: PackProblem) -> PackSolution:
    """Returns what the `cost` engine finds, unless Ray's rule serves more, or as much for less."""
    from muster.cluster.binpack.cost import solve_cost

    priced = at_prices(problem)
    found = solve_cost(priced)
    if _is_compared(problem) and (found.launch or found.unplaced):
        from muster.cluster.binpack.utilization import solve_utilization

        found = min(found, solve_utilization(priced), key=lambda solution: _rank(solution, priced))
    return by_type(found)


def _is_compared(problem: PackProblem) -> bool:
    """Returns whether both engines run: Ray's rule wins at times where each shape has few requests."""
    items = (*problem.demands, *problem.constraints)
    requests = sum(demand.count for demand in items)
    nodes, gangs = len(problem.nodes), len(problem.gangs)
    is_small = len(items) * nodes <= MOST_CELLS and gangs * nodes <= MOST_GANG_CELLS
    return is_small and requests <= MOST_OF_EACH * len(items) and len(items) + gangs >= FEWEST_COMPARED


def _rank(solution: PackSolution, problem: PackProblem) -> tuple[int, float]:
    """Returns the number of requests without a place, then the price; without a price nothing is cheaper."""
    price = price_of(solution.launch, problem.offers)
    return sum(item.amount for item in solution.unplaced), math.inf if price is None else round(price, 9)

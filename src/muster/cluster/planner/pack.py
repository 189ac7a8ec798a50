"""Run the whole planning pass of one tick: limits, then demand, then idle nodes.

`pack` is a pure function of its request. `request_of` builds the request, for the loop and for `muster plan`;
`what_if` answers it for a described cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from muster.cluster.backoff import availabilities, is_blocked, recoverable
from muster.cluster.model import ClusterSpec, Constraint, Demand, Gang, NodeKind, NodeType, Objective
from muster.cluster.plan import Verdict
from muster.cluster.planner.demand_classes import CountedGangs, MergedDemands, PlacementTallies, could_hold
from muster.cluster.planner.explain import explain
from muster.cluster.planner.limits import LimitedCluster, remove_idle, resolve_limits
from muster.cluster.planner.offers import (
    NO_RISKS,
    at_prices,
    by_type,
    launched_offers,
    offer_states,
    price_of,
    with_block_of_offers,
    with_offer_labels,
    without,
    without_back_off,
)
from muster.cluster.planner.request import (
    DemandKind,
    ItemOutcome,
    OfferState,
    Packing,
    PackNode,
    PackProblem,
    PackRequest,
    PackSolution,
    TypeOffer,
)
from muster.cluster.snapshot import TypeHealth

Solver = Callable[[PackProblem], PackSolution]


def pack(request: PackRequest, solver: Solver | None = None) -> Packing:
    """Return what to buy, what to remove, and where every request goes. Tests may pass their own solver."""
    limited = resolve_limits(request)
    wanted, launch = _Wanted(request), dict(limited.launched)
    tallies, resize, pinned = PlacementTallies(), {}, dict[str, Mapping[str, int]]()
    if wanted.is_any:
        solver = solver or _solver(request)
        solution = by_type(solver(_problem(request, limited, wanted)))
        if _leaves_constraint(solution) and wanted.drop_impossible(request, solver):
            solution = by_type(solver(_problem(request, limited, wanted)))
        pinned.update(solution.pinned)
        tallies = PlacementTallies.of(solution, limited.nodes)
        resize = {limited.nodes[index].key: size for index, size in solution.resize.items()}
        for name, count in solution.launch.items():
            if count > 0:
                launch[name] = launch.get(name, 0) + count
    idle, pending_idle = remove_idle(request, limited.nodes, tallies.needed, launch)
    return Packing(
        launch=launch,
        launched_offers=launched_offers(launch, limited.offers, pinned),
        pinned=pinned,
        removals=limited.removals + idle,
        resize=resize,
        demands=wanted.demands.outcomes(tallies.demands),
        gangs=wanted.gangs.outcomes(tallies.gangs),
        constraints=wanted.constraint_outcomes(tallies),
        needed=tallies.needed,
        pending_idle=pending_idle,
        offers=limited.offers,
        room=limited.room,
        price_per_hour=price_of(launch, limited.offers, pinned),
    )


class _Wanted:
    """The requests that are not empty, equal ones once; constraints flattened in order."""

    def __init__(self, request: PackRequest) -> None:
        self.demands = MergedDemands(request.demands)
        self.gangs = CountedGangs(request.gangs)
        self._bundles = [demand for constraint in request.constraints for demand in constraint.demands]
        self._dropped = frozenset[int]()  # places of bundles that are not planned for
        self.constraints = MergedDemands(self._bundles)

    def drop_impossible(self, request: PackRequest, solver: Solver) -> bool:
        """Drop constraints that cannot be met as a whole, as Ray does; returns whether any bundle is dropped.

        A bundle that no node type could ever hold goes alone. Limits make the rest of a constraint
        impossible; a back-off, a budget or machines that still leave only delay it.
        """
        offers = tuple(map(without_back_off, request.offers))
        alone = replace(request, offers=offers, most_new=None, leaving={}, demands=(), gangs=())
        kept: list[Constraint] = []
        dropped, end = list[int](), 0
        for constraint in request.constraints:
            places, end = range(end, end + len(constraint.demands)), end + len(constraint.demands)
            possible = [place for place in places if could_hold(self._bundles[place], request)]
            rest = Constraint(demands=tuple(self._bundles[place] for place in possible))
            trial = replace(alone, constraints=(*kept, rest))
            is_met = not _leaves_constraint(solver(_problem(trial, resolve_limits(trial), _Wanted(trial))))
            kept += [rest] if is_met else []
            dropped += [place for place in places if not is_met or place not in possible]
        self._dropped = frozenset(dropped)
        self.constraints = MergedDemands(
            [replace(d, count=0) if place in self._dropped else d for place, d in enumerate(self._bundles)]
        )
        return bool(dropped)

    def constraint_outcomes(self, tallies: PlacementTallies) -> tuple[ItemOutcome, ...]:
        """Return one outcome per bundle; nothing of what was dropped has a place."""
        return tuple(
            replace(outcome, unplaced=max(0, demand.count)) if outcome.index in self._dropped else outcome
            for outcome, demand in zip(
                self.constraints.outcomes(tallies.constraints), self._bundles, strict=True
            )
        )

    @property
    def is_any(self) -> bool:
        return bool(self.demands.demands or self.gangs.gangs or self.constraints.demands)


def _leaves_constraint(solution: PackSolution) -> bool:
    return any(left.kind is DemandKind.CONSTRAINT for left in solution.unplaced)


def objective_of(request: PackRequest) -> Objective:
    """Return the objective of a request; a type that only the head may have needs no price."""
    heads = Counter(node.node_type for node in request.nodes if node.kind is NodeKind.HEAD)
    types = (offer.node_type for offer in request.offers)
    return choose_objective(request.objective, (t for t in types if t.max_nodes > heads[t.name]))


def choose_objective(objective: Objective, worker_types: Iterable[NodeType]) -> Objective:
    """Resolve AUTO: by cost when every type that may be launched has a price, else Ray's rule."""
    if objective is not Objective.AUTO:
        return objective
    priced = [node_type.is_priced for node_type in worker_types if node_type.max_nodes > 0]
    return Objective.COST if priced and all(priced) else Objective.UTILIZATION


def _problem(request: PackRequest, limited: LimitedCluster, wanted: _Wanted) -> PackProblem:
    launched = limited.launched
    left = None if limited.room is None else limited.room - sum(launched.values())
    problem = PackProblem(
        nodes=limited.nodes,
        offers=tuple(without(offer, launched.get(offer.node_type.name, 0)) for offer in limited.offers),
        room=left,
        constraints=wanted.constraints.demands,
        gangs=wanted.gangs.gangs,
        demands=wanted.demands.demands,
        conserve_gpus=request.conserve_gpus,
    )
    return with_offer_labels(problem)


def _solver(request: PackRequest) -> Solver:
    if objective_of(request) is Objective.COST:
        return _cheaper_solver
    from muster.cluster.planner.utilization import solve_utilization

    return solve_utilization


FEWEST_COMPARED = 5  # shapes and gangs; with fewer the `cost` solver searches thoroughly
MOST_OF_EACH = 128  # requests per shape; with more of each, the `cost` solver is close to the bound
MOST_CELLS = 1_500_000  # shapes x nodes; beyond it a second plan takes too long
MOST_GANG_CELLS = 50_000  # gangs x nodes


def _cheaper_solver(problem: PackProblem) -> PackSolution:
    """Return what the `cost` solver finds, unless Ray's rule serves more, or as much for less."""
    from muster.cluster.planner.cost import solve_cost

    priced = at_prices(problem)
    found = solve_cost(priced)
    # Both solvers run: Ray's rule wins at times where each shape has few requests.
    items = (*problem.demands, *problem.constraints)
    requests = sum(demand.count for demand in items)
    nodes, gangs = len(problem.nodes), len(problem.gangs)
    is_small = len(items) * nodes <= MOST_CELLS and gangs * nodes <= MOST_GANG_CELLS
    is_compared = is_small and requests <= MOST_OF_EACH * len(items) and len(items) + gangs >= FEWEST_COMPARED
    if is_compared and (found.launch or found.unplaced):
        from muster.cluster.planner.utilization import solve_utilization

        found = min(found, solve_utilization(priced), key=lambda solution: _rank(solution, priced))
    return by_type(found)


def _rank(solution: PackSolution, problem: PackProblem) -> tuple[int, float]:
    """Return the number of requests without a place, then the price; without a price nothing is cheaper."""
    price = price_of(solution.launch, problem.offers)
    return sum(item.amount for item in solution.unplaced), math.inf if price is None else round(price, 9)


ASSUMED_HEAD = "head"


class PlannedDemand(Struct, frozen=True, kw_only=True):
    """What waits for machines, and the nodes that may serve it."""

    demands: tuple[Demand, ...] = ()
    gangs: tuple[Gang, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    nodes: tuple[PackNode, ...] = ()


class WhatIfAnswer(Struct, frozen=True, kw_only=True):
    """A question together with the planner's answer and its reasons."""

    spec: ClusterSpec
    request: PackRequest
    packing: Packing
    verdicts: tuple[Verdict, ...]
    head_assumed: bool


def what_if(spec: ClusterSpec, wanted: PlannedDemand) -> WhatIfAnswer:
    """Plan one tick of a cluster that is as described, with nothing backed off and nothing leaving."""
    head_assumed = not any(node.kind is NodeKind.HEAD for node in wanted.nodes)
    if head_assumed:
        wanted = replace(wanted, nodes=(*_assumed_head(spec), *wanted.nodes))
    offers = offers_of(spec, health={}, now=0.0)
    request = request_of(spec, wanted, offers, now=0.0, leaving={}, pending_idle={})
    packing = pack(request)
    return WhatIfAnswer(
        spec=spec,
        request=request,
        packing=packing,
        verdicts=explain(request, packing),
        head_assumed=head_assumed,
    )


def request_of(
    spec: ClusterSpec,
    wanted: PlannedDemand,
    offers: tuple[TypeOffer, ...],
    *,
    now: float,
    leaving: Mapping[str, int],
    pending_idle: Mapping[str, tuple[float, ...]],
) -> PackRequest:
    """Return the planner's question. Nothing has a default, so that no caller leaves a field out."""
    return PackRequest(
        now=now,
        nodes=wanted.nodes,
        offers=offers,
        max_nodes=spec.max_nodes,
        leaving=leaving,
        constraints=wanted.constraints,
        gangs=wanted.gangs,
        demands=wanted.demands,
        objective=spec.objective,
        conserve_gpus=spec.conserve_gpus,
        check_launch_hash=spec.check_launch_hash,
        idle_timeout_s=spec.idle_timeout_s,
        pending_idle_s=spec.timeouts.pending_idle_s,
        pending_idle=pending_idle,
    )


def offers_of(
    spec: ClusterSpec, health: Mapping[str, TypeHealth], now: float, risks: Mapping[str, float] = NO_RISKS
) -> tuple[TypeOffer, ...]:
    """Return every node type that can be launched now, with its back-off; `risks` as in `pools.risks`."""
    scores = availabilities(health)
    found = []
    for known in spec.node_types:
        offer = _offer(known, health, scores.get(known.name, 1.0), spec.backoff.recovery_s, now)
        found.append(_with_choices(offer, offer_states(known, health, now, risks)))
    return tuple(found)


def _with_choices(offer: TypeOffer, choices: tuple[OfferState, ...]) -> TypeOffer:
    if not choices:
        return offer
    offer = replace(offer, choices=choices)
    all_fail = all(each.blocked_kind is not None for each in choices)
    return with_block_of_offers(offer) if all_fail and offer.blocked_kind is None else offer


def _offer(
    node_type: NodeType, health: Mapping[str, TypeHealth], availability: float, recovery_s: float, now: float
) -> TypeOffer:
    own = health.get(node_type.name)
    blocked = own if is_blocked(own, now) else None
    return TypeOffer(
        node_type=node_type,
        room=node_type.most_nodes,
        availability=availability,
        recoverable=recoverable(own, now, recovery_s),
        blocked_kind=blocked.kind if blocked else None,
        blocked_until=blocked.blocked_until if blocked else 0.0,
        blocked_message=blocked.message if blocked else "",
    )


def _assumed_head(spec: ClusterSpec) -> tuple[PackNode, ...]:
    """Nothing scales before the head runs, so a plan without a head assumes an empty one."""
    known = spec.node_type(spec.head_node_type)
    if known is None:
        return ()
    return (
        PackNode(
            key=ASSUMED_HEAD,
            node_type=known.name,
            total=known.resources,
            available=known.resources,
            kind=NodeKind.HEAD,
            labels=known.labels,
        ),
    )

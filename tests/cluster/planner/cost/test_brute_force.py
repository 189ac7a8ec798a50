"""Tiny problems against every possible plan: as many served as can be, at a price near the least."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace
from tests.cluster.planner.checker import broken_rules_in_detail
from tests.cluster.planner.cost.fleets import price, unplaced
from tests.support.builders import gang

from muster.base.resources import Resources
from muster.cluster.model import Demand, NodeType
from muster.cluster.planner.cost import solve_detailed
from muster.cluster.planner.request import PackNode, PackProblem, TypeOffer


def tiny(seed: int) -> PackProblem:
    """Up to 7 requests, 3 types with little room, 2 nodes."""
    draw = random.Random(seed)
    types = []
    for i in range(draw.randint(1, 3)):
        has = {"CPU": draw.randint(1, 8), "memory": draw.randint(1, 8)}
        types.append(
            NodeType(name=f"t{i}", resources=Resources.of(has), price_per_hour=draw.randint(1, 12) / 4)
        )
    demands = []
    for _ in range(draw.randint(1, 3)):
        shape = {"CPU": draw.randint(1, 4), "memory": draw.randint(0, 4)}
        demands.append(Demand(shape=Resources.of(shape), count=draw.randint(1, 3)))
    nodes = []
    for i in range(draw.randint(0, 2)):
        of = draw.choice(types)
        free = {name: draw.randint(0, units // 10_000) * 10_000 for name, units in of.resources.items()}
        nodes.append(PackNode(key=f"n{i}", node_type=of.name, total=of.resources, available=Resources(free)))
    return PackProblem(
        nodes=tuple(nodes),
        offers=tuple(TypeOffer(node_type=t, room=draw.randint(0, 3)) for t in types),
        room=draw.choice([None, 1, 2, 3]),
        demands=tuple(demands),
    )


def optimum(problem: PackProblem) -> tuple[int, float]:
    """(unserved, price) of the best plan, by trying them all."""
    requests = sorted(
        (d.shape for d in problem.demands for _ in range(d.count)), key=lambda s: s.key, reverse=True
    )
    room = problem.room if problem.room is not None else len(requests)
    types = [offer.node_type for offer in problem.offers]
    best = (len(requests), 0.0)

    def search(index: int, bins: list[Resources], rooms: list[int], unserved: int, spent: float) -> None:
        nonlocal best
        if (unserved, spent) >= best:
            return
        if index == len(requests):
            best = (unserved, spent)
            return
        need = requests[index]
        for at in {free: at for at, free in enumerate(bins) if free.holds(need)}.values():
            search(index + 1, [*bins[:at], bins[at].minus(need), *bins[at + 1 :]], rooms, unserved, spent)
        for t, node_type in enumerate(types):
            if rooms[t] and rooms[-1] and node_type.resources.holds(need):
                fewer = [r - (i in (t, len(types))) for i, r in enumerate(rooms)]
                more = [*bins, node_type.resources.minus(need)]
                search(index + 1, more, fewer, unserved, spent + (node_type.price_per_hour or 0.0))
        search(index + 1, bins, rooms, unserved + 1, spent)

    search(0, [n.available for n in problem.nodes], [*(o.room for o in problem.offers), room], 0, 0.0)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 120, 20))
def test_tiny_problems_are_solved_as_well_as_by_trying_everything(start: int) -> None:
    """Slack: one request in at most one of 20 problems may stay unserved that could be; among equals in
    that, a fifth dearer at most, and a twentieth in sum."""
    paid = least = 0.0
    missed = 0
    for seed in range(start, start + 20):
        problem = tiny(seed)
        detail = solve_detailed(problem)
        assert broken_rules_in_detail(problem, detail) == []
        unserved, cheapest = optimum(problem)
        assert unserved <= unplaced(detail.solution) <= unserved + 1
        if unplaced(detail.solution) > unserved:
            missed += 1
            continue
        assert cheapest - 1e-9 <= price(problem, detail.solution) <= 1.2 * cheapest + 1e-9, seed
        paid, least = paid + price(problem, detail.solution), least + cheapest
    assert missed <= 1
    assert paid <= 1.05 * least


def with_gangs(seed: int) -> PackProblem:
    """A tiny problem with up to three gangs, most of them too many for the limits."""
    problem, draw = tiny(seed), random.Random(f"gangs/{seed}")
    gangs = []
    for i in range(draw.randint(1, 3)):
        shapes = [
            {"CPU": draw.randint(1, 4), "memory": draw.randint(0, 3)} for _ in range(draw.randint(2, 3))
        ]
        gangs.append(gang(shapes, gang_id=f"g{i}"))
    return replace(problem, demands=problem.demands[:1], gangs=tuple(gangs))


def fewest_unserved(problem: PackProblem) -> int:
    """Over every set of gangs: what is left when these are served whole and demands take the rest."""
    sizes = [len(g.options[0]) for g in problem.gangs]
    best = sum(sizes) + sum(d.count for d in problem.demands)
    for chosen in itertools.product((False, True), repeat=len(sizes)):
        bundles = [b for g, take in zip(problem.gangs, chosen, strict=True) if take for b in g.options[0]]
        left_out = sum(size for size, take in zip(sizes, chosen, strict=True) if not take)
        best = min(best, left_out + _unserved_beside(problem, bundles, best - left_out))
    return best


def _unserved_beside(problem: PackProblem, bundles: list[Demand], cutoff: int) -> int:
    """Demands that find no place beside these bundles, or `cutoff` when the bundles do not fit either."""
    requests = [(b.shape, True) for b in bundles]
    requests += [(d.shape, False) for d in problem.demands for _ in range(d.count)]
    types = [offer.node_type for offer in problem.offers]
    best = cutoff

    def search(index: int, bins: list[Resources], rooms: list[int], unserved: int) -> None:
        nonlocal best
        if unserved >= best:
            return
        if index == len(requests):
            best = unserved
            return
        need, must = requests[index]
        for at in {free: at for at, free in enumerate(bins) if free.holds(need)}.values():
            search(index + 1, [*bins[:at], bins[at].minus(need), *bins[at + 1 :]], rooms, unserved)
        for t, node_type in enumerate(types):
            if rooms[t] and rooms[-1] and node_type.resources.holds(need):
                fewer = [r - (i in (t, len(types))) for i, r in enumerate(rooms)]
                search(index + 1, [*bins, node_type.resources.minus(need)], fewer, unserved)
        if not must:
            search(index + 1, bins, rooms, unserved + 1)

    room = problem.room if problem.room is not None else len(requests)
    search(0, [n.available for n in problem.nodes], [*(o.room for o in problem.offers), room], 0)
    return best


@pytest.mark.slow
def test_gangs_under_binding_limits_lose_little_against_trying_everything() -> None:
    """Slack, because gangs are chosen by heuristics: in at most 2 of 40 problems fewer requests are served
    than could be, and then by one or two (over 200 seeds: 8 problems, one request each)."""
    losses = []
    for seed in range(40):
        problem = with_gangs(seed)
        detail = solve_detailed(problem)
        assert broken_rules_in_detail(problem, detail) == []
        losses.append(unplaced(detail.solution) - fewest_unserved(problem))
    assert min(losses) == 0
    assert sum(loss > 0 for loss in losses) <= 2
    assert max(losses) <= 2

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from tests.cluster.planner.utilization.naive import solve_naively
from tests.cluster.planner.utilization.problems import large_problem, problems, random_problem

from muster.base.resources import EMPTY, Resources
from muster.cluster.planner.request import PackProblem, PackSolution
from muster.cluster.planner.utilization import solve_utilization


def comparable(solution: PackSolution):
    """Everything a solution says, in one order."""

    def key(entry):
        return (entry.kind.value, *entry[1:])

    return (
        dict(solution.launch),
        sorted(solution.placements, key=key),
        sorted(solution.unplaced, key=key),
        dict(solution.resize),
    )


def every_request_is_somewhere(problem: PackProblem, solution: PackSolution) -> bool:
    asked = sum(d.count for d in (*problem.constraints, *problem.demands))
    answered = sum(e.amount for e in (*solution.placements, *solution.unplaced) if not e.is_gang)
    return asked == answered


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(problems())
def test_the_engine_chooses_exactly_as_the_plain_rule(problem):
    fast = solve_utilization(problem)
    assert comparable(fast) == comparable(solve_naively(problem))
    assert every_request_is_somewhere(problem, fast)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_the_engine_chooses_exactly_as_the_plain_rule_on_fuller_problems(block):
    for seed in range(block * 60, block * 60 + 60):
        problem = random_problem(seed)
        assert comparable(solve_utilization(problem)) == comparable(solve_naively(problem)), seed


def pinned_problem(seed: int) -> PackProblem:
    """A fuller problem in which nodes have resources that no type has, and requests ask for some of them."""
    problem, draw = random_problem(seed), random.Random(f"pins/{seed}")
    names = [f"node:{i}" for i in range(6)]

    def with_pins(has: Resources, most: int, quantity: float) -> Resources:
        return has.plus(Resources.of(dict.fromkeys(draw.sample(names, draw.randint(0, most)), quantity)))

    there = []
    for node in problem.nodes:
        more = with_pins(EMPTY, 2, 1.0)
        there.append(replace(node, total=node.total.plus(more), available=node.available.plus(more)))
    gangs = tuple(
        replace(
            g,
            options=tuple(tuple(replace(d, shape=with_pins(d.shape, 1, 0.25)) for d in o) for o in g.options),
        )
        if draw.random() < 0.3
        else g
        for g in problem.gangs
    )
    return replace(
        problem,
        nodes=tuple(there),
        gangs=gangs,
        demands=tuple(replace(d, shape=with_pins(d.shape, 2, 0.25)) for d in problem.demands),
        constraints=tuple(replace(d, shape=with_pins(d.shape, 1, 0.25)) for d in problem.constraints),
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_the_engine_chooses_exactly_as_the_plain_rule_where_requests_name_their_nodes(block):
    for seed in range(block * 60, block * 60 + 60):
        problem = pinned_problem(seed)
        assert comparable(solve_utilization(problem)) == comparable(solve_naively(problem)), seed


def test_the_engine_chooses_exactly_as_the_plain_rule_on_many_shapes():
    problem = large_problem(seed=1, demands=150, shapes=15, nodes=20, types=8)
    assert comparable(solve_utilization(problem)) == comparable(solve_naively(problem))


def test_a_large_problem_is_accounted_for_to_the_last_request():
    problem = large_problem(seed=7, demands=10_000, shapes=200, nodes=1_000, types=400)
    solution = solve_utilization(problem)
    assert every_request_is_somewhere(problem, solution)
    assert solution.unplaced == ()
    taken: dict[int, Resources] = {}
    for placement in solution.placements:
        used = problem.demands[placement.item].shape.times(placement.amount)
        taken[placement.node] = taken.get(placement.node, EMPTY).plus(used)
    launched = EMPTY
    for offer in problem.offers:
        launched = launched.plus(
            offer.node_type.resources.times(solution.launch.get(offer.node_type.name, 0))
        )
    assert launched.holds(taken.pop(-1, EMPTY))
    assert [n for n, used in taken.items() if not problem.nodes[n].available.holds(used)] == []

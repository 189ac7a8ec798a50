from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from naive import solve_naively
from problems import large_problem, problems

from muster.cluster.binpack.request import PackProblem, PackSolution
from muster.cluster.binpack.utilization import solve_utilization


def comparable(solution: PackSolution):
    """Everything a solution says, in one order."""

    def key(entry):
        return (entry.book.value, *entry[1:])

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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(problems())
def test_the_engine_chooses_exactly_as_the_plain_rule(problem):
    fast = solve_utilization(problem)
    assert comparable(fast) == comparable(solve_naively(problem))
    assert every_request_is_somewhere(problem, fast)


def test_the_engine_chooses_exactly_as_the_plain_rule_on_many_shapes():
    problem = large_problem(seed=1, demands=150, shapes=15, nodes=20, types=8)
    assert comparable(solve_utilization(problem)) == comparable(solve_naively(problem))

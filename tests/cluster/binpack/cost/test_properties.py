"""Any problem, all features: the plan is possible, repeatable, and never worse than leaving the room empty."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from tests.cluster.binpack.checker import broken_rules_in_detail
from tests.cluster.binpack.problems import problems

from muster.cluster.binpack.cost import solve_cost, solve_detailed
from muster.cluster.binpack.request import PackProblem

quick = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@quick
@given(problems())
def test_every_plan_is_possible(problem: PackProblem) -> None:
    assert broken_rules_in_detail(problem, solve_detailed(problem)) == []


@quick
@given(problems())
def test_the_same_problem_gets_the_same_plan(problem: PackProblem) -> None:
    assert solve_cost(problem) == solve_cost(problem)

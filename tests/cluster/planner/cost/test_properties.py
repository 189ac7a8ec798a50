"""Any problem, with all features: the plan is possible and repeatable."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from tests.cluster.planner.checker import broken_rules_in_detail
from tests.cluster.planner.problems import problems

from muster.cluster.planner.cost import solve_cost, solve_detailed
from muster.cluster.planner.request import PackProblem


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_every_plan_is_possible_and_repeatable(problem: PackProblem) -> None:
    detail = solve_detailed(problem)
    assert broken_rules_in_detail(problem, detail) == []
    assert solve_cost(problem) == detail.solution

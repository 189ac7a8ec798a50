"""The same machines as Ray 2.60 on every recorded workload."""

from __future__ import annotations

import pytest
from tests.cluster.planner.utilization.workload_problems import load, recorded

from muster.cluster.planner.utilization import solve_utilization


@pytest.mark.parametrize("name", sorted(recorded()))
def test_the_launch_map_is_rays(name):
    solution, answer = solve_utilization(load(name)), recorded()[name]
    assert dict(solution.launch) == answer["launch"]
    assert sum(u.amount for u in solution.unplaced if not u.is_gang) == answer["infeasible_requests"]
    assert sum(1 for u in solution.unplaced if u.is_gang) == answer["infeasible_gangs"]


def test_there_are_workloads_with_a_recorded_answer():
    assert len(recorded()) == 17

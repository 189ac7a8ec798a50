"""Samples of the worlds with budgets and of the problems with deadlines, and proof that they can fail."""

from __future__ import annotations

from collections import Counter

import pytest
from bench.economy_budget import BudgetOutcome
from bench.economy_scenario import assign_pools
from tests.series import length

from bench import economy_deadline
from muster.base.rng import Seed
from muster.cluster.budget import BudgetState
from muster.sim.joint.cloud import SpotSeries


@pytest.mark.slow
def test_no_budget_of_a_sample_of_worlds_is_exceeded():
    found = [BudgetOutcome.of(seed) for seed in range(17, length(22, 80))]
    assert [one.seed for one in found if one.is_exceeded] == []
    assert any(one.is_reached for one in found)


@pytest.mark.slow
def test_a_budget_that_nobody_holds_is_found(monkeypatch):
    monkeypatch.setattr(BudgetState, "is_used_up", property(lambda state: False))
    monkeypatch.setattr(BudgetState, "take", lambda state, price, offer=None: True)
    assert BudgetOutcome.of(REACHES_ITS_BUDGET).is_exceeded


REACHES_ITS_BUDGET = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, length(5, 40)))
def test_a_deadline_that_the_exact_plan_could_meet_is_met(seed):
    found = economy_deadline.solved(seed)
    assert found is None or found.is_met, str(found)


@pytest.mark.slow
def test_the_exact_plan_is_one_that_the_cluster_allows():
    problem = economy_deadline.DeadlineProblem.drawn(2)
    most = {known.name: known.max_nodes for known in problem.spec.node_types}
    for machines in problem._candidates():
        assert sum(machines.values()) < problem.spec.max_nodes
        assert all(count <= most[name] for name, count in machines.items())
    assert problem.planned_s(machines) >= problem.boot.median_s


@pytest.mark.slow
def test_a_deadline_that_nothing_could_meet_is_missed():
    problem = economy_deadline.DeadlineProblem.drawn(2)
    run = problem.ours(0.5 * problem.best_plan_s())
    assert run.tuners[0].run.state.ended_by == "deadline"


def test_pools_get_the_same_series_for_every_start_which_begins_elsewhere():
    series = [SpotSeries(1.0, ((number, 100),)) for number in range(5)]
    keys = [f"type-{number} a/spot" for number in range(20)]
    one, two = (assign_pools(keys, series, Seed(0), Seed(start)) for start in (1, 2))
    assert [pool.series for pool in one] == [pool.series for pool in two]
    assert [pool.start_s for pool in one] != [pool.start_s for pool in two]
    assert len(Counter(pool.series for pool in one)) > 1

"""Limits that the operator enforces as well: muster neither fights it nor deletes what an edit asked for."""

from __future__ import annotations

import json
import re

import pytest
from tests.kube.operator import worker_group
from tests.kube.world import until
from tests.mistakes.views import assert_line

from muster.cluster.model import StopCause
from muster.cluster.plan import Reason
from muster.providers.kuberay.ray_cluster import SETTINGS

pytestmark = pytest.mark.slow


def settings(total, *groups):
    """The annotation with a budget, and a price for each group."""
    prices = {name: {"price_per_hour": 1.0} for name in ("headgroup", *groups)}
    return {SETTINGS: json.dumps({"muster": {"budget": {"total": total}}, "available_node_types": prices})}


def test_a_used_up_budget_keeps_the_pods_that_the_operator_refills(loop, world):
    stage = loop(worker_group("small", 0, minReplicas=1, maxReplicas=1), annotations=settings(0, "small"))
    world.operator.termination_s = 30.0
    stage.tick(60, seconds=1.0)
    assert (len(world.operator.made), world.operator.deleted) == (1, [])
    (verdict,) = [v for v in stage.plans[-1].verdicts if v.reason is Reason.BUDGET]
    assert_line("providers", "kuberay budget used up", re.sub(r"\$0\.\d+", "$0.0N", verdict.detail))


def test_a_used_up_budget_removes_what_is_above_the_minimum(loop, world):
    small = worker_group("small", 3, minReplicas=1, maxReplicas=5)
    stage = loop(small, worker_group("other", 2), annotations=settings(0, "small", "other"))
    stage.runtime.busy = {world.operator.workers("small")[1]}
    stage.tick(8)
    kept = world.operator.workers("small")
    assert (world.size(0)[0], len(kept), world.operator.workers("other")) == (1, 1, [])
    assert set(kept) == stage.runtime.busy  # the busy pod is the one that stays
    causes = {i.stop_cause for i in stage.store.load().instances.values() if i.stop_cause is not None}
    assert causes <= {StopCause.BUDGET}
    assert len(world.operator.made) == 5


def test_a_used_up_budget_keeps_whole_slices(loop, world):
    tpu = worker_group("tpu", 2, minReplicas=1, maxReplicas=3, numOfHosts=2)
    stage = loop(tpu, annotations=settings(0, "tpu"))
    stage.tick(8)
    assert (world.size()[0], len(world.operator.workers("tpu")), len(world.operator.made)) == (1, 2, 4)


def test_a_minimum_above_the_maximum_is_cut_as_the_operator_cuts_it(loop, world):
    stage = loop(worker_group("small", 0, minReplicas=0, maxReplicas=2))
    stage.tick(2)
    world.admin.edit_group(0, minReplicas=5)
    world.operator.step()
    stage.tick(30)  # longer than pods may be idle
    assert (len(world.operator.made), world.operator.deleted) == (2, [])
    assert stage.states() == ["RAY_RUNNING"] * 2


@pytest.mark.parametrize("role", ["kuberay-1.3", "with-extra-role"])
def test_raising_minimum_and_maximum_together_deletes_nothing(world, role, loop):
    stage = loop(worker_group("small", 1, minReplicas=1, maxReplicas=1), role=role)
    stage.tick(2)
    for size in range(2, 22):
        world.admin.edit_group(0, minReplicas=size, maxReplicas=size)
        world.operator.step()  # before muster has read the RayCluster again
        world.caught_up(stage.provider)
        stage.tick()
    stage.tick(3)
    assert (world.operator.deleted, len(world.operator.made)) == ([], 21)
    assert stage.states() == ["RAY_RUNNING"] * 21


def test_pods_of_a_group_that_resumes_stay(loop, world):
    stage = loop(worker_group("small", 3, minReplicas=3, maxReplicas=3, suspend=True))
    stage.tick(2)
    assert world.operator.made == []
    world.admin.edit_group(0, suspend=False)
    world.operator.step()
    world.caught_up(stage.provider)
    stage.tick(4)
    assert (world.operator.deleted, stage.states()) == ([], ["RAY_RUNNING"] * 3)


def test_limits_of_an_edit_with_a_mistake_elsewhere_are_followed(loop, world):
    stage = loop(worker_group("small", 1, minReplicas=1, maxReplicas=1), worker_group("other", 0))
    stage.tick(2)
    world.admin.edit_group(1, rayStartParams={"resources": "not JSON"})
    world.admin.edit_group(0, minReplicas=3, maxReplicas=3)
    world.operator.step()
    stage.tick(6)
    assert stage.plans[-1] is not None
    until(lambda: len(world.operator.workers("small")) == 3)
    assert (world.operator.deleted, len(world.operator.made)) == ([], 3)

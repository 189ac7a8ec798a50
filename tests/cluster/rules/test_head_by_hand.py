"""A head started by hand (`ray start --head`) names no machine and no type: it is taken as what it is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.fakes import Stage
from tests.cluster.worlds import HEAD_MACHINE, HEAD_NODE, S, spec
from tests.support.builders import demand, node_type

from muster.cluster.controller import ClusterController
from muster.cluster.model import NodeKind, NodeStatus
from muster.cluster.plan import Reason

BY_HAND = replace(HEAD_NODE, cloud_id=None, node_type="")


@pytest.fixture
def stage():
    made = Stage(installer=False, wishes=spec(node_type("cpu")))
    made.provider.machines.clear()  # the provider knows nothing of the head
    made.runtime.nodes = [BY_HAND]
    return made


def ticked(stage, controller, times=1):
    for _ in range(times):
        stage.clock.advance(1)
        result = controller.tick()
    return result


def heads(result):
    return [
        (i.state.name, i.node_type, i.node_id)
        for i in result.ledger.instances.values()
        if i.kind is NodeKind.HEAD
    ]


def test_it_runs_under_the_configured_type_and_demand_is_served(stage):
    controller = ClusterController(stage.ports, stage.ambient)
    result = ticked(stage, controller)
    assert heads(result) == [("RAY_RUNNING", "head", "n-head")]
    stage.runtime.demands = [demand()]
    result = ticked(stage, controller)
    assert Reason.WAITING_FOR_HEAD not in {v.reason for v in result.plan.verdicts}
    assert [shape for _, shape in stage.provider.called("launch")] == [{"cpu": 1}]


def test_it_stays_although_no_list_ever_shows_it_and_is_never_given_back(stage):
    controller = ClusterController(stage.ports, stage.ambient)
    for _ in range(5):
        stage.clock.advance(400)
        result = controller.tick()
    assert heads(result) == [("RAY_RUNNING", "head", "n-head")]
    assert stage.provider.called("terminate") == []


def test_a_head_that_was_started_again_takes_its_place(stage):
    controller = ClusterController(stage.ports, stage.ambient)
    ticked(stage, controller)
    stage.runtime.nodes = [
        replace(BY_HAND, status=NodeStatus.DEAD),
        replace(BY_HAND, node_id="n-next"),
    ]
    assert ("RAY_RUNNING", "head", "n-next") in heads(ticked(stage, controller, 3))
    stage.clock.advance(60)  # the old one may be late on a list for a while
    result = ticked(stage, controller, 2)
    assert heads(result) == [("RAY_RUNNING", "head", "n-next")]
    assert stage.provider.called("terminate") == []
    assert [i.state for i in result.ledger.instances.values()] == [S.RAY_RUNNING]


def test_a_head_that_the_provider_lists_is_one_record(stage):
    stage.provider.machines["c-head"] = HEAD_MACHINE
    result = ticked(stage, ClusterController(stage.ports, stage.ambient), 3)
    assert heads(result) == [("RAY_RUNNING", "head", "n-head")]
    assert [i.cloud_id for i in result.ledger.instances.values()] == ["c-head"]


def test_a_list_that_fails_at_first_does_not_make_it_two(stage):
    stage.provider.machines["c-head"] = HEAD_MACHINE
    listing = stage.provider.answers["list_instances"]
    stage.provider.answers["list_instances"] = ConnectionError("no list")
    controller = ClusterController(stage.ports, stage.ambient)
    ticked(stage, controller)
    stage.provider.answers["list_instances"] = listing
    assert heads(ticked(stage, controller, 2)) == [("RAY_RUNNING", "head", "n-head")]


def test_a_worker_without_a_name_is_still_set_aside(stage):
    stage.runtime.nodes.append(replace(BY_HAND, node_id="n-w", is_head=False))
    result = ticked(stage, ClusterController(stage.ports, stage.ambient))
    assert [note.source for note in result.plan.quarantined] == ["node n-w"]

"""What counts as a change between two ticks, and what cannot wait."""

from __future__ import annotations

from msgspec.structs import replace
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import HEAD_NODE

from muster.autoscaler.tick_interval import picture_of, wishes
from muster.cluster.model import NodeStatus, RuntimeReport
from muster.testing.builders import amounts, demand, node_report


def test_time_alone_is_no_change():
    scene = Scene()
    scene.tick()
    before, after = scene.tick(), scene.tick(3600)
    assert after.plan.at - before.plan.at == 3600
    assert picture_of(before) == picture_of(after)


def test_the_order_of_a_report_is_no_change():
    scene = Scene()
    nodes, demands = [HEAD_NODE, node_report("n-a")], [demand({"CPU": 64}), demand({"GPU": 1})]
    scene.stage.runtime.nodes, scene.stage.runtime.demands = nodes, demands
    before = scene.tick()
    scene.stage.runtime.nodes, scene.stage.runtime.demands = nodes[::-1], demands[::-1]
    after = scene.tick()
    assert wishes(before.runtime) == wishes(after.runtime)
    assert picture_of(before) == picture_of(after)


def test_free_room_is_a_change_but_can_wait():
    busy, free = node_report(available=amounts({"CPU": 0})), node_report()
    assert wishes(RuntimeReport(nodes=(busy,))) == wishes(RuntimeReport(nodes=(free,), version=9))
    scene = Scene()
    before = scene.tick()
    scene.stage.runtime.nodes = [replace(HEAD_NODE, available=amounts({"CPU": 0}))]
    assert picture_of(before) != picture_of(scene.tick())


def test_demand_and_nodes_that_come_or_go_cannot_wait():
    rest = RuntimeReport(nodes=(HEAD_NODE,))
    news = [
        replace(rest, demands=(demand(),)),
        replace(rest, nodes=(HEAD_NODE, node_report())),
        replace(rest, nodes=(replace(HEAD_NODE, status=NodeStatus.DEAD),)),
        replace(rest, nodes=()),
    ]
    assert [wishes(each) != wishes(rest) for each in news] == [True] * 4

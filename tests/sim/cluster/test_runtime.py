"""Check that the simulated runtime runs work, reports it, and drains as Ray does."""

from __future__ import annotations

import pytest
from tests.support.builders import cluster_spec

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import NodeKind, NodeStatus, StopCause, Strategy
from muster.cluster.plan import Drain
from muster.sim.cluster.build import SimDrains
from muster.sim.cluster.cloud import SimCloud
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import WORKER_TYPES, catalogue_for
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import GangWork, TaskClass
from muster.sim.cluster.world import World

ONE = TaskClass(Resources.of(CPU=1), name="one")


class Stage:
    """Machines of type cpu-4 (4 CPU), each with its node."""

    def __init__(self, machines: int = 1, **rates: float) -> None:
        self.world, crash_points, faults = World(), CrashPoints(), Faults(Seed(1), rates)
        draw, sells = Seed(1).derive("c"), catalogue_for(cluster_spec())
        self.cloud = SimCloud(self.world, crash_points, faults, draw, sells)
        self.runtime = SimRuntime(self.world, crash_points, faults)
        self.drains = SimDrains(self.world, crash_points, faults, self.runtime)
        for _ in range(machines):
            machine = self.cloud.create("cpu-4", NodeKind.WORKER)
            self.runtime.join(machine, WORKER_TYPES[0])

    def drain(self, cause: StopCause, deadline_s: float = 20.0) -> None:
        action = Drain(
            request_id="d-1", instance_id="i-1", node_id="n-0001", cause=cause, deadline_s=deadline_s
        )
        self.drains.drain(action)

    def status(self) -> NodeStatus:
        return self.runtime.read().nodes[0].status


def test_what_does_not_fit_is_pending_demand_and_starts_when_room_comes():
    stage = Stage()
    stage.runtime.submit(ONE, 6, 10.0)
    assert [(d.name, d.count) for d in stage.runtime.read().demands] == [("one", 2)]
    stage.world.advance(10.0)
    assert (stage.runtime.read().demands, stage.runtime.finished) == ((), 4)


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        ("none", ("m-0001", "10.0.0.1")),
        ("node_without_id", (None, "10.0.0.1")),
        ("node_without_ip", (None, "")),
    ],
)
def test_a_node_may_lack_its_cloud_id_and_its_ip(fault, shown):
    node = Stage(**{fault: 1.0}).runtime.read().nodes[0]
    assert (node.cloud_id, node.ip) == shown


def test_a_node_is_idle_from_the_end_of_its_last_task():
    stage = Stage()
    stage.runtime.submit(ONE, 1, 10.0)
    assert stage.status() is NodeStatus.RUNNING
    stage.world.advance(25.0)
    node = stage.runtime.read().nodes[0]
    assert (node.status, node.idle_s) == (NodeStatus.IDLE, 15.0)


def test_work_of_a_dead_node_waits_again():
    stage = Stage()
    stage.runtime.submit(ONE, 3, 10.0)
    stage.runtime.kill_node(stage.runtime.live_nodes()[0])
    assert (stage.runtime.pending_tasks(), stage.status()) == (3, NodeStatus.DEAD)
    stage.world.advance(60.0)
    assert stage.runtime.finished == 0


def test_a_strictly_spread_gang_waits_until_every_bundle_has_its_own_node():
    stage = Stage(machines=1)
    bundles = [stage.runtime.bundle(Resources.of(CPU=1)) for _ in range(2)]
    stage.runtime.submit_gang(GangWork("g", Strategy.STRICT_SPREAD, bundles, 10.0))
    assert [gang.gang_id for gang in stage.runtime.read().gangs] == ["g"]
    stage.runtime.join(stage.cloud.create("cpu-4"), WORKER_TYPES[0])
    assert [len(node.running) for node in stage.runtime.live_nodes()] == [1, 1]
    stage.world.advance(10.0)
    assert (stage.runtime.finished, stage.runtime.gangs) == (2, {})


def test_a_gang_that_loses_a_node_starts_again_as_a_whole():
    stage = Stage(machines=2)
    bundles = [stage.runtime.bundle(Resources.of(CPU=1)) for _ in range(2)]
    stage.runtime.submit_gang(GangWork("g", Strategy.STRICT_SPREAD, bundles, 10.0))
    stage.runtime.kill_node(stage.runtime.live_nodes()[0])
    assert [gang.gang_id for gang in stage.runtime.pending_gangs()] == ["g"]
    assert [len(node.running) for node in stage.runtime.live_nodes()] == [0]


def test_an_idle_drain_of_a_busy_node_is_refused():
    stage = Stage()
    stage.runtime.submit(ONE, 1, 10.0)
    stage.drain(StopCause.IDLE)
    assert [failure.instance_id for failure in stage.drains.poll()] == ["i-1"]
    assert stage.status() is NodeStatus.RUNNING


def test_an_idle_drain_of_an_idle_node_ends_it_at_once():
    stage = Stage()
    stage.drain(StopCause.IDLE)
    assert (stage.drains.poll(), stage.status()) == ((), NodeStatus.DEAD)


def test_any_other_drain_lets_work_finish_before_the_deadline():
    stage = Stage()
    stage.runtime.submit(ONE, 1, 10.0)
    stage.drain(StopCause.MAX_NODES, deadline_s=20.0)
    assert stage.status() is NodeStatus.DRAINING
    stage.world.advance(10.0)
    assert (stage.status(), stage.runtime.finished) == (NodeStatus.DEAD, 1)


def test_work_past_the_deadline_is_ended_and_waits_again():
    stage = Stage()
    stage.runtime.submit(ONE, 1, 100.0)
    stage.drain(StopCause.MAX_NODES, deadline_s=20.0)
    stage.world.advance(20.0)
    assert (stage.status(), stage.runtime.pending_tasks()) == (NodeStatus.DEAD, 1)

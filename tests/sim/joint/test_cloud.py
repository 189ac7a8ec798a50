"""Check spot pools that follow recorded series: refusals, notices, and machines that are taken."""

from __future__ import annotations

import pytest

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, FailureKind, NodeType, Offer
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue
from muster.sim.cluster.options import HEAD_TYPE, RunOptions, head_type
from muster.sim.joint.cloud import BootTime, JointCluster, SpotModel, SpotPool, SpotSeries

SPOT = Offer(zone="a", market="spot", price_per_hour=0.3)
ON_DEMAND = Offer(market="on-demand", price_per_hour=1.0)
GPU = NodeType(name="gpu", resources=Resources.of(GPU=1), max_nodes=9, offers=(ON_DEMAND, SPOT))


def cloud(*runs, step_s=100.0, **model):
    spec = ClusterSpec(head_node_type=HEAD_TYPE, node_types=(head_type(), GPU))
    sells = Catalogue(types={"gpu": GPU}, prices={})
    made = JointCluster(Seed(1), RunOptions(spec=spec, catalogue=sells), Faults.none())
    made.cloud.model = SpotModel(**model)
    made.cloud.open_pools(Seed(1), [SpotPool("gpu a/spot", SpotSeries(step_s, runs), 0.0)])
    return made.cloud, made.world


def test_a_series_says_how_many_there_are_now_and_until_when_and_begins_again():
    series = SpotSeries(10.0, ((3, 2), (0, 1)))
    assert [series.at(offset) for offset in (0.0, 19.0, 20.0, 31.0)] == [
        (3, 20.0),
        (3, 1.0),
        (0, 10.0),
        (3, 19.0),
    ]


def test_a_pool_sells_no_more_than_it_has_and_on_demand_is_not_limited():
    made, _ = cloud((1, 9))
    assert made.refusal("gpu", SPOT) is None
    made.deliver("gpu", None, SPOT)
    assert made.refusal("gpu", SPOT) is FailureKind.CAPACITY
    assert made.refusal("gpu", ON_DEMAND) is None


def test_when_a_series_falls_the_newest_machines_are_announced_and_taken_at_the_deadline():
    made, world = cloud((3, 1), (1, 9), noticed_share=1.0)
    machines = [made.deliver("gpu", None, SPOT) for _ in range(3)]
    world.advance(165.0)
    notices = made.read_notices().notices
    assert [notice.cloud_id for notice in notices] == [m.cloud_id for m in machines[1:]]
    assert all(220.0 <= notice.deadline - world.wall_shift <= 280.0 for notice in notices)
    world.advance(120.0)
    assert [machine.exists for machine in machines] == [True, False, False]


def test_without_a_notice_a_machine_is_gone_within_the_time():
    made, world = cloud((1, 1), (0, 9), noticed_share=0.0)
    machine = made.deliver("gpu", None, SPOT)
    world.advance(281.0)
    assert (machine.exists, made.read_notices().notices, made.taken_without_notice) == (False, (), 1)


def test_a_notice_is_shown_for_a_while_after_its_deadline():
    made, world = cloud((1, 1), (0, 99), noticed_share=1.0)
    made.deliver("gpu", None, SPOT)
    world.advance(300.0)
    assert len(made.read_notices().notices) == 1
    world.advance(2000.0)
    assert made.read_notices().notices == ()


def test_boots_are_lognormal_around_the_median_and_never_shorter_than_the_setup():
    boot, stream = BootTime(median_s=90.0, sigma=0.3, setup_s=60.0), Seed(1).derive("boots")
    drawn = sorted(boot.draw(stream) for _ in range(999))
    assert drawn[499] == pytest.approx(150.0, rel=0.05)
    assert drawn[0] > 60.0
    assert sum(drawn) / len(drawn) == pytest.approx(boot.expected_s, rel=0.05)

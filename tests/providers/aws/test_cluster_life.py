"""A cluster on EC2 from its first machine to its last, with everything that EC2 refuses on the way."""

from __future__ import annotations

import pytest
from tests.providers.aws.cluster_on_ec2 import FILE, ClusterOnEc2

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lifecycle.gc import MachineEnder, unowned, without_record
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.cluster.model import Notice, NoticeKind
from muster.cluster.states import InstanceState

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SPOT_A, SPOT_B = ("small", "us-east-1a", "spot"), ("small", "us-east-1b", "spot")
ON_DEMAND, OTHER = ("small", "us-east-1a", "on-demand"), ("other", "us-east-1a", "on-demand")


@pytest.fixture
def faults(ec2):
    return ec2.faults


@pytest.fixture
def cluster(ec2):
    made = ClusterOnEc2()
    made.start_head()
    made.tick()
    return made


def offers(cluster) -> list[tuple[str, str]]:
    live = cluster.store.load().instances.values()
    return sorted((one.node_type, one.offer_name) for one in live if one.node_type != "head")


def test_machines_come_for_demand_and_go_when_they_are_idle(cluster, faults):
    cluster.ask(3)
    cluster.tick(2)
    assert cluster.workers() == [SPOT_A] * 3
    cluster.tick()
    states = {one.state for one in cluster.store.load().instances.values()}
    assert states == {InstanceState.RAY_RUNNING}
    assert faults.calls["CreateFleet"] == 2  # the head's and one for all three
    cluster.ask(0)
    cluster.runtime.idle_s = 600.0
    cluster.tick(4)
    assert len(cluster.drainer.drained) == 3
    cluster.tick(4, seconds=120.0)
    assert cluster.workers() == []
    assert len(cluster.provider.listing.newest()) == 1  # the head


def test_a_launch_whose_answer_was_lost_is_repeated_and_buys_nothing_more(cluster, faults):
    faults.lost["CreateFleet"] = 2
    cluster.ask(3)
    cluster.tick(3)
    assert cluster.workers() == [SPOT_A] * 3
    assert faults.calls["CreateFleet"] == 1 + 3


def test_a_monitor_that_died_before_it_saw_the_answer_buys_nothing_more(cluster, faults):
    faults.lost["CreateFleet"] = 100
    cluster.ask(3)
    cluster.tick()
    faults.lost.clear()
    cluster.restart()
    cluster.tick(3)
    assert cluster.workers() == [SPOT_A] * 3


def test_a_zone_that_is_sold_out_is_passed_over_within_the_same_call(cluster, faults):
    faults.stock = {"m5.xlarge us-east-1a spot": 0}
    cluster.ask(2)
    cluster.tick()
    assert cluster.workers() == [SPOT_B] * 2
    assert faults.calls["CreateFleet"] == 2
    cluster.tick()
    assert offers(cluster) == [("small", "us-east-1b/spot")] * 2
    priorities = [value for key, value in faults.bodies[-1].items() if key.endswith("Priority")]
    assert priorities == ["0.0", "1.0"]


def test_a_fleet_that_is_filled_in_part_is_filled_from_the_next_zone(cluster, faults):
    faults.stock = {"m5.xlarge us-east-1a spot": 1}
    cluster.ask(3)
    cluster.tick(2)
    assert cluster.workers() == [SPOT_A, SPOT_B, SPOT_B]
    assert offers(cluster) == [("small", f"us-east-1{zone}/spot") for zone in "abb"]


def test_what_is_sold_out_moves_to_the_next_market_in_the_tick_that_hears_of_it(cluster, faults):
    faults.stock = {"m5.xlarge * spot": 0}
    cluster.ask(2)
    cluster.tick()
    assert cluster.workers() == []
    cluster.tick()
    assert cluster.workers() == [ON_DEMAND] * 2


def test_and_from_there_to_the_next_type_and_no_sold_out_place_is_asked_again(cluster, faults):
    faults.stock = {"m5.xlarge *": 0}
    cluster.ask(2)
    cluster.tick(3)
    assert cluster.workers() == [OTHER] * 2
    assert faults.calls["CreateFleet"] == 1 + 3
    cluster.ask(4)
    faults.stock["m6i.xlarge *"] = 1
    cluster.tick(12, seconds=5.0)
    assert cluster.workers() == [OTHER] * 3
    assert faults.calls["CreateFleet"] <= 7  # a minute later only what is tried again after some minutes


def test_a_place_that_stays_sold_out_is_asked_less_and_less_also_by_another_process(cluster, faults):
    faults.stock = {"m5.xlarge *": 0, "m6i.xlarge *": 0}
    cluster.ask(1)
    pauses = []
    for _ in range(4):
        cluster.tick(6)
        health = cluster.store.load().memory.health["other us-east-1a/on-demand"]
        pauses.append(round(health.blocked_until - health.failed_at))
        cluster.restart()
        cluster.clock.advance(health.blocked_until - cluster.clock.now())
    assert pauses == [pytest.approx(pause, rel=0.05) for pause in (180, 360, 720, 1440)]
    assert round(health.failures) == 4
    faults.stock = {}
    cluster.tick(6)
    assert cluster.workers() == [SPOT_A]


def test_units_that_nobody_has_fail_with_the_reason_and_the_others_stay(cluster, faults):
    faults.stock = {"m5.xlarge us-east-1a spot": 1, "m5.xlarge us-east-1b spot": 1, "* on-demand": 0}
    cluster.ask(4)
    result = cluster.tick(4)
    assert cluster.workers() == [SPOT_A, SPOT_B]
    messages = {one.reason for one in result.snapshot.recent_failures}
    assert any("InsufficientInstanceCapacity" in one for one in messages)


def test_throttling_slows_the_calls_down_and_they_recover(cluster, faults):
    rate = cluster.provider.calls.rates["change"]
    full = rate.per_s
    faults.throttled["CreateFleet"] = 3
    cluster.ask(2)
    cluster.tick()
    assert cluster.workers() == [SPOT_A] * 2
    assert rate.per_s < full / 4
    node = next(iter(cluster.provider.listing.newest()))
    for number in range(20):
        cluster.provider.set_tags(node, {"n": str(number)})
    assert rate.per_s == full


def test_a_list_that_is_throttled_for_long_ends_no_machine(cluster, faults):
    cluster.ask(2)
    cluster.tick(3)
    faults.throttled["DescribeInstances"] = 50
    cluster.tick(5)
    faults.throttled.clear()
    assert cluster.workers() == [SPOT_A] * 2


def test_a_fresh_instance_profile_is_waited_for(cluster, faults):
    faults.fresh_profile = 3
    cluster.ask(2)
    cluster.tick()
    assert cluster.workers() == [SPOT_A] * 2


def test_without_the_right_to_create_fleets_machines_are_bought_zone_by_zone(cluster, faults):
    faults.denied.add("CreateFleet")
    faults.stock = {"m5.xlarge us-east-1a spot": 1}
    cluster.ask(3)
    cluster.tick(2)
    assert cluster.workers() == [SPOT_A, SPOT_B, SPOT_B]
    assert (faults.calls["CreateFleet"], faults.calls["RunInstances"]) == (2, 2)
    cluster.ask(4)
    cluster.tick(2)
    assert faults.calls["CreateFleet"] == 2  # not asked again


def test_a_spot_machine_that_is_taken_without_a_notice_is_replaced_elsewhere(cluster, faults):
    cluster.ask(1)
    cluster.tick(3)
    assert cluster.workers() == [SPOT_A]
    taken = next(n for n, one in cluster.provider.listing.living().items() if one.is_spot)
    cluster.provider.calls.wire.client("ec2").terminate_instances(InstanceIds=[taken])
    faults.stock = {"m5.xlarge us-east-1a spot": 0}
    cluster.tick(3)
    assert cluster.workers() == [SPOT_B]


def test_a_spot_machine_with_a_notice_is_drained_and_replaced_elsewhere_in_the_same_tick(cluster, faults):
    cluster.ask(1)
    cluster.tick(3)
    taken = next(n for n, one in cluster.provider.listing.living().items() if one.is_spot)
    now, kind = cluster.clock.now(), NoticeKind.INTERRUPTION
    cluster.notices.given = (Notice(cloud_id=taken, kind=kind, at=now, deadline=now + 120.0),)
    cluster.tick()
    assert cluster.drainer.drained == {f"n-{taken}"}
    assert cluster.workers() == [SPOT_A, SPOT_B]  # the pool that gave the notice is left alone
    cluster.provider.calls.wire.client("ec2").terminate_instances(InstanceIds=[taken])
    cluster.tick(4)
    assert cluster.workers() == [SPOT_B]


def test_a_machine_that_stays_pending_is_not_running_and_not_bought_again(cluster, faults):
    faults.is_pending = True
    cluster.ask(1)
    cluster.tick(5)
    assert [one.is_running for one in cluster.provider.list_instances().values()] == [False, False]
    faults.is_pending = False
    cluster.tick(2)
    assert cluster.workers() == [SPOT_A]


def test_a_leaked_machine_is_found_by_its_tags_and_ended(cluster, tmp_path):
    cluster.ask(2)
    cluster.tick(2)
    listed = cluster.provider.list_instances()
    head = next(n for n, one in listed.items() if one.node_type == "head")
    cluster.provider.terminate_machines([head])
    left = cluster.provider.list_instances()
    found = unowned(cluster.config, left, without_record(left))
    assert sorted(one.node_type for one in found.machines) == ["small", "small"]
    ender = MachineEnder(cluster.provider, ClusterHome(tmp_path), SystemClock(), RandomIds(), is_forced=False)
    ended = ender.run(found.machines, lambda text: None)
    assert (len(ended.ended), dict(ended.left), cluster.workers()) == (2, {}, [])


STOPPING = FILE.replace(
    "disable_node_updaters: true", "disable_node_updaters: true, cache_stopped_nodes: true"
)


def test_an_on_demand_machine_is_stopped_and_started_again_and_a_spot_machine_is_ended(ec2):
    cluster = ClusterOnEc2(STOPPING)
    cluster.start_head()
    ec2.faults.stock = {"m5.xlarge us-east-1b spot": 0, "m5.xlarge us-east-1a spot": 1}
    cluster.ask(2)
    cluster.tick(4)
    assert cluster.workers() == [ON_DEMAND, SPOT_A]
    living = cluster.provider.listing.living().items()
    before = {one.is_spot: n for n, one in living if one.tags["ray-user-node-type"] == "small"}
    cluster.provider.terminate("t-9", list(before.values()))
    assert cluster.workers() == []
    assert [one.node_id for one in cluster.provider.listing.stopped()] == [before[False]]
    ec2.faults.stock = {"m5.xlarge * spot": 0}
    launched = ec2.faults.calls["CreateFleet"]
    cluster.clock.advance(61.0)  # in its first minute a process does not know what an earlier one launched
    cluster.ask(1)
    cluster.tick(5)
    assert (cluster.workers(), before[False] in cluster.provider.listing.living()) == ([ON_DEMAND], True)
    assert (ec2.faults.calls["CreateFleet"], ec2.faults.calls["StartInstances"]) == (launched, 1)
    cluster.provider.terminate_machines(list(cluster.provider.listing.living()))
    cluster.provider.clean_up()
    assert (cluster.provider.listing.refresh(), cluster.provider.listing.kept()) == ({}, [])

"""The simulated calls of EC2 answer and refuse as the real ones do."""

from __future__ import annotations

import pytest

from muster.base.rng import Seed
from muster.cluster.model import Offer
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.ec2.api import Ec2Refusal
from muster.sim.cluster.ec2.cloud import Ec2Cloud, FleetOrder
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import catalogue_for
from muster.sim.cluster.world import World
from muster.testing.builders import cluster_spec

SPOT_A = Offer(zone="a", market="spot", price_per_hour=1.0)
ON_DEMAND_A = Offer(zone="a", price_per_hour=2.0)


def ec2(**rates: float) -> tuple[World, Ec2Cloud]:
    world = World()
    faults = Faults(Seed(1), rates)
    cloud = Ec2Cloud(world, CrashPoints(), faults, Seed(3).derive("c"), catalogue_for(cluster_spec()))
    return world, cloud


def fleet(cloud: Ec2Cloud, count: int = 2, request: str = "r-1", offer: Offer = SPOT_A):
    return cloud._fleet(FleetOrder(request, "cpu-4", count, offer, may_start_stopped=False), count)


def ids(answer):
    return [name for entry in answer["Instances"] for name in entry["InstanceIds"]]


def test_a_fleet_with_the_same_token_has_the_same_answer_and_buys_nothing_more():
    _, cloud = ec2()
    first = cloud.api.create_fleet(**fleet(cloud))
    assert cloud.api.create_fleet(**fleet(cloud)) == first
    assert sorted(ids(first)) == sorted(cloud.machines)


def test_a_token_with_other_parameters_is_refused():
    _, cloud = ec2()
    cloud.api.create_fleet(**fleet(cloud))
    with pytest.raises(Ec2Refusal, match="IdempotentParameterMismatch"):
        cloud.api.create_fleet(**fleet(cloud, count=3))


def test_a_pool_with_too_few_machines_makes_what_it_has_and_says_what_is_missing():
    _, cloud = ec2()
    cloud.api.stock.limit("cpu-4 a/spot", 1, 60.0)
    answer = cloud.api.create_fleet(**fleet(cloud, count=3))
    assert len(ids(answer)) == 1
    (error,) = answer["Errors"]
    assert (error["ErrorCode"], error["Lifecycle"]) == ("InsufficientInstanceCapacity", "spot")
    assert error["LaunchTemplateAndOverrides"]["Overrides"]["SubnetId"] == "subnet-a"


def test_a_fleet_over_several_zones_takes_the_first_that_has_machines():
    _, cloud = ec2()
    cloud.api.stock.limit("cpu-4 a/on-demand", 0, 60.0)
    order = FleetOrder("r-1", "cpu-4", 1, None, may_start_stopped=False)
    (entry,) = cloud.api.create_fleet(**cloud._fleet(order, 1))["Instances"]
    assert entry["LaunchTemplateAndOverrides"]["Overrides"]["SubnetId"] == "subnet-b"


def test_a_lost_answer_is_found_again_by_its_token():
    _, cloud = ec2(launch_reply_lost=1.0)
    with pytest.raises(TimeoutError):
        cloud.api.create_fleet(**fleet(cloud))
    cloud._faults.stop()
    assert sorted(ids(cloud.api.create_fleet(**fleet(cloud)))) == sorted(cloud.machines)
    assert len(cloud.machines) == 2


def test_a_throttled_order_is_made_again_by_the_next_list_and_is_under_way_until_then():
    world, cloud = ec2(throttled=1.0)
    while not cloud.under_way("r-1"):
        cloud._faults.injected.clear()
        cloud.reconnect()
        cloud.launch_offer("r-1", {"cpu-4": 1}, SPOT_A)
    cloud._faults.stop()
    world.advance(5.0)
    cloud.list_instances()
    assert not cloud.under_way("r-1")
    assert [m.request_id for m in cloud.machines.values()] == ["r-1"]


def test_a_call_that_names_a_machine_which_is_not_known_yet_fails_as_a_whole_and_the_rest_is_ended():
    world, cloud = ec2()
    cloud.launch_offer("r-1", {"cpu-4": 2}, SPOT_A)
    known, late = cloud.machines.values()
    late.listed_from = world.time + 60.0
    with pytest.raises(Ec2Refusal, match=r"InvalidInstanceID\.NotFound"):
        cloud.api.terminate_instances(InstanceIds=[known.cloud_id, late.cloud_id])
    cloud.terminate("t-1", [known.cloud_id, late.cloud_id])
    (failure,) = cloud.poll_terminate_failures()
    assert failure.cloud_id == late.cloud_id
    assert (known.leaving, late.leaving) == (True, False)


def test_a_stopped_machine_is_started_again_under_its_id_for_a_later_request():
    world, cloud = ec2()
    cloud.keeps_stopped = True
    world.advance(100.0)
    cloud.launch_offer("r-1", {"cpu-4": 1}, ON_DEMAND_A)
    (name,) = cloud.machines
    cloud.terminate("t-1", [name])
    assert cloud.list_instances() == {}
    world.advance(10.0)
    cloud.launch_offer("r-2", {"cpu-4": 2}, ON_DEMAND_A)
    listed = cloud.list_instances()
    assert {one.request_id for one in listed.values()} == {"r-2"}
    assert (len(listed), name in listed, cloud.api.stopped) == (2, True, {})
    assert cloud.poll_launch_failures() == ()


def test_spot_machines_and_those_of_an_older_launch_config_are_not_kept_for_later():
    world, cloud = ec2()
    cloud.keeps_stopped = True
    world.advance(100.0)
    cloud.launch_offer("r-1", {"cpu-4": 1}, SPOT_A)
    cloud.launch_offer("r-2", {"cpu-4": 1}, ON_DEMAND_A)
    spot, other = cloud.machines.values()
    other.launch_hash = "older"
    cloud.terminate("t-1", [spot.cloud_id, other.cloud_id])
    assert list(cloud.api.stopped) == [other.cloud_id]
    cloud.launch_offer("r-3", {"cpu-4": 1}, ON_DEMAND_A)
    assert list(cloud.api.stopped) == [other.cloud_id]


def test_a_stopped_machine_without_room_is_a_failure_of_capacity():
    world, cloud = ec2()
    cloud.keeps_stopped = True
    world.advance(100.0)
    cloud.launch_offer("r-1", {"cpu-4": 1}, ON_DEMAND_A)
    cloud.terminate("t-1", list(cloud.machines))
    cloud.api.stock.limit("cpu-4 a/on-demand", 0, 60.0)
    cloud.launch_offer("r-2", {"cpu-4": 1}, ON_DEMAND_A)
    (failure,) = cloud.poll_launch_failures()
    assert (failure.request_id, failure.kind.value, failure.offer) == ("r-2", "capacity", "a/on-demand")


def test_a_request_repeated_by_a_new_controller_starts_no_stopped_machine_in_place_of_what_it_bought():
    world, cloud = ec2()
    cloud.keeps_stopped = True
    world.advance(100.0)
    cloud.launch_offer("r-1", {"cpu-4": 1}, ON_DEMAND_A)
    cloud.launch_offer("r-2", {"cpu-4": 1}, ON_DEMAND_A)
    first, second = cloud.machines
    cloud.terminate("t-1", [first])
    cloud.reconnect()
    cloud.launch_offer("r-2", {"cpu-4": 1}, ON_DEMAND_A)
    assert [m.cloud_id for m in cloud.alive()] == [second]
    assert cloud.poll_launch_failures() == ()

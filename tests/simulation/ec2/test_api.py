"""The real AwsProvider over the simulated EC2, a fault at a time: nothing is doubled, lost or leaked."""

from __future__ import annotations

import pytest
from tests.simulation.ec2.cloud import LATE_S, Ec2Cloud
from tests.support.builders import cluster_spec

from muster.base.rng import Seed
from muster.cluster.model import FailureKind, Offer
from muster.providers.aws.calls import TRIES
from muster.providers.aws.wire import AwsRefusal, CallBroken
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import catalogue_for
from muster.sim.cluster.world import World

SPOT_A, SPOT_B = (Offer(zone=zone, market="spot", price_per_hour=1.0) for zone in "ab")
ON_DEMAND_A = Offer(zone="a", price_per_hour=2.0)


def ec2(*, keeps_stopped: bool = False, **rates: float) -> tuple[World, Ec2Cloud]:
    world = World()
    faults = Faults(Seed(1), rates)
    cloud = Ec2Cloud(world, CrashPoints(), faults, Seed(3).derive("c"), catalogue_for(cluster_spec()))
    cloud.keeps_stopped = keeps_stopped
    cloud.reconnect()
    return world, cloud


def launch(cloud: Ec2Cloud, count: int = 1, *offers: Offer, request: str = "r-1"):
    """Launch machines, and return the kinds of the failures."""
    cloud.launch(request, {"cpu-4": count}, offers)
    return [failure.kind for failure in cloud.poll_launch_failures()]


def zones(cloud: Ec2Cloud) -> list[str]:
    return sorted(machine.offer.zone for machine in cloud.alive())


def test_a_request_repeated_by_another_process_launches_nothing_more():
    _, cloud = ec2()
    assert launch(cloud, 2, SPOT_A) == []
    cloud.reconnect()
    assert launch(cloud, 2, SPOT_A) == []
    assert [m.request_id for m in cloud.machines.values()] == ["r-1", "r-1"]


def test_a_token_with_other_parameters_is_refused_and_the_rest_is_launched_under_another():
    world, cloud = ec2()
    launch(cloud, 2, SPOT_A)
    cloud.reconnect()
    cloud.api.stock.limit("cpu-4 a/spot", 2, 600.0)
    assert launch(cloud, 3, SPOT_A, SPOT_B) == []
    assert (zones(cloud), cloud.under_way("r-1")) == (["a", "a"], True)  # lists may be late: it waits
    world.advance(LATE_S + 1)
    assert launch(cloud, 3, SPOT_A, SPOT_B) == []
    assert (zones(cloud), cloud.under_way("r-1")) == (["a", "a", "b"], False)


def test_a_pool_with_too_few_machines_gives_what_it_has_and_a_failure_for_each_missing_one():
    _, cloud = ec2()
    cloud.api.stock.limit("cpu-4 a/spot", 1, 60.0)
    cloud.launch("r-1", {"cpu-4": 3}, (SPOT_A,))
    failures = cloud.poll_launch_failures()
    assert [(one.kind, one.offer) for one in failures] == [(FailureKind.CAPACITY, "a/spot")] * 2
    assert len(cloud.alive()) == 1


def test_a_fleet_takes_the_next_offer_that_has_machines():
    _, cloud = ec2()
    cloud.api.stock.limit("cpu-4 a/spot", 0, 60.0)
    assert launch(cloud, 1, SPOT_A, SPOT_B) == []
    assert zones(cloud) == ["b"]


@pytest.mark.parametrize("fault", ["launch_reply_lost", "launch_broken", "call_breaks"])
def test_a_launch_whose_answers_are_lost_has_neither_doubled_nor_forgotten_machines(fault):
    """Found by seed 1575: it was reported as failed while a machine came that no list showed yet."""
    _, cloud = ec2(**{fault: 1.0})
    is_failed = launch(cloud, 2, SPOT_A) != []
    assert cloud.under_way("r-1") is not is_failed
    cloud._faults.stop()
    assert launch(cloud, 2, SPOT_A) == []
    cloud.reconnect()
    assert launch(cloud, 2, SPOT_A) == []
    assert (len(cloud.alive()), cloud.under_way("r-1")) == (2, False)


def test_a_throttled_call_is_repeated_slower_and_then_given_up():
    _, cloud = ec2(throttled=1.0)
    kinds = [launch(cloud, 1, SPOT_A, request=f"r-{number}") for number in range(6)]
    assert [FailureKind.THROTTLED] in kinds
    assert max(cloud.api.calls.values()) <= 6 * TRIES


def test_launches_without_the_right_to_fleets_go_zone_by_zone():
    _, cloud = ec2()
    cloud.api.denies_fleets = True
    cloud.api.stock.limit("cpu-4 a/spot", 1, 60.0)
    assert launch(cloud, 3, SPOT_A, SPOT_B) == []
    assert (zones(cloud), cloud.api.calls["run_instances"]) == (["a", "b", "b"], 2)


def test_a_launch_without_an_answer_is_repeated_as_a_fleet_although_fleets_are_denied_meanwhile():
    """Found by seed 10206: it was repeated by RunInstances, under another token."""
    _, cloud = ec2(launch_reply_lost=1.0)
    launch(cloud, 2, SPOT_A)
    cloud._faults.stop()
    cloud.api.denies_fleets = True
    assert launch(cloud, 1, SPOT_B, request="r-2") == []
    launch(cloud, 2, SPOT_A)
    assert (zones(cloud), cloud.under_way("r-1")) == (["a", "a", "b"], True)
    cloud.api.denies_fleets = False
    assert launch(cloud, 2, SPOT_A) == []
    assert (zones(cloud), cloud.under_way("r-1")) == (["a", "a", "b"], False)


@pytest.mark.parametrize("is_denied", [True, False])
def test_a_new_process_repeats_no_launch_that_another_made_without_or_with_a_fleet(is_denied):
    """Found by seed 150000060: the right to fleets came back, and the token of a fleet is another."""
    _, cloud = ec2()
    cloud.api.denies_fleets = is_denied
    launch(cloud, 2, SPOT_A)
    cloud.api.denies_fleets = not is_denied
    cloud.reconnect()
    assert launch(cloud, 2, SPOT_A) == []
    assert (len(cloud.alive()), cloud.under_way("r-1")) == (2, False)


def test_a_new_process_repeats_no_launch_in_a_zone_that_had_none_for_the_one_before():
    """Each zone has its own token: the first call would go to a zone that was passed over before."""
    world, cloud = ec2()
    cloud.api.denies_fleets = True
    cloud.api.stock.limit("cpu-4 a/spot", 0, 30.0)
    launch(cloud, 2, SPOT_A, SPOT_B)
    world.advance(31.0)
    cloud.reconnect()
    launch(cloud, 1, SPOT_A, request="r-2")
    assert launch(cloud, 2, SPOT_A, SPOT_B) == []
    assert (zones(cloud), cloud.under_way("r-1")) == (["a", "b", "b"], False)


def test_what_a_launch_without_a_fleet_lacks_is_launched_once_lists_show_all_that_came():
    world, cloud = ec2()
    cloud.api.denies_fleets = True
    cloud.api.stock.limit("cpu-4 a/spot", 1, 30.0)
    launch(cloud, 2, SPOT_A)
    cloud.api.denies_fleets = False
    cloud.reconnect()
    assert launch(cloud, 2, SPOT_A) == []
    assert (len(cloud.alive()), cloud.under_way("r-1")) == (1, True)
    world.advance(LATE_S + 1)
    assert launch(cloud, 2, SPOT_A) == []
    assert (len(cloud.alive()), cloud.under_way("r-1")) == (2, False)


def test_templates_that_somebody_removed_are_made_again_and_a_fresh_profile_is_waited_for():
    _, cloud = ec2()
    launch(cloud, 1, SPOT_A)
    cloud.api.templates.clear()
    cloud.api._broken_until["profile_unknown "] = 10.0
    assert launch(cloud, 1, SPOT_A, request="r-2") == []
    assert cloud.api.calls["create_launch_template"] == 2


def test_a_machine_that_calls_do_not_know_yet_does_not_keep_others_from_being_terminated():
    world, cloud = ec2()
    launch(cloud, 2, SPOT_A)
    known, late = cloud.machines.values()
    late.listed_from = world.time + 60.0
    with pytest.raises(AwsRefusal, match=r"InvalidInstanceID\.NotFound"):
        cloud.api.terminate_instances(InstanceIds=[known.cloud_id, late.cloud_id])
    cloud.terminate("t-1", [known.cloud_id, late.cloud_id])
    assert (known.leaving, late.leaving) == (True, False)
    (failure,) = cloud.poll_terminate_failures()  # not taken for gone: it will exist
    assert failure.cloud_id == late.cloud_id


def test_a_stopped_machine_is_started_again_under_its_id_for_a_later_request():
    world, cloud = ec2(keeps_stopped=True)
    launch(cloud, 1, ON_DEMAND_A)
    (name,) = cloud.machines
    cloud.terminate("t-1", [name])
    world.advance(70.0)
    assert cloud.list_instances() == {}
    assert launch(cloud, 2, ON_DEMAND_A, request="r-2") == []
    listed = cloud.list_instances()
    assert {one.request_id for one in listed.values()} == {"r-2"}
    assert (len(listed), name in listed, cloud.api.stopped) == (2, True, {})


def test_spot_machines_and_those_of_an_older_launch_config_are_not_kept_for_later():
    world, cloud = ec2(keeps_stopped=True)
    launch(cloud, 1, SPOT_A)
    launch(cloud, 1, ON_DEMAND_A, request="r-2")
    spot, other = cloud.machines
    cloud.api.tags[other]["ray-launch-config"] = "older"
    cloud.list_instances()
    cloud.terminate("t-1", [spot, other])
    assert list(cloud.api.stopped) == [other]
    world.advance(70.0)
    cloud.list_instances()
    launch(cloud, 1, ON_DEMAND_A, request="r-3")
    assert list(cloud.api.stopped) == [other]


def test_a_stopped_machine_whose_start_has_no_answer_can_still_be_terminated(monkeypatch):
    """Found by seed 101: it stayed on the list of stopped machines, so that nothing ever ended it."""
    world, cloud = ec2(keeps_stopped=True)
    launch(cloud, 1, ON_DEMAND_A)
    (name,) = cloud.machines
    cloud.terminate("t-1", [name])
    world.advance(70.0)
    cloud.list_instances()
    start = cloud.api.start_instances

    def lost(**parameters):
        start(**parameters)
        raise CallBroken("simulated: the answer was lost")

    monkeypatch.setattr(cloud.api, "start_instances", lost)
    launch(cloud, 1, ON_DEMAND_A, request="r-2")
    world.advance(70.0)
    assert name in cloud.list_instances()
    cloud.terminate("t-2", [name])
    assert name in cloud.api.stopped


def test_a_request_repeated_by_a_new_process_starts_no_stopped_machine_in_place_of_what_it_launched():
    world, cloud = ec2(keeps_stopped=True)
    launch(cloud, 1, ON_DEMAND_A)
    launch(cloud, 1, ON_DEMAND_A, request="r-2")
    first, second = cloud.machines
    cloud.terminate("t-1", [first])
    cloud.machines[second].listed_from = world.time + 30.0  # no list shows it yet
    cloud.reconnect()
    assert launch(cloud, 1, ON_DEMAND_A, request="r-2") == []
    assert [m.cloud_id for m in cloud.alive()] == [second]

"""Lists that are late or lack machines, through the whole loop: nothing launched twice, nothing lost."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.small_cloud import EVERYTHING, SmallCloud
from tests.cluster.worlds import BUSY
from tests.support.builders import node_report

from muster.cluster.model import NodeStatus
from muster.cluster.plan import Reason
from muster.cluster.states import InstanceState as S

QUARTER_HOUR = 180  # in ticks of five seconds
HOURS = {"ticks": 130, "every_s": 30.0}


def in_states(cloud: SmallCloud) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in cloud.records():
        found[record.state.name] = found.get(record.state.name, 0) + 1
    return found


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("lists_after_s", [60.0, 300.0])
def test_nodes_that_join_before_their_machines_are_listed_are_bought_once(tags, lists_after_s):
    cloud = SmallCloud(10, most=40, tags=tags, lists_after_s=lists_after_s)
    cloud.run(60)
    cloud.run(**HOURS)
    assert len(cloud.sold) == 10
    assert in_states(cloud) == {"RAY_RUNNING": 10}
    assert {r.cloud_id for r in cloud.records()} == set(cloud.sold)
    assert [r for r in cloud.records() if r.provisional or r.missing_since is not None] == []
    assert cloud.stage.provider.called("terminate") == []


def test_a_list_later_than_a_request_may_take_buys_nothing_twice_once_the_nodes_are_there():
    cloud = SmallCloud(10, most=40, lists_after_s=300.0)
    wishes = cloud.stage.spec.answers["current"][0]
    hasty = replace(wishes, timeouts=replace(wishes.timeouts, request_s=30.0))
    cloud.stage.spec.answers["current"] = (hasty, "")
    cloud.run(QUARTER_HOUR)
    assert (len(cloud.sold), in_states(cloud)) == (10, {"RAY_RUNNING": 10})


def test_a_list_that_fails_in_two_of_three_ticks_buys_nothing_twice():
    cloud = SmallCloud(10, most=40, lists_after_s=60.0)
    looks, listing = [], cloud.stage.provider.answers["list_instances"]

    def flaky():
        looks.append(1)
        if len(looks) % 3:
            raise ConnectionError("throttled")
        return listing()

    cloud.stage.provider.answers["list_instances"] = flaky
    cloud.run(QUARTER_HOUR)
    assert (len(cloud.sold), in_states(cloud)) == (10, {"RAY_RUNNING": 10})


def test_a_list_that_never_shows_a_machine_ends_the_wait_and_not_the_node():
    """Somebody's own node of our type, joined while we wait: ours is launched, theirs is left alone."""
    cloud = SmallCloud(1, most=1, boots_s=100.0)
    cloud.lists_after_s = 50.0
    theirs = node_report("n-hand", node_type="cpu", cloud_id="i-hand", available=BUSY)
    cloud.run(4)
    cloud.extra_nodes = [theirs]
    cloud.run(4)
    (record,) = cloud.records()
    assert (record.state, record.cloud_id, record.provisional) == (S.RAY_RUNNING, "i-hand", True)
    cloud.run(QUARTER_HOUR)
    assert {r.cloud_id: r.state for r in cloud.records()} == {"m-1": S.RAY_RUNNING}
    assert (len(cloud.sold), cloud.stage.provider.called("terminate")) == (1, [])
    cloud.extra_nodes = [
        node_report("n-hand", node_type="cpu", cloud_id="i-hand", status=NodeStatus.IDLE, idle_s=9e9)
    ]
    cloud.run(**HOURS)
    calls = cloud.stage.drainer.called("drain") + cloud.stage.provider.called("terminate")
    assert [call for call in calls if "hand" in str(call)] == []


@pytest.mark.parametrize("wanted", [20, 50])
def test_one_list_that_shows_only_the_head_while_machines_boot_buys_nothing_twice(wanted):
    cloud = SmallCloud(wanted, boots_s=60.0 + wanted * 5.0)
    cloud.run(wanted + 2)
    assert in_states(cloud) == {"ALLOCATED": wanted}
    cloud.only_head = True
    cloud.run(1)
    cloud.only_head = False
    cloud.run(QUARTER_HOUR)
    assert (len(cloud.sold), cloud.peak, in_states(cloud)) == (wanted, wanted, {"RAY_RUNNING": wanted})


def test_a_list_that_shows_only_the_head_for_minutes_ends_no_machine_whose_node_lives():
    cloud = SmallCloud(5)
    cloud.run(20)
    cloud.only_head = True
    cloud.run(60)
    cloud.only_head = False
    cloud.run(5)
    assert (len(cloud.sold), in_states(cloud)) == (5, {"RAY_RUNNING": 5})


def test_a_booting_machine_that_is_gone_for_good_is_replaced_within_minutes():
    cloud = SmallCloud(1, most=1, boots_s=60.0)
    cloud.run(4)
    cloud.sold["m-1"].ended = True
    cloud.sold["m-1"].born = EVERYTHING  # no node ever comes from it
    cloud.run(40)
    assert [sold.cloud_id for sold in cloud.alive()] == ["m-2"]
    assert {r.cloud_id: r.state for r in cloud.records()} == {"m-2": S.RAY_RUNNING}


@pytest.mark.parametrize("omitted_for", [1, 4, 12])
def test_a_drained_machine_that_lists_omit_when_its_node_is_gone_is_terminated(omitted_for):
    cloud = SmallCloud(1)
    cloud.run(10)
    cloud.wanted = 0
    cloud.omitted = {"m-1"}
    cloud.sold["m-1"].node_dead = True
    refused: list[str] = []

    def lost(_request_id, cloud_ids):
        refused.extend(cloud_ids)

    works = cloud.stage.provider.answers["terminate"]
    cloud.stage.provider.answers["terminate"] = lost if omitted_for > 1 else works
    cloud.run(omitted_for)
    cloud.stage.provider.answers["terminate"] = works
    cloud.omitted = set()
    cloud.run(30)
    assert (cloud.alive(), cloud.records()) == ([], [])


def test_a_machine_whose_terminate_was_not_heard_is_not_gone_by_one_list_without_it():
    cloud = SmallCloud(1, most=1)
    cloud.run(10)
    works = cloud.stage.provider.answers["terminate"]

    def broken(_request_id, _cloud_ids):
        raise ConnectionError("reset by peer")

    cloud.stage.provider.answers["terminate"] = broken
    cloud.sold["m-1"].node_dead = True
    cloud.run(1)
    cloud.stage.provider.answers["terminate"], cloud.only_head = works, True
    cloud.run(1)
    assert cloud.sold["m-1"].ended
    assert [r.state for r in cloud.records() if r.cloud_id == "m-1"] == [S.TERMINATING]
    cloud.run(1)
    assert [r for r in cloud.records() if r.cloud_id == "m-1"] == []


@pytest.mark.parametrize("fields", [{"cloud_id": None}, {"cloud_id": "known-by-nobody"}])
def test_a_node_without_a_usable_cloud_id_is_found_by_its_ip(fields):
    cloud = SmallCloud(3)
    cloud.node_fields = lambda sold: {"ip": f"10.0.0.{sold.cloud_id[2:]}", **fields}
    cloud.run(**HOURS)
    assert (len(cloud.sold), in_states(cloud)) == (3, {"RAY_RUNNING": 3})
    assert {r.node_id for r in cloud.records()} == {"n-m-1", "n-m-2", "n-m-3"}


@pytest.mark.parametrize("ip", ["", "192.168.7.7"])
def test_a_machine_whose_node_cannot_be_matched_is_never_ended_and_it_is_reported_at_once(ip):
    cloud = SmallCloud(1)
    cloud.node_fields = lambda sold: {"cloud_id": None, "ip": ip}
    notes = cloud.run(8).plan.quarantined
    assert [(n.source, "RAY_CLOUD_INSTANCE_ID" in n.message) for n in notes] == [("node n-m-1", True)]
    verdicts = cloud.run(**HOURS).plan.verdicts
    assert Reason.STUCK in {v.reason for v in verdicts}
    assert (len(cloud.sold), in_states(cloud), len(cloud.alive())) == (1, {"ALLOCATED": 1}, 1)
    assert cloud.stage.provider.called("terminate") == []


def test_a_machine_whose_node_never_came_is_still_given_up():
    cloud = SmallCloud(1, most=1, boots_s=EVERYTHING)
    cloud.run(**HOURS)
    assert cloud.sold["m-1"].ended

"""Check limits through `pack`: outdated nodes, minimums and maximums."""

from __future__ import annotations

from copy import deepcopy

import pytest
from tests.mistakes.views import assert_line
from tests.support.builders import (
    amounts,
    demand,
    node_type,
    offer,
    pack_node,
    pack_nodes,
    pack_request,
)

from muster.cluster.model import FailureKind, NodeKind, StopCause
from muster.cluster.planner.limits import mean_utilization, resolve_limits
from muster.cluster.planner.pack import pack
from muster.cluster.states import InstanceState

ALLOCATED = InstanceState.ALLOCATED
CPU4 = {"CPU": 4}


def removed(packing):
    return [(removal.instance_id, removal.cause) for removal in packing.removals]


def test_sd_01_minimums_are_bought_for_an_empty_cluster():
    types = [node_type("a", min_nodes=2), node_type("b", min_nodes=1), node_type("c")]
    assert pack(pack_request(types)).launch == {"a": 2, "b": 1}


def test_sd_01_running_nodes_and_the_head_count_towards_minimums():
    a, b = node_type("a", min_nodes=2), node_type("b", min_nodes=1)
    nodes = (pack_node("i-head", a, kind=NodeKind.HEAD), pack_node("i-1", b))
    assert pack(pack_request([a, b], nodes=nodes)).launch == {"a": 1}


@pytest.mark.parametrize(
    "state",
    [
        InstanceState.QUEUED,
        InstanceState.REQUESTED,
        InstanceState.ALLOCATED,
        InstanceState.RAY_INSTALLING,
    ],
)
def test_sd_01_machines_on_their_way_count_towards_minimums(state):
    a = node_type("a", min_nodes=3)
    nodes = (pack_node("i-1", a, state=state), pack_node("i-2", "vanished", state=state))
    assert pack(pack_request([a], nodes=nodes)).launch == {"a": 2}


def test_no_more_are_bought_than_exist_and_those_beyond_stay_within_the_maximum():
    """A host that left the list of its rack serves until it is idle; nothing is launched in its place."""
    a = node_type("a", CPU4, min_nodes=4, max_nodes=8, existing=3)
    wanted = [demand(CPU4, 9)]
    assert pack(pack_request([a], demands=wanted)).launch == {"a": 3}
    packing = pack(pack_request([a], nodes=pack_nodes(4, a, available=amounts({})), demands=wanted))
    assert (packing.launch, packing.removals) == ({}, ())


def test_what_is_wished_for_beyond_what_exists_is_given_up_before_it_is_asked_for():
    a = node_type("a", CPU4, max_nodes=8, existing=1)
    wishes = pack_nodes(2, a, prefix="q-", state=InstanceState.QUEUED)
    packing = pack(pack_request([a], nodes=(pack_node("i-1", a), *wishes), demands=[demand(CPU4, 3)]))
    assert removed(packing) == [(f"q-{n}", StopCause.MAX_NODES_PER_TYPE) for n in (1, 2)]


def test_sd_02_the_head_is_never_the_victim_of_its_types_maximum():
    a = node_type("a", max_nodes=2)
    head = pack_node("i-head", a, kind=NodeKind.HEAD, idle_s=999.0)
    packing = pack(pack_request([a], nodes=(head, *pack_nodes(2, a))))
    assert removed(packing) == [("i-1", StopCause.MAX_NODES_PER_TYPE)]


def test_a_head_alone_above_its_types_maximum_stays():
    a = node_type("a", max_nodes=0)
    request = pack_request([a], nodes=(pack_node("i-head", a, kind=NodeKind.HEAD),), max_nodes=0)
    assert pack(request).removals == ()


@pytest.mark.parametrize(("maximum", "victims"), [(3, []), (2, ["i-pending"]), (1, ["i-pending", "i-free"])])
def test_sd_03_machines_on_their_way_go_first_then_the_least_used(maximum, victims):
    a = node_type("a", CPU4, max_nodes=maximum)
    nodes = (
        pack_node("i-half", a, available={"CPU": 2}),
        pack_node("i-free", a),
        pack_node("i-pending", a, state=ALLOCATED),
    )
    packing = pack(pack_request([a], nodes=nodes))
    assert removed(packing) == [(key, StopCause.MAX_NODES_PER_TYPE) for key in victims]


@pytest.mark.parametrize(("maximum", "victims"), [(2, []), (0, ["i-1", "i-2"])])
def test_sd_04_a_maximum_of_zero_removes_all(maximum, victims):
    a = node_type("a", max_nodes=maximum)
    packing = pack(pack_request([a], nodes=pack_nodes(2, a, state=ALLOCATED)))
    assert removed(packing) == [(key, StopCause.MAX_NODES_PER_TYPE) for key in victims]
    assert packing.launch == {}


@pytest.mark.parametrize(
    ("maximum", "victims"),
    [
        (None, []),
        (4, []),
        (3, ["i-pending"]),
        (2, ["i-pending", "i-idle"]),
        (1, ["i-pending", "i-idle", "i-less"]),
        (0, ["i-pending", "i-idle", "i-less", "i-more"]),  # 0 is a limit, None is none
    ],
)
def test_sd_05_the_cluster_maximum_takes_pending_then_idle_then_less_used_nodes(maximum, victims):
    a, b = node_type("a", CPU4), node_type("b", CPU4)
    nodes = (
        pack_node("i-more", a, available={"CPU": 1}),
        pack_node("i-less", b, available={"CPU": 3}),
        pack_node("i-idle", a, idle_s=10.0),
        pack_node("i-pending", b, state=ALLOCATED),
    )
    packing = pack(pack_request([a, b], nodes=nodes, max_nodes=maximum))
    assert removed(packing) == [(key, StopCause.MAX_NODES) for key in victims]


def test_sd_05_both_maximums_together_name_their_own_causes():
    a, b = node_type("a", max_nodes=0), node_type("b")
    nodes = (pack_node("i-a", a), pack_node("i-b1", b, idle_s=5.0), pack_node("i-b2", b))
    packing = pack(pack_request([a, b], nodes=nodes, max_nodes=1))
    assert removed(packing) == [("i-a", StopCause.MAX_NODES_PER_TYPE), ("i-b1", StopCause.MAX_NODES)]


def test_a_requested_machine_may_be_removed_by_a_limit():
    """The reconciler marks it cancelled; it goes before anything that runs."""
    a = node_type("a", max_nodes=1)
    nodes = (pack_node("i-1", a, idle_s=50.0), pack_node("i-2", a, state=InstanceState.REQUESTED))
    assert removed(pack(pack_request([a], nodes=nodes))) == [("i-2", StopCause.MAX_NODES_PER_TYPE)]


def test_sd_13_a_changed_type_replaces_its_nodes():
    a = node_type("a", launch_hash="new", min_nodes=2)
    nodes = (pack_node("i-old", a, launch_hash="old"), pack_node("i-new", a))
    packing = pack(pack_request([a], nodes=nodes, check_launch_hash=True))
    assert removed(packing) == [("i-old", StopCause.OUTDATED)]
    assert packing.launch == {"a": 1}


def test_sd_13_the_head_is_kept_when_outdated():
    a = node_type("a", launch_hash="new")
    nodes = (pack_node("i-head", a, launch_hash="old", kind=NodeKind.HEAD),)
    assert pack(pack_request([a], nodes=nodes, check_launch_hash=True)).removals == ()


def test_sd_13_nothing_is_outdated_when_the_check_is_off():
    a = node_type("a", launch_hash="new")
    nodes = (pack_node("i-old", a, launch_hash="old"),)
    assert pack(pack_request([a], nodes=nodes)).removals == ()


@pytest.mark.parametrize(("of_type", "of_node"), [("", "old"), ("new", "")])
def test_a_missing_hash_makes_nothing_outdated(of_type, of_node):
    a = node_type("a", launch_hash=of_type)
    nodes = (pack_node("i-1", a, launch_hash=of_node),)
    assert pack(pack_request([a], nodes=nodes, check_launch_hash=True)).removals == ()


def test_w2_minimums_beyond_the_cluster_maximum_are_bought_up_to_it():
    a, b = node_type("a", min_nodes=3), node_type("b", min_nodes=3)
    nodes = (pack_node("i-head", "b", kind=NodeKind.HEAD), pack_node("i-1", a))
    packing = pack(pack_request([a, b], nodes=nodes, max_nodes=5))
    assert packing.launch == {"a": 2, "b": 1}
    assert packing.removals == ()


def test_w2_a_full_cluster_keeps_its_machines_on_their_way_when_a_minimum_is_raised():
    a, b = node_type("a"), node_type("b", min_nodes=5)
    request = pack_request([a, b], nodes=pack_nodes(2, a, state=ALLOCATED), max_nodes=2)
    packing = pack(request)
    assert (packing.launch, packing.removals) == ({}, ())


def test_w2_a_minimum_above_its_types_maximum_is_bought_up_to_it():
    assert pack(pack_request([node_type("a", min_nodes=5, max_nodes=2)])).launch == {"a": 2}


def test_w3_machines_bought_for_a_minimum_are_distinct_nodes():
    a = node_type("a", CPU4, min_nodes=3, labels={"zone": "z"})
    nodes = resolve_limits(pack_request([a])).nodes
    assert len({id(node) for node in nodes}) == 3
    assert nodes == (pack_node("", a, state=InstanceState.QUEUED),) * 3
    # 3 x 4 CPUs hold exactly 12 requests; one object three times over would hold 4.
    packing = pack(pack_request([a], demands=(demand(count=12),), max_nodes=3))
    assert packing.launch == {"a": 3}
    assert (packing.demands[0].launched, packing.demands[0].unplaced) == ({"a": 12}, 0)


@pytest.mark.parametrize(
    ("is_checked", "cause"), [(False, StopCause.MAX_NODES_PER_TYPE), (True, StopCause.OUTDATED)]
)
def test_w4_nodes_of_a_type_that_left_the_config_go_when_nothing_runs_on_them(is_checked, cause):
    a = node_type("a")
    nodes = (
        pack_node("i-head", "gone", kind=NodeKind.HEAD),
        pack_node("i-1", "gone", idle_s=1.0),
        pack_node("i-2", "gone", state=ALLOCATED),
        pack_node("i-3", a),
        pack_node("i-4", "gone"),
    )
    packing = pack(pack_request([a], nodes=nodes, check_launch_hash=is_checked))
    assert removed(packing) == [("i-1", StopCause.IDLE), ("i-2", cause)]


def test_nodes_of_a_type_that_left_the_config_hold_no_demand_and_take_room_of_the_cluster():
    new = node_type("new", {"CPU": 1}, max_nodes=4)
    nodes = (pack_node("i-1", "old"), pack_node("i-2", "old", idle_s=5.0), pack_node("i-3", new))
    packing = pack(pack_request([new], nodes=nodes, max_nodes=4, demands=(demand(count=4),)))
    assert packing.launch == {"new": 1}
    assert (dict(packing.demands[0].placed), packing.demands[0].unplaced) == ({"i-3": 1}, 2)


def test_w20_nodes_that_must_go_hold_no_demand_and_take_no_room():
    a = node_type("a", max_nodes=2, launch_hash="new")
    nodes = (pack_node("i-old", a, launch_hash="old"), pack_node("i-new", a))
    request = pack_request([a], nodes=nodes, check_launch_hash=True, max_nodes=2, demands=(demand(count=3),))
    packing = pack(request)
    assert removed(packing) == [("i-old", StopCause.OUTDATED)]
    assert packing.launch == {"a": 1}
    outcome = packing.demands[0]
    assert (outcome.placed, outcome.launched, outcome.unplaced) == ({"i-new": 1}, {"a": 1}, 1)


def test_w20_a_node_over_its_types_maximum_leaves_room_for_another_type():
    a, b = node_type("a", max_nodes=1), node_type("b", {"GPU": 1})
    request = pack_request([a, b], nodes=pack_nodes(2, a), max_nodes=2, demands=(demand({"GPU": 1}),))
    packing = pack(request)
    assert removed(packing) == [("i-1", StopCause.MAX_NODES_PER_TYPE)]
    assert packing.launch == {"b": 1}


def test_w29_a_cluster_maximum_of_zero_buys_nothing():
    a = node_type("a", min_nodes=1)
    packing = pack(pack_request([a], max_nodes=0, demands=(demand(),)))
    assert (packing.launch, packing.demands[0].unplaced) == ({}, 1)


def test_w21_nodes_on_their_way_out_take_room_but_hold_nothing():
    a = node_type("a", max_nodes=3)
    packing = pack(pack_request([a], leaving={"a": 2}, demands=(demand(count=2),)))
    assert packing.launch == {"a": 1}
    assert packing.demands[0].unplaced == 1
    assert packing.offers[0].room == 1


def test_nodes_on_their_way_out_take_room_in_the_cluster_too_but_push_no_node_out():
    a, b = node_type("a", min_nodes=4), node_type("b")
    packing = pack(pack_request([a, b], nodes=pack_nodes(2, a), leaving={"b": 3, "gone": 1}, max_nodes=5))
    assert (packing.room, packing.launch, packing.removals) == (0, {}, ())


def test_a_type_that_is_backed_off_gets_no_machines_for_its_minimum():
    a = offer(node_type("a", min_nodes=2), blocked_kind=FailureKind.CAPACITY, blocked_until=2_000.0)
    packing = pack(pack_request([a, node_type("b", min_nodes=1)]))
    assert packing.launch == {"b": 1}
    assert [each.room for each in packing.offers] == [0, 10]


def test_rooms_are_those_before_anything_was_bought():
    a = node_type("a", min_nodes=2, max_nodes=4)
    packing = pack(pack_request([a], nodes=pack_nodes(1, a), max_nodes=10, demands=(demand(count=4),)))
    assert packing.launch == {"a": 3}
    assert (packing.offers[0].room, packing.room) == (3, 9)


def test_rooms_are_counted_after_the_cluster_shrank():
    a = node_type("a", max_nodes=4)
    packing = pack(pack_request([a], nodes=pack_nodes(3, a), max_nodes=1))
    assert (packing.offers[0].room, packing.room) == (3, 0)


def test_the_list_is_grouped_by_type_in_order_of_appearance_with_new_machines_in_front():
    a, b, c = node_type("a"), node_type("b", min_nodes=2), node_type("c", min_nodes=1)
    nodes = (pack_node("i-1", a), pack_node("i-2", b), pack_node("i-3", a))
    listed = resolve_limits(pack_request([a, b, c], nodes=nodes)).nodes
    assert [(node.node_type, node.key) for node in listed] == [
        ("b", ""),
        ("b", "i-2"),
        ("c", ""),
        ("a", "i-1"),
        ("a", "i-3"),
    ]


def test_only_types_that_lost_a_node_are_reordered():
    a, b = node_type("a", CPU4, max_nodes=3), node_type("b", CPU4)
    nodes = (
        pack_node("i-a-head", a, kind=NodeKind.HEAD),
        pack_node("i-b-used", b, available={"CPU": 1}),
        pack_node("i-a-used", a, available={"CPU": 1}),
        pack_node("i-b-free", b),
        pack_node("i-a-free", a),
        pack_node("i-a-idle", a, idle_s=9.0),
    )
    listed = resolve_limits(pack_request([a, b], nodes=nodes)).nodes
    assert [node.key for node in listed] == ["i-a-free", "i-a-used", "i-a-head", "i-b-used", "i-b-free"]


def test_after_the_cluster_shrank_the_list_is_in_victim_order_with_the_head_last():
    a, b = node_type("a", CPU4), node_type("b", CPU4)
    nodes = (
        pack_node("i-head", a, kind=NodeKind.HEAD),
        pack_node("i-used", a, available={"CPU": 1}),
        pack_node("i-pending", b, state=ALLOCATED),
        pack_node("i-free", b),
    )
    listed = resolve_limits(pack_request([a, b], nodes=nodes, max_nodes=3)).nodes
    assert [node.key for node in listed] == ["i-free", "i-used", "i-head"]


@pytest.mark.parametrize(
    ("total", "available", "expected"),
    [
        ({"CPU": 4}, {"CPU": 1}, 0.75),
        ({"CPU": 4, "GPU": 2}, {"CPU": 4, "GPU": 1}, 0.25),
        ({"CPU": 4, "GPU": 2}, {"CPU": 4}, 0.5),  # not reported as free: fully used
        ({"CPU": 4, "GPU": 0}, {"CPU": 2, "GPU": 0}, 0.5),  # what it does not have does not count
        ({}, {}, 0.0),
    ],
)
def test_mean_utilization(total, available, expected):
    assert mean_utilization(pack_node(total=total, available=available)) == expected


def test_removals_say_why_in_words():
    a = node_type("a", max_nodes=1)
    nodes = (*pack_nodes(2, a), pack_node("i-9", "gone", state=ALLOCATED))
    unknown_type, above_limit = pack(pack_request([a], nodes=nodes)).removals
    assert_line("cluster", "node type not in the file", unknown_type.details)
    assert_line("cluster", "type above its limit", above_limit.details)


def test_the_request_is_not_changed():
    a = node_type("a", max_nodes=1, min_nodes=1)
    request = pack_request(
        [a],
        nodes=pack_nodes(3, a),
        max_nodes=2,
        leaving={"a": 1},
        pending_idle={"a": (1.0,)},
        pending_idle_s=5.0,
        demands=(demand(count=2),),
    )
    before = deepcopy(request)
    pack(request)
    assert request == before

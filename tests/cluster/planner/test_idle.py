"""Check idle nodes and machines on their way that nothing waits for, through `pack`."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, demand, gang, node_type, pack_node, pack_nodes, pack_request

from muster.cluster.model import Constraint, NodeKind, StopCause
from muster.cluster.planner.pack import pack
from muster.cluster.states import InstanceState

QUEUED, REQUESTED = InstanceState.QUEUED, InstanceState.REQUESTED
ALLOCATED, INSTALLING = InstanceState.ALLOCATED, InstanceState.RAY_INSTALLING
ONE_CPU_CONSTRAINT = (Constraint(demands=(demand(),)),)


def removed(packing):
    return [removal.instance_id for removal in packing.removals]


@pytest.mark.parametrize(
    ("timeout_s", "is_bound", "is_asked", "is_ganged"),
    list(product([1.0, 2.0, 10.0], [False, True], [False, True], [False, True])),
)
def test_sd_14_idle_nodes_go_when_the_timeout_passed_and_nothing_needs_them(
    timeout_s, is_bound, is_asked, is_ganged
):
    a = node_type("a", {"CPU": 3})
    request = pack_request(
        [a],
        nodes=(pack_node("i-1", a, idle_s=5.0),),
        idle_timeout_s=timeout_s,
        constraints=ONE_CPU_CONSTRAINT if is_bound else (),
        demands=(demand(),) if is_asked else (),
        gangs=(gang(),) if is_ganged else (),
    )
    packing = pack(request)
    is_needed = is_bound or is_asked or is_ganged
    expected = ["i-1"] if timeout_s < 5 and not is_needed else []
    assert removed(packing) == expected
    assert packing.needed == (frozenset({"i-1"}) if is_needed else frozenset())
    assert packing.launch == {}


def test_sd_14_the_head_stays_however_idle():
    a = node_type("a")
    head = pack_node("i-head", a, kind=NodeKind.HEAD, idle_s=999.0)
    assert pack(pack_request([a], nodes=(head,), idle_timeout_s=1.0)).removals == ()


def test_the_idle_time_must_be_longer_than_the_timeout():
    a = node_type("a")
    nodes = (pack_node("i-1", a, idle_s=5.0), pack_node("i-2", a, idle_s=5.001))
    packing = pack(pack_request([a], nodes=nodes, idle_timeout_s=5.0))
    (removal,) = packing.removals
    assert (removal.instance_id, removal.cause, removal.idle_s) == ("i-2", StopCause.IDLE, 5.001)
    assert_line("cluster", "idle", removal.details)


def test_without_a_timeout_idle_nodes_stay():
    a = node_type("a")
    assert pack(pack_request([a], nodes=pack_nodes(2, a, idle_s=1e9))).removals == ()


def test_a_negative_timeout_never_removes_a_busy_node():
    a = node_type("a")
    nodes = (pack_node("i-busy", a, idle_s=0.0), pack_node("i-idle", a, idle_s=0.1))
    assert removed(pack(pack_request([a], nodes=nodes, idle_timeout_s=-1.0))) == ["i-idle"]


@pytest.mark.parametrize(("minimum", "victims"), [(0, ["i-1"]), (1, [])])
def test_sd_15_a_minimum_keeps_an_idle_node(minimum, victims):
    a = node_type("a", min_nodes=minimum)
    request = pack_request([a], nodes=(pack_node("i-1", a, idle_s=9.0),), idle_timeout_s=1.0)
    assert removed(pack(request)) == victims


def test_sd_16_the_types_timeout_overrides_the_clusters():
    fast, slow, plain = (
        node_type("fast", idle_timeout_s=1.0),
        node_type("slow", idle_timeout_s=100.0),
        node_type("plain"),
    )
    nodes = tuple(pack_node(f"i-{each.name}", each, idle_s=5.0) for each in (fast, slow, plain))
    types = [fast, slow, plain]
    assert removed(pack(pack_request(types, nodes=nodes, idle_timeout_s=4.0))) == ["i-fast", "i-plain"]
    assert removed(pack(pack_request(types, nodes=nodes, idle_timeout_s=None))) == ["i-fast"]


def test_a_constraint_keeps_exactly_the_nodes_its_bundles_were_put_on():
    a = node_type("a", {"CPU": 2})
    constraint = Constraint(demands=(demand(count=4),))
    request = pack_request(
        [a], nodes=pack_nodes(5, a, idle_s=9.0), idle_timeout_s=1.0, constraints=(constraint,)
    )
    packing = pack(request)
    assert len(packing.needed) == 2
    assert len(packing.removals) == 3
    assert packing.needed.isdisjoint(removed(packing))


def test_pi_1_a_machine_on_its_way_that_is_unneeded_too_long_goes():
    a = node_type("a")
    request = pack_request(
        [a],
        nodes=(pack_node("i-1", a, state=ALLOCATED),),
        pending_idle_s=60.0,
        pending_idle={"a": (NOW - 61,)},
    )
    packing = pack(request)
    (removal,) = packing.removals
    assert (removal.instance_id, removal.cause, removal.idle_s) == ("i-1", StopCause.IDLE, 61.0)
    assert_line("cluster", "idle on its way", removal.details)
    assert packing.pending_idle == {}


def test_pi_1_the_wait_must_be_longer_than_the_timeout():
    a = node_type("a")
    request = pack_request(
        [a],
        nodes=(pack_node("i-1", a, state=ALLOCATED),),
        pending_idle_s=60.0,
        pending_idle={"a": (NOW - 60,)},
    )
    packing = pack(request)
    assert (packing.removals, packing.pending_idle) == ((), {"a": (NOW - 60,)})


def test_pi_1_a_requested_machine_is_never_taken_back_as_idle():
    a = node_type("a")
    request = pack_request(
        [a],
        nodes=(pack_node("i-1", a, state=REQUESTED, idle_s=500.0),),
        pending_idle_s=60.0,
        pending_idle={"a": (NOW - 500,)},
        idle_timeout_s=1.0,
    )
    packing = pack(request)
    assert (packing.removals, packing.pending_idle) == ((), {"a": (NOW - 500,)})


@pytest.mark.parametrize("timeout_s", [None, -1.0, 600.0])
@pytest.mark.parametrize(("state", "victims"), [(QUEUED, ["i-1"]), (REQUESTED, []), (ALLOCATED, [])])
def test_what_was_not_launched_yet_is_withdrawn_once_nothing_has_needed_it_for_a_while(
    timeout_s, state, victims
):
    a = node_type("a")
    nodes = (pack_node("i-1", a, state=state),)
    request = pack_request([a], nodes=nodes, pending_idle_s=timeout_s, pending_idle={"a": (NOW - 31,)})
    assert removed(pack(request)) == victims
    assert removed(pack(replace(request, demands=(demand(),)))) == []
    assert removed(pack(replace(request, pending_idle={"a": (NOW - 29,)}))) == []


@pytest.mark.parametrize("timeout_s", [None, -1.0])
def test_pi_1_without_a_timeout_a_machine_stays(timeout_s):
    a = node_type("a")
    request = pack_request(
        [a],
        nodes=(pack_node("i-1", a, state=ALLOCATED),),
        pending_idle_s=timeout_s,
        pending_idle={"a": (NOW - 500,)},
        idle_timeout_s=1.0,
    )
    packing = pack(request)
    assert (packing.removals, packing.pending_idle) == ((), {"a": (NOW - 500,)})


def test_pi_1_a_machine_that_is_needed_starts_anew():
    a = node_type("a")
    request = pack_request(
        [a],
        nodes=(pack_node("i-1", a, state=ALLOCATED),),
        pending_idle_s=60.0,
        pending_idle={"a": (NOW - 500,)},
        demands=(demand(),),
    )
    packing = pack(request)
    assert (packing.removals, packing.pending_idle, packing.needed) == ((), {}, frozenset({"i-1"}))


def test_pi_1_a_minimum_keeps_machines_on_their_way():
    a = node_type("a", min_nodes=1)
    request = pack_request(
        [a],
        nodes=pack_nodes(2, a, state=ALLOCATED),
        pending_idle_s=60.0,
        pending_idle={"a": (NOW - 90, NOW - 80)},
    )
    packing = pack(request)
    assert removed(packing) == ["i-1"]
    assert packing.pending_idle == {"a": (NOW - 80,)}


def test_pi_1_a_head_on_its_way_is_not_tracked():
    a = node_type("a")
    request = pack_request(
        [a],
        nodes=(pack_node("i-head", a, state=ALLOCATED, kind=NodeKind.HEAD),),
        pending_idle_s=60.0,
        pending_idle={"a": (NOW - 500,)},
    )
    packing = pack(request)
    assert (packing.removals, packing.pending_idle) == ((), {})


def test_a_running_node_that_goes_takes_no_time_from_those_on_their_way():
    a = node_type("a")
    nodes = (pack_node("i-runs", a, idle_s=9.0), pack_node("i-comes", a, state=ALLOCATED))
    request = pack_request(
        [a], nodes=nodes, idle_timeout_s=5.0, pending_idle_s=60.0, pending_idle={"a": (NOW - 10,)}
    )
    packing = pack(request)
    assert (removed(packing), packing.pending_idle) == (["i-runs"], {"a": (NOW - 10,)})


def test_machines_bought_for_a_minimum_count_towards_it_once():
    a = node_type("a", min_nodes=3)
    packing = pack(pack_request([a], nodes=pack_nodes(1, a, idle_s=9.0), idle_timeout_s=1.0))
    assert (packing.launch, packing.removals) == ({"a": 2}, ())


def test_pi_1_new_machines_of_this_pass_are_not_tracked():
    packing = pack(pack_request([node_type("a", min_nodes=2)], pending_idle_s=60.0))
    assert (packing.launch, packing.pending_idle) == ({"a": 2}, {})


def test_times_are_kept_for_as_many_machines_as_are_unneeded():
    a, b = node_type("a"), node_type("b")
    nodes = (*pack_nodes(3, a, state=QUEUED), pack_node("i-4", b, state=ALLOCATED))
    request = pack_request(
        [a, b],
        nodes=nodes,
        pending_idle_s=60.0,
        pending_idle={"a": (NOW - 9,), "b": (NOW - 8, NOW - 7), "gone": (NOW - 6,)},
    )
    assert pack(request).pending_idle == {"a": (NOW - 9, NOW, NOW), "b": (NOW - 8,)}


def test_the_oldest_times_go_to_the_least_advanced_machines():
    a = node_type("a")
    nodes = (
        pack_node("i-installing", a, state=INSTALLING),
        pack_node("i-allocated", a, state=ALLOCATED),
        pack_node("i-queued", a, state=QUEUED),
    )
    request = pack_request(
        [a], nodes=nodes, pending_idle_s=60.0, pending_idle={"a": (NOW - 90, NOW - 70, NOW - 50)}
    )
    packing = pack(request)
    assert [(r.instance_id, r.idle_s) for r in packing.removals] == [
        ("i-queued", 90.0),
        ("i-allocated", 70.0),
    ]
    assert packing.pending_idle == {"a": (NOW - 50,)}


def test_pi_2_the_freshest_nodes_are_kept_for_the_minimum():
    a = node_type("a", min_nodes=2)
    idle = {"i-1": 30.0, "i-2": 50.0, "i-3": 10.0, "i-4": 40.0}
    nodes = tuple(pack_node(key, a, idle_s=idle_s) for key, idle_s in idle.items())
    assert removed(pack(pack_request([a], nodes=nodes, idle_timeout_s=5.0))) == ["i-2", "i-4"]


def test_pi_2_machines_on_their_way_go_before_running_ones():
    a = node_type("a", min_nodes=1)
    nodes = (pack_node("i-runs", a, idle_s=500.0), pack_node("i-comes", a, state=ALLOCATED))
    request = pack_request(
        [a], nodes=nodes, idle_timeout_s=5.0, pending_idle_s=5.0, pending_idle={"a": (NOW - 10,)}
    )
    assert removed(pack(request)) == ["i-comes"]


def test_machines_being_bought_count_towards_the_minimum():
    a = node_type("a", min_nodes=1)
    nodes = (pack_node("i-1", a, idle_s=9.0, total={"CPU": 0.5}),)
    packing = pack(pack_request([a], nodes=nodes, idle_timeout_s=1.0, demands=(demand(),)))
    assert (packing.launch, removed(packing)) == ({"a": 1}, ["i-1"])

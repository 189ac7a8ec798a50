"""Worlds whose ids, tags, lists and reports contradict each other; each was met by a user."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    HEAD_NODE,
    S,
    after,
    created,
    following,
    machine,
    node,
    past,
    record,
    sources,
    spec,
    tick,
    trail,
    unreported,
    world,
)
from tests.support.builders import NOW, demand, node_type

from muster.cluster.budget_policy import Budget
from muster.cluster.model import LaunchLimits, NodeKind, NodeStatus, Notice, NoticeKind, StopCause
from muster.cluster.plan import Launch
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, ProviderTraits, UnplacedNode

OLD_NODE = UnplacedNode(since=NOW - 500.0, node_type="cpu")


def at(name: str, **changes):
    """The machine and the node of a record, with its own address."""
    ip = f"10.0.0.{ord(name) - 96}"
    return machine(name, internal_ip=ip), node(name, ip=ip, **changes)


# A report that lacks nodes.


def test_one_report_without_half_of_the_nodes_ends_none_of_their_machines():
    seen = world([record(name, S.RAY_RUNNING) for name in "abcd"], nodes=[node("a"), node("c")])
    states, plan = tick(seen)
    assert (set(states.values()), plan.actions) == ({"RAY_RUNNING"}, ())
    back = following(seen, plan, runtime=replace(seen.runtime, nodes=(HEAD_NODE, *map(node, "abcd"))))
    assert reconcile(back).memory.unreported == {}


def test_the_grace_of_a_node_does_not_pass_while_nobody_looks():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[])
    _, plan = tick(seen)
    later = following(seen, plan, seconds=86_400.0)
    states, plan = tick(later)
    assert states == {"a": "RAY_RUNNING"}
    assert tick(following(later, plan))[0] == {"a": "TERMINATING"}


@pytest.mark.parametrize(("shown", "expected"), [((), "RAY_STOPPED"), (("a",), "TERMINATING")])
def test_the_next_report_after_a_death_ends_no_machine_if_it_lacks_the_dead_node(shown, expected):
    """World 470000148 of strangers: it lacked the node that had come, too, which worked by then."""
    dead = node("a", NodeStatus.DEAD)
    seen = world([record("a", S.RAY_RUNNING)], nodes=[dead])
    states, plan = tick(seen)
    assert states == {"a": "RAY_STOPPED"}
    nodes = HEAD_NODE, *(dead for _ in shown)
    seen = following(seen, plan, seconds=15.0, runtime=replace(seen.runtime, nodes=nodes))
    states, plan = tick(seen)
    assert states == {"a": expected}
    assert tick(following(seen, plan, seconds=16.0))[0] == {"a": "TERMINATING"}


def test_a_drained_node_that_two_reports_lack_is_gone():
    seen = world([record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)], nodes=[])
    states, plan = tick(seen)
    assert states == {"a": "RAY_STOP_REQUESTED"}
    assert tick(following(seen, plan))[0] == {"a": "TERMINATING"}


def test_one_report_without_the_node_of_a_machine_that_no_list_has_shown_ends_nothing():
    early = record(
        "a",
        S.RAY_RUNNING,
        provisional=True,
        launch_request_id="r-1",
        missing_since=NOW - 100.0,
        since=NOW - 100.0,
    )
    seen = world([early], machines=[], nodes=[], memory=Memory(listed_at=NOW - 5.0))
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}


def test_reports_that_lack_now_these_nodes_and_now_those_begin_the_grace_again():
    seen = world([record(name, S.RAY_RUNNING) for name in "ab"], nodes=[node("b")])
    half = replace(seen.runtime, nodes=(HEAD_NODE,))
    later = following(seen, tick(seen)[1], seconds=20.0, runtime=half)
    other = replace(seen.runtime, nodes=(HEAD_NODE, node("b")))
    last = following(later, tick(later)[1], seconds=20.0, runtime=other)
    assert tick(last)[0] == {"a": "RAY_RUNNING", "b": "RAY_RUNNING"}


def test_reports_that_flicker_hold_no_machine_for_longer_than_five_minutes():
    seen = world([record(name, S.RAY_RUNNING) for name in "ab"], nodes=[])
    for number in range(17):
        states, plan = tick(seen)
        assert states == {"a": "RAY_RUNNING", "b": "RAY_RUNNING"}
        shown = () if number % 2 else (node("b"),)
        seen = following(seen, plan, seconds=20.0, runtime=replace(seen.runtime, nodes=(HEAD_NODE, *shown)))
    assert tick(seen)[0] == {"a": "TERMINATING", "b": "RAY_RUNNING"}


@pytest.mark.parametrize(("shown", "end"), [("", "RAY_STOPPED"), ("b", "TERMINATING")])
def test_a_report_that_lacks_a_node_ends_no_machine_whose_node_it_shows_dead(shown, end):
    seen = world(
        [record(name, S.RAY_RUNNING) for name in "ab"],
        nodes=[node("a", NodeStatus.DEAD), *map(node, shown)],
    )
    states, plan = tick(seen)
    assert states == {"a": "RAY_STOPPED", "b": "RAY_RUNNING"}  # the next report may show another node on it
    assert tick(following(seen, plan))[0] == {"a": end, "b": "RAY_RUNNING"}


# A head that was replaced.


def test_lost_workers_are_noticed_although_the_old_head_is_still_listed():
    new_head = machine("new", kind=NodeKind.HEAD, node_type="head")
    node_of_it = node("new", is_head=True, node_type="head")
    seen = world(
        [record("a", S.RAY_RUNNING)],
        machines=[machine("a"), new_head],
        nodes=[],
        memory=unreported("a", "head"),
    )
    seen = replace(seen, runtime=replace(seen.runtime, nodes=(node_of_it,)))
    plan = reconcile(seen)
    assert trail(seen, plan, "a") == ["RAY_STOPPED", "TERMINATING"]
    assert trail(seen, plan, "head") == ["RAY_STOPPED"]
    assert [action.cloud_ids for action in plan.actions] == [("c-a",)]


# An unmatched node and the machines that it may be on.


@pytest.mark.parametrize(("since", "end"), [(NOW - 500.0, "TERMINATING"), (NOW - 5.0, "RAY_STOPPED")])
def test_a_node_that_lived_next_to_a_machines_own_node_does_not_hold_that_machine(since, end):
    memory = Memory(unplaced_nodes={"n-x": replace(OLD_NODE, since=since)})
    lost = [record(name, S.RAY_RUNNING) for name in "abc"]
    dead = [node(name, NodeStatus.DEAD) for name in "abc"]
    seen = world(lost, nodes=[*dead, node("x", cloud_id=None)], memory=memory)
    assert set(tick(following(seen, tick(seen)[1]))[0].values()) == {end}


def test_the_end_of_another_machines_node_proves_nothing_about_an_unmatched_one():
    """Seed 350105 of EC2: an image of a running node had named the machine, and died."""
    clone = node("a", NodeStatus.DEAD, ip="10.0.0.9")
    memory = Memory(unplaced_nodes={"n-x": OLD_NODE})
    seen = world(
        [record("a", S.RAY_RUNNING)],
        machines=[at("a")[0]],
        nodes=[clone, node("x", cloud_id=None)],
        memory=memory,
    )
    assert tick(seen)[0] == {"a": "RAY_STOPPED"}


def test_a_drain_of_another_machines_node_does_not_end_the_machine_that_it_names():
    """Seed 8101757 of EC2: the node with another address was idle, an unmatched one was not."""
    drained = record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)
    nodes = [node("a", NodeStatus.DEAD, ip="10.0.0.9"), node("x", cloud_id=None)]
    memory = Memory(unplaced_nodes={"n-x": OLD_NODE})
    seen = world([drained], machines=[at("a")[0]], nodes=nodes, memory=memory)
    assert tick(seen)[0] == {"a": "RAY_STOPPED"}
    own = replace(seen.runtime, nodes=(HEAD_NODE, replace(nodes[0], ip="10.0.0.1"), nodes[1]))
    assert tick(replace(seen, runtime=own))[0] == {"a": "TERMINATING"}


@pytest.mark.parametrize(("requested_at", "end"), [(NOW - 400.0, "TERMINATING"), (NOW - 600.0, "ALLOCATED")])
def test_a_node_that_is_older_than_the_request_of_a_machine_does_not_hold_it(requested_at, end):
    booting = record(
        "a",
        S.ALLOCATED,
        launch_request_id="r-1",
        requested_at=requested_at,
        cancelled=True,
        history=past((S.QUEUED, 1), (S.REQUESTED, NOW - 350.0), (S.ALLOCATED, NOW - 300.0)),
    )
    seen = world(
        [booting],
        machines=[machine("a", request_id="r-1")],
        nodes=[node("x", cloud_id=None)],
        memory=Memory(unplaced_nodes={"n-x": OLD_NODE}),
    )
    assert tick(seen)[0] == {"a": end}


@pytest.mark.parametrize(("state", "limit_s"), [(S.ALLOCATED, 3600.0), (S.RAY_INSTALLING, 1800.0)])
def test_a_machine_that_an_unmatched_node_holds_has_room_until_its_time_is_over(state, limit_s):
    for waited_s, launched in ((limit_s - 1.0, 0), (limit_s + 1.0, 1)):
        held = record("a", state, since=NOW - waited_s)
        plan = tick(world([held], nodes=[node("x", cloud_id=None)], demands=[demand()]))[1]
        assert sum(isinstance(action, Launch) for action in plan.actions) == launched


def test_a_lowered_limit_cancels_a_launch_before_a_machine_that_an_unmatched_node_holds():
    held, asked = record("a", S.ALLOCATED), record("b", S.REQUESTED)
    one = spec(node_type("cpu", {"CPU": 1}, max_nodes=1))
    plan = tick(world([held, asked], nodes=[node("x", cloud_id=None)], spec=one))[1]
    assert {r.instance_id: r.cancelled for r in plan.writes} == {"b": True}


def test_an_unmatched_node_that_one_report_lacks_still_holds_its_machine():
    booting = record("a", S.ALLOCATED, cancelled=True)
    seen = world([booting], nodes=[node("x", cloud_id=None)])
    _, plan = tick(seen)
    blind = following(seen, plan, runtime=replace(seen.runtime, nodes=(HEAD_NODE,)))
    states, plan = tick(blind)
    assert states == {"a": "ALLOCATED"}
    assert tick(following(blind, plan, seconds=31.0))[0] == {"a": "ALLOCATED"}
    assert tick(following(blind, plan, seconds=62.0))[0] != {"a": "TERMINATED"}


def test_a_cancelled_machine_that_an_unmatched_node_holds_leaves_no_room_for_another():
    held = record("a", S.ALLOCATED, cancelled=True, stop_cause=StopCause.IDLE)
    seen = world([held], nodes=[node("x", cloud_id=None)], demands=[demand()], spec=spec(max_nodes=2))
    assert created(seen, reconcile(seen)) == []


def test_a_node_that_is_back_after_maintenance_without_its_id_keeps_its_machine():
    """Seed 3223 of EC2."""
    lost = record("a", S.RAY_STOPPING, stop_cause=StopCause.NOTICE)
    seen = world([lost], nodes=[node("a", NodeStatus.DEAD), node("new", cloud_id=None)])
    assert tick(seen)[0] == {"a": "RAY_STOPPED"}


def test_an_unmatched_node_holds_the_machine_with_its_ip_alone():
    """Two nodes with one ip: the second is not matched, and is on no other machine all the same."""
    records = [record(name, S.ALLOCATED, cancelled=True) for name in "bcd"]
    machines = [at(name)[0] for name in "abcd"]
    second = node("x", cloud_id=None, ip="10.0.0.1")
    seen = world([record("a", S.RAY_RUNNING), *records], machines=machines, nodes=[at("a")[1], second])
    assert set(tick(seen)[0].values()) == {"RAY_RUNNING", "TERMINATING"}
    elsewhere = replace(second, ip="10.9.9.9")  # of no machine that is listed
    unclear = replace(seen, runtime=replace(seen.runtime, nodes=(HEAD_NODE, at("a")[1], elsewhere)))
    assert set(tick(unclear)[0].values()) == {"RAY_RUNNING", "ALLOCATED"}


# Nodes that name another machine: an image was made of a running node.


def test_nodes_that_all_name_one_machine_are_placed_by_their_ips():
    machines, nodes = zip(*(at(name, cloud_id="c-a") for name in "abcde"), strict=True)
    records = [record("a", S.RAY_RUNNING), *(record(name, S.ALLOCATED) for name in "bcde")]
    seen = world(records, machines=machines, nodes=nodes)
    states, plan = tick(seen)
    assert set(states.values()) == {"RAY_RUNNING"}
    assert {i: r.node_id for i, r in after(seen, plan).items() if i != "head"} == {
        n: f"n-{n}" for n in "abcde"
    }
    assert sources(plan) == [f"node n-{name}" for name in "bcde"]


def test_a_node_that_names_a_machine_without_a_node_is_placed_by_its_ip_too():
    machines, nodes = zip(*(at(name, cloud_id="c-a") for name in "ab"), strict=True)
    records = [record("a", S.RAY_RUNNING), record("b", S.ALLOCATED)]
    seen = world(records, machines=machines, nodes=[node("a", NodeStatus.DEAD, ip="10.0.0.1"), nodes[1]])
    assert tick(following(seen, tick(seen)[1]))[0] == {"a": "TERMINATING", "b": "RAY_RUNNING"}


def test_an_id_counts_where_addresses_cannot_be_compared():
    """The machine's own address is not known, or the one with the node's address has a node already."""
    unknown = world(
        [record("a", S.ALLOCATED), record("b", S.ALLOCATED)],
        machines=[machine("a"), at("b")[0]],
        nodes=[node("a", ip="10.0.0.2")],
    )
    assert tick(unknown)[0] == {"a": "RAY_RUNNING", "b": "ALLOCATED"}
    taken = world(
        [record("a", S.ALLOCATED), record("b", S.RAY_RUNNING)],
        machines=[at("a")[0], at("b")[0]],
        nodes=[node("a", ip="10.0.0.2"), at("b")[1]],
    )
    assert tick(taken)[0] == {"a": "RAY_RUNNING", "b": "RAY_RUNNING"}


def test_a_node_of_another_type_and_ip_is_not_on_the_machine_that_it_names():
    """Seed 360060 of EC2: its own machine was not listed yet."""
    clone = node("x", cloud_id="c-a", ip="10.0.0.9", node_type="gpu")
    known = record("a", S.ALLOCATED, launch_request_id="r-1")
    seen = world([known], machines=[at("a")[0]], nodes=[clone], spec=spec(node_type("cpu"), node_type("gpu")))
    assert tick(seen)[0] == {"a": "ALLOCATED"}
    ended = replace(
        seen, runtime=replace(seen.runtime, nodes=(HEAD_NODE, replace(clone, status=NodeStatus.DEAD)))
    )
    assert tick(ended)[0] == {"a": "ALLOCATED"}


def test_a_node_of_another_type_and_ip_is_not_on_an_adopted_machine_either():
    """Seed 9300099: a node without id and ip worked there, and the machine was given up under it."""
    clone = node("x", cloud_id="c-a", ip="10.0.0.9", node_type="gpu")
    types = spec(node_type("cpu"), node_type("gpu"))
    seen = world([record("a", S.ALLOCATED)], machines=[at("a")[0]], nodes=[clone], spec=types)
    assert tick(seen)[0] == {"a": "ALLOCATED"}


def test_the_address_of_a_dead_node_shows_that_one_of_another_type_is_not_on_its_machine():
    """Seed 8200051 of EC2: lists showed no address, and the clone's own machine was given up under it."""
    known = record("a", S.RAY_RUNNING, launch_request_id="r-1")
    clone = node("x", cloud_id="c-a", ip="10.0.0.2", node_type="gpu")
    dead = node("a", NodeStatus.DEAD, ip="10.0.0.1")
    seen = world([known], machines=[machine("a")], nodes=[dead, clone], spec=spec(*TYPES))
    assert created(seen, reconcile(seen)) == []


def test_a_drained_node_of_another_type_leaves_a_machine_whose_ip_is_not_known_to_its_own():
    """Seed 420000053 of EC2: the machine's own node had another cloned id, and worked there."""
    known = record("a", S.RAY_STOP_REQUESTED, launch_request_id="r-1", stop_cause=StopCause.IDLE)
    dead = node("a", NodeStatus.DEAD, ip="10.0.0.2", node_type="gpu")
    others = node("x", cloud_id="c-b", ip="10.0.0.1"), node("b", ip="10.0.0.3")
    records = known, record("b", S.RAY_RUNNING)
    seen = world(records, machines=map(machine, "ab"), nodes=[dead, *others], spec=spec(*TYPES))
    assert tick(seen)[0]["a"] == "RAY_STOPPED"
    nodes = HEAD_NODE, replace(dead, node_type="cpu"), *others
    assert tick(replace(seen, runtime=replace(seen.runtime, nodes=nodes)))[0]["a"] == "TERMINATING"


def test_a_drain_of_a_node_that_is_moved_to_its_own_machine_is_not_one_of_the_other_machine():
    """Seed 9300099: the machine may have a node that cannot be matched."""
    wrong = record("a", S.RAY_STOP_REQUESTED, node_id="n-b", stop_cause=StopCause.IDLE)
    seen = world(
        [wrong, record("b", S.ALLOCATED)],
        machines=[at("a")[0], at("b")[0]],
        nodes=[at("b", cloud_id="c-a")[1], node("x", cloud_id=None)],
    )
    assert tick(seen)[0] == {"a": "RAY_STOPPED", "b": "RAY_RUNNING"}


def test_a_node_that_names_a_machine_which_no_list_shows_holds_one_whose_ip_is_not_known():
    """Seed 8100874 of EC2: its id was that of a machine of somebody, and its own seemed to be idle."""
    guessed = record("x", S.RAY_RUNNING, provisional=True, missing_since=NOW - 5.0, launch_request_id="r-1")
    seen = world(
        [guessed, record("a", S.ALLOCATED, cancelled=True)],
        machines=[machine("a")],
        nodes=[node("x", ip="10.0.0.1")],
        memory=Memory(unplaced_nodes={"n-x": UnplacedNode(since=NOW - 5.0, node_type="cpu")}),
    )
    assert tick(seen)[0]["a"] == "ALLOCATED"
    known = replace(seen, cloud={**seen.cloud, "c-a": machine("a", internal_ip="10.0.0.7")})
    assert tick(known)[0]["a"] == "TERMINATING"


def test_a_node_with_a_cloned_id_may_have_lived_next_to_one_that_was_taken_for_its_own():
    """Seed 8101250 of EC2: a node of another machine named this one, whose ip no list had shown."""
    lost = record("a", S.RAY_RUNNING)
    other = record("b", S.RAY_RUNNING)
    nodes = [node("a", NodeStatus.DEAD, ip="10.0.0.8"), at("b")[1], node("x", cloud_id="c-b", ip="10.0.0.1")]
    memory = Memory(unplaced_nodes={"n-x": UnplacedNode(since=NOW - 500.0, node_type="cpu")})
    seen = world([lost, other], machines=[machine("a"), at("b")[0]], nodes=nodes, memory=memory)
    later = following(seen, tick(seen)[1])
    assert tick(later)[0]["a"] == "RAY_STOPPED"
    unnamed = replace(seen.runtime, nodes=(HEAD_NODE, *nodes[:2], replace(nodes[2], cloud_id=None)))
    assert tick(replace(later, runtime=unnamed))[0]["a"] == "TERMINATING"


def test_a_machine_that_a_moved_node_leaves_is_held_for_a_node_that_a_third_record_follows():
    """Seed 8101757 of EC2: three nodes named each other's machines."""
    records = [
        record("a", S.RAY_RUNNING, node_id="n-b"),
        record("b", S.RAY_RUNNING, node_id="n-c"),
        record("c", S.ALLOCATED),
    ]
    machines, nodes = zip(at("a"), at("b", cloud_id="c-a"), at("c", cloud_id="c-b"), strict=True)
    seen = world(records, machines=machines, nodes=nodes[1:])
    assert tick(seen)[0] == {"a": "RAY_RUNNING", "b": "RAY_STOPPED", "c": "RAY_RUNNING"}


def test_of_two_nodes_with_one_id_the_one_with_the_ip_is_on_the_machine():
    """Seed 8101730 of EC2: the other came first, and its own machine was given up."""
    nodes = [node("x", cloud_id="c-a", ip="10.0.0.9"), node("y", cloud_id="c-a", ip="10.0.0.1")]
    seen = world([record("a", S.ALLOCATED)], machines=[at("a")[0]], nodes=nodes)
    assert after(seen, reconcile(seen))["a"].node_id == "n-y"


def test_a_node_with_the_ip_and_the_type_of_another_machine_is_on_that_one():
    """Seed 8100541 of EC2: the machine that it names had lost its node, and no list had shown its ip."""
    gpu = replace(at("b")[0], node_type="gpu")
    clone = node("x", cloud_id="c-a", ip="10.0.0.2", node_type="gpu")
    known = record("b", S.ALLOCATED, node_type="gpu", cancelled=True, launch_request_id="r-2")
    lost = record("a", S.RAY_RUNNING, launch_request_id="r-1")
    nodes = [node("a", NodeStatus.DEAD), clone]
    seen = world([lost, known], machines=[machine("a"), gpu], nodes=nodes, spec=spec(*TYPES))
    assert tick(following(seen, tick(seen)[1]))[0] == {"a": "TERMINATING", "b": "RAY_RUNNING"}


def test_a_node_moves_to_its_own_machine_once_that_one_is_listed():
    wrong = record("a", S.RAY_RUNNING, node_id="n-b")
    seen = world(
        [wrong, record("b", S.ALLOCATED)],
        machines=[at("a")[0], at("b")[0]],
        nodes=[at("b", cloud_id="c-a")[1]],
    )
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING", "b": "RAY_RUNNING"}
    assert after(seen, plan)["b"].node_id == "n-b"


def test_a_node_moves_from_a_machine_that_was_terminated_to_the_one_that_has_the_ip_now():
    """World 9300160 of the strangers: neither of the two machines was ever terminated or used."""
    ended = record("a", S.TERMINATING, node_id="n-b", internal_ip="10.0.0.2", missing_since=NOW - 900.0)
    seen = world([ended, record("b", S.ALLOCATED)], machines=[at("b")[0]], nodes=[at("b", cloud_id="c-a")[1]])
    states, plan = tick(seen)
    assert (states["b"], after(seen, plan)["b"].node_id) == ("RAY_RUNNING", "n-b")
    assert tick(following(seen, plan))[0]["a"] == "TERMINATED"


def test_a_machine_whose_wrong_node_was_moved_away_gets_its_own():
    emptied = record("a", S.RAY_STOPPED, node_id=None, since=NOW)
    own = at("a", cloud_id=None)
    seen = world([emptied], machines=[own[0]], nodes=[own[1]])
    (new,) = created(seen, reconcile(seen))
    assert (new.cloud_id, new.node_id, new.state) == ("c-a", "n-a", S.RAY_RUNNING)


def test_a_node_that_names_an_occupied_machine_holds_its_own_whose_ip_no_list_has_shown():
    """Seed 7000165 of EC2: the machine was not listed for a while, and was given up under its tasks."""
    records = [record("a", S.RAY_RUNNING), record("b", S.ALLOCATED, missing_since=NOW - 40.0)]
    machines, nodes = zip(at("a", cloud_id=None), at("b", cloud_id="c-a"), strict=True)
    seen = world(records, machines=machines[:1], nodes=nodes, memory=Memory(listed_at=NOW - 1.0))
    assert tick(seen)[0]["b"] == "ALLOCATED"
    alone = replace(seen, runtime=replace(seen.runtime, nodes=(HEAD_NODE, nodes[0])))
    assert tick(alone)[0]["b"] == "TERMINATING"


def test_a_node_with_a_cloned_id_and_another_ip_holds_no_machine_that_lists_lack():
    """Seed 460000011 of the joint world: a machine that had died held its place for five minutes."""
    gone = record("b", S.ALLOCATED, missing_since=NOW - 40.0, internal_ip="10.0.0.9")
    machines, nodes = zip(at("a"), at("x", cloud_id="c-a"), strict=True)
    memory = Memory(listed_at=NOW - 1.0)
    seen = world([record("a", S.RAY_RUNNING), gone], machines=machines[:1], nodes=nodes, memory=memory)
    assert tick(seen)[0]["b"] == "TERMINATING"
    late = record("b", S.ALLOCATED, since=NOW - 1000.0, internal_ip="10.0.0.9")
    shown = machine("b", internal_ip="10.0.0.9")
    assert (
        tick(world([seen.instances["a"], late], machines=[machines[0], shown], nodes=nodes))[0]["b"]
        == "ALLOCATED"
    )


def test_the_machine_that_a_moved_node_leaves_is_held_for_a_node_that_names_a_third_one():
    """Seed 950248 of EC2: its own node named a machine with another ip, so nothing seemed to run there."""
    records = [
        record("a", S.RAY_RUNNING, node_id="n-b", missing_since=NOW - 5.0, launch_request_id="r-1"),
        record("b", S.ALLOCATED),
        record("c", S.ALLOCATED, node_type="gpu", launch_request_id="r-2"),
    ]
    machines = [at("b")[0], replace(at("c")[0], node_type="gpu")]
    nodes = [at("b", cloud_id="c-a")[1], at("a", cloud_id="c-c")[1]]
    seen = world(records, machines=machines, nodes=nodes, spec=spec(*TYPES))
    assert tick(seen)[0] == {"a": "RAY_STOPPED", "b": "RAY_RUNNING", "c": "ALLOCATED"}


def test_a_node_moves_to_the_machine_that_has_its_ip_and_its_id():
    """Seed 950013 of the joint world: somebody had set the id right meanwhile."""
    records = [record("a", S.RAY_RUNNING, node_id="n-b"), record("b", S.ALLOCATED)]
    machines, nodes = zip(*(at(name) for name in "ab"), strict=True)
    seen = world(records, machines=machines, nodes=nodes)
    plan = reconcile(seen)
    assert after(seen, plan)["b"].node_id == "n-b"
    assert [one.node_id for one in created(seen, plan)] == ["n-a"]


def test_a_record_keeps_the_ip_that_a_later_list_shows():
    """Seed 360060 of EC2: while no list could be read, another node that had died was taken for its own."""
    known = record("a", S.ALLOCATED, cancelled=True, stop_cause=StopCause.IDLE, launch_request_id="r-1")
    unnamed = node("x", cloud_id=None)
    seen = world([known], machines=[at("a")[0]], nodes=[unnamed])
    plan = reconcile(seen)
    assert after(seen, plan)["a"].internal_ip == "10.0.0.1"
    dead = node("y", NodeStatus.DEAD, cloud_id="c-a", ip="10.0.0.9")
    blind = following(seen, plan, cloud=None, runtime=replace(seen.runtime, nodes=(HEAD_NODE, unnamed, dead)))
    assert tick(blind)[0] == {"a": "ALLOCATED"}


def test_a_node_that_names_an_occupied_machine_holds_both_ids_that_a_list_has_for_its_own():
    """Seed 7100152: one listing showed its machine twice, so its ip named none of the two."""
    records = [record("a", S.RAY_RUNNING), record("b", S.ALLOCATED, cancelled=True)]
    machines, nodes = zip(at("a", cloud_id=None), at("b", cloud_id="c-a"), strict=True)
    twin = replace(machines[1], cloud_id="c-b-2")
    seen = world(records, machines=[*machines, twin], nodes=nodes)
    assert tick(seen)[0] == {"a": "RAY_RUNNING", "b": "ALLOCATED", "t-1-i1": "ALLOCATED"}


@pytest.mark.parametrize("state", [S.RAY_RUNNING, S.TERMINATING])
def test_a_node_moves_to_its_own_machine_also_from_a_record_that_leaves(state):
    machines, nodes = zip(at("a"), at("b", cloud_id="c-a"), strict=True)
    wrong, right = record("a", state, node_id="n-b"), record("b", S.ALLOCATED)
    _, plan = tick(world([wrong, right], machines=machines, nodes=[nodes[1]]))
    assert {r.instance_id: r.node_id for r in plan.writes} == {"a": None, "b": "n-b"}


def test_a_second_node_of_a_listed_machine_gets_no_record_whatever_machine_it_names():
    (shown, first), (_, second) = at("a"), at("b", cloud_id="c-gone")
    second = replace(second, ip=first.ip)
    owner = record("a", S.RAY_RUNNING, internal_ip=first.ip)
    seen = world([owner], machines=[shown], nodes=[first, second])
    states, plan = tick(seen)
    assert (states, plan.writes) == ({"a": "RAY_RUNNING"}, ())
    dead = replace(seen.runtime, nodes=(HEAD_NODE, replace(first, status=NodeStatus.DEAD), second))
    later = following(seen, plan, runtime=dead)
    _, plan = tick(later)
    assert ([r.cloud_id for r in created(later, plan)], plan.actions) == (["c-a"], ())


@pytest.mark.parametrize(
    ("tag", "ip", "is_gpu"),
    [
        ("r-2", "10.0.0.2", True),
        ("r-1", "10.0.0.2", True),  # seed 150300006: one request was for both types
        ("r-1", "10.0.0.1", False),  # the node is there: the type tag is wrong
    ],
)
def test_a_machine_that_a_node_of_another_type_had_named_has_the_type_of_its_request(tag, ip, is_gpu):
    early = record("a", S.RAY_RUNNING, provisional=True, launch_request_id="r-1", missing_since=NOW - 9.0)
    early = replace(early, internal_ip=ip)
    asked = record("b", S.REQUESTED, launch_request_id=tag, node_type="gpu", price_per_hour=9.0)
    shown = machine("a", node_type="gpu", request_id=tag, internal_ip="10.0.0.1")
    seen = world([early, asked], machines=[shown], nodes=[node("a", ip=ip)], spec=spec(*TYPES))
    known = after(seen, tick(seen)[1])
    terms = [(known[n].launch_request_id, known[n].node_type, known[n].price_per_hour) for n in "ab"]
    expected = [("r-1", "cpu", early.price_per_hour), (tag, "gpu", 9.0)]
    assert terms == (expected[::-1] if is_gpu else expected)


@pytest.mark.parametrize(
    ("guessed", "steps", "left"),
    [
        ("r-1", (S.REQUESTED, S.ALLOCATED), 1),
        ("r-1", (S.ALLOCATED,), 0),
        (None, (S.REQUESTED, S.ALLOCATED), 0),  # seed 9400164: another record has got its request
    ],
)
def test_a_request_waits_again_when_the_machine_taken_for_its_answer_has_another_tag(guessed, steps, left):
    """Seed 340302: a node with a cloned id had named a machine of another type, whose request was over."""
    history = past(*((step, NOW - 50.0) for step in (*steps, S.RAY_RUNNING)))
    early = record("a", S.RAY_RUNNING, provisional=True, launch_request_id=guessed, missing_since=NOW - 9.0)
    early = replace(early, history=history, requested_at=NOW - 60.0)
    shown = machine("a", node_type="gpu", request_id="r-over", internal_ip="10.0.0.1")
    seen = world([early], machines=[shown], nodes=[node("a", ip="10.0.0.2")], spec=spec(*TYPES))
    plan = tick(seen)[1]
    known = after(seen, plan)["a"]
    assert (known.launch_request_id, known.requested_at, known.node_type) == (None, None, "gpu")
    waiting = [(one.launch_request_id, one.node_type, one.state) for one in created(seen, plan)]
    assert (waiting, plan.actions) == ([("r-1", "cpu", S.REQUESTED)] * left, ())


@pytest.mark.parametrize("cloud", [None, ...])
def test_a_restarted_node_with_a_cloned_id_is_on_its_machine_also_without_a_list(cloud):
    shown, first = at("a")
    drained = record("a", S.RAY_STOPPING, stop_cause=StopCause.BUDGET, internal_ip=first.ip)
    nodes = [replace(first, status=NodeStatus.DEAD), node("x", cloud_id="c-gone", ip=first.ip)]
    seen = world([drained], machines=[shown], nodes=nodes)
    seen = seen if cloud is ... else replace(seen, cloud=cloud)
    _, plan = tick(seen)
    assert ([r.cloud_id for r in created(seen, plan)], plan.actions) == (["c-a"], ())


# Two records with one address.


def test_of_two_records_with_the_ip_of_a_node_the_listed_one_gets_it():
    pair = [record(name, S.ALLOCATED, internal_ip="10.0.0.7") for name in "ab"]
    nameless = node("x", cloud_id=None, ip="10.0.0.7")
    seen = world(pair, machines=[machine("b", internal_ip="10.0.0.7")], nodes=[nameless])
    assert tick(seen)[0] == {"a": "ALLOCATED", "b": "RAY_RUNNING"}


# Type tags that were lost or changed.

TYPES = (node_type("cpu", {"CPU": 1}), node_type("gpu", {"GPU": 1}))


@pytest.mark.parametrize("listed_as", ["", "renamed", "gpu"])
def test_a_machine_without_its_own_type_answers_the_request_that_it_is_tagged_with(listed_as):
    waiting = record("a", S.REQUESTED)
    arrived = machine("x", node_type=listed_as, request_id="r-1")
    seen = world([waiting], machines=[arrived], spec=spec(*TYPES))
    states, plan = tick(seen)
    assert states == {"a": "ALLOCATED"}
    assert (after(seen, plan)["a"].node_type, sources(plan)) == ("cpu", ["machine c-x"])


def test_the_launch_hash_tells_which_type_of_a_request_a_machine_without_a_type_is():
    waiting = [
        record("a", S.REQUESTED, launch_hash="h-cpu"),
        record("b", S.REQUESTED, node_type="gpu", launch_hash="h-gpu"),
    ]
    arrived = machine("x", node_type="", request_id="r-1", launch_hash="h-gpu")
    seen = world(waiting, machines=[arrived], spec=spec(*TYPES))
    assert tick(seen)[0] == {"a": "REQUESTED", "b": "ALLOCATED"}


def test_a_machine_of_a_type_whose_record_has_ended_keeps_its_type():
    types = tuple(replace(one, launch_hash=f"h-{one.name}") for one in TYPES)
    late = machine("x", node_type="gpu", request_id="r-1", launch_hash="h-gpu")
    seen = world([record("a", S.REQUESTED, launch_hash="h-cpu")], machines=[late], spec=spec(*types))
    (new,) = created(seen, reconcile(seen))
    assert (new.cloud_id, new.node_type) == ("c-x", "gpu")


def test_a_machine_that_cannot_be_used_counts_against_the_maximum_of_the_cluster():
    limits = LaunchLimits(upscaling_speed=10.0)
    wishes = spec(max_nodes=3, limits=limits)
    seen = world(machines=[machine("x", node_type="")], demands=[demand(count=5)], spec=wishes)
    plan = reconcile(seen)
    assert [sum(a.shape.values()) for a in plan.actions if isinstance(a, Launch)] == [1]
    assert "machine c-x" in sources(plan)


def test_a_machine_that_was_adopted_with_a_wrong_tag_gets_the_node_with_its_ip():
    nameless = node("x", cloud_id=None, ip="10.0.0.7", node_type="gpu")
    seen = world(
        [record("a", S.ALLOCATED)],
        machines=[machine("a", internal_ip="10.0.0.7")],
        nodes=[nameless],
        spec=spec(*TYPES),
    )
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}


@pytest.mark.parametrize(("request_id", "kind"), [(None, "gpu"), ("r-1", "cpu")])
def test_an_adopted_machine_follows_a_type_tag_that_is_set_right(request_id, kind):
    known = record("a", S.RAY_RUNNING, launch_request_id=request_id)
    seen = world([known], machines=[machine("a", node_type="gpu")], spec=spec(*TYPES))
    assert after(seen, reconcile(seen))["a"].node_type == kind


HASHED = tuple(replace(one, launch_hash=f"h-{one.name}") for one in TYPES)


def test_a_machine_whose_request_has_ended_is_what_its_launch_hash_says():
    """Seed 360052: its wrong tag made it the answer to a request for the other type, for good."""
    waiting = record("a", S.REQUESTED, node_type="gpu", launch_hash="h-gpu")
    late = machine("x", node_type="gpu", request_id="r-ended", launch_hash="h-cpu")
    seen = world([waiting], machines=[late], spec=spec(*HASHED))
    assert tick(seen)[0]["a"] == "REQUESTED"
    assert [one.node_type for one in created(seen, reconcile(seen))] == ["cpu"]


def test_a_launch_hash_tells_the_type_where_a_request_was_for_both():
    """Seed 7100244 of EC2: adopted as the other type, it was not held by its node without id and ip."""
    waiting = [record("a", S.REQUESTED, node_type="gpu", launch_hash="h-gpu")]
    ended = machine("x", node_type="gpu", request_id="r-1", launch_hash="h-cpu")
    seen = world(waiting, machines=[ended], spec=spec(*HASHED))
    assert tick(seen)[0]["a"] == "REQUESTED"
    assert [one.node_type for one in created(seen, reconcile(seen))] == ["cpu"]
    known = world([record("x", S.ALLOCATED)], machines=[ended], spec=spec(*HASHED))
    assert after(known, reconcile(known))["x"].node_type == "cpu"


def test_a_record_that_a_node_of_another_type_had_named_gets_the_type_of_the_listed_machine():
    """Seed 360010 of KubeRay, whose lists have no request ids: its own node did not hold it."""
    guessed = record("a", S.RAY_RUNNING, provisional=True, missing_since=NOW - 5.0, launch_request_id="r-1")
    seen = world([guessed], machines=[machine("a", node_type="gpu")], spec=spec(*TYPES))
    assert after(seen, reconcile(seen))["a"].node_type == "gpu"
    tagged = replace(seen, cloud={**seen.cloud, "c-a": machine("a", node_type="gpu", request_id="r-1")})
    assert after(tagged, reconcile(tagged))["a"].node_type == "cpu"


def test_a_node_is_on_the_machine_with_its_ip_that_lost_its_type_tag():
    (shown, there) = at("a", node_type="gpu", cloud_id="c-x")
    asked = record("a", S.ALLOCATED, launch_request_id="r-1")
    seen = world([asked], machines=[replace(shown, node_type="")], nodes=[there])
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}


# Machines that are adopted.


def test_a_machine_that_a_list_shows_under_two_ids_answers_one_request():
    shown, twin = (machine(name, request_id="r-1", internal_ip="10.0.0.1") for name in "ax")
    owner, asked = record("a", S.RAY_RUNNING, launch_request_id="r-1"), record("b", S.REQUESTED)
    states, plan = tick(world([owner, asked], machines=[shown, twin]))
    assert (states, sources(plan)) == ({"a": "RAY_RUNNING", "b": "REQUESTED"}, ["machine c-x"])


@pytest.mark.parametrize(("requested_at", "expected"), [(None, 1), (1.0, 0)])
def test_a_machine_taken_for_an_answer_by_its_type_alone_may_not_have_been_it(requested_at, expected):
    lost = record("a", S.ALLOCATED, launch_request_id="r-1", requested_at=requested_at)
    lost = replace(lost, missing_since=NOW - 31.0)
    traits = ProviderTraits(listed_within_s=600.0)
    _, plan = tick(world([lost], machines=[], traits=traits, memory=Memory(listed_at=NOW - 5.0)))
    assert len(plan.memory.unclear_launches) == expected


PRICED = node_type("cpu", {"CPU": 1}, price_per_hour=3.6, max_nodes=100)


@pytest.mark.parametrize(("kind", "left"), [("cpu", 1), ("", 1)])
def test_the_tick_that_finds_a_machine_counts_it_in_the_hourly_budget(kind, left):
    wishes = spec(
        PRICED, max_nodes=101, budget=Budget(per_hour=8.0), limits=LaunchLimits(upscaling_speed=10.0)
    )
    seen = world(machines=[machine("x", node_type=kind)], demands=[demand(count=5)], spec=wishes)
    launched = [sum(a.shape.values()) for a in reconcile(seen).actions if isinstance(a, Launch)]
    assert sum(launched) == left


# Notices, and a clock that was set since they were written.


def test_a_notice_that_was_read_before_a_record_began_is_of_an_earlier_life_of_its_machine():
    """Seed 11151 of EC2: the clock was set back, so the notice seems to be from the future."""
    known = Notice(cloud_id="c-a", kind=NoticeKind.REBALANCE, at=NOW + 3000.0, written_at=77.0)
    memory = Memory(noticed={"c-a": NoticeKind.REBALANCE}, noticed_at={"c-a": (77.0, NOW - 900.0)})
    seen = world([record("a", S.RAY_RUNNING, since=NOW - 60.0)], notices=(known,), memory=memory)
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}
    newer = replace(seen, notices=(replace(known, written_at=78.0),))
    assert tick(newer)[0]["a"] == "RAY_STOP_REQUESTED"


# An install that an earlier process left in the outbox.


@pytest.mark.parametrize(
    ("nodes", "occupied"),
    [([], set()), ([node("x", cloud_id=None)], {"a"}), ([node("a", NodeStatus.UNSPECIFIED)], {"a"})],
)
def test_a_machine_on_which_a_node_may_run_unseen_is_occupied(nodes, occupied):
    """Seed 801188 of a rack: the install was repeated under two running tasks."""
    seen = world([record("a", S.RAY_INSTALLING)], machines=[machine("a")], nodes=nodes)
    assert reconcile(seen).occupied == occupied


def test_without_a_report_every_install_may_have_ended():
    seen = replace(world([record("a", S.RAY_INSTALLING)], machines=[machine("a")]), runtime=None)
    assert reconcile(seen).occupied == {"a"}

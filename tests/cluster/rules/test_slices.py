"""Machines of one slice come and go together."""

from __future__ import annotations

from tests.cluster.worlds import S, machine, node, record, spec, tick, world
from tests.support.builders import amounts, demand, node_type

from muster.cluster.model import NodeStatus, StopCause
from muster.cluster.plan import Drain
from muster.cluster.reconcile import reconcile

FREE = amounts({"CPU": 1})


def idle(name, seconds=301.0):
    return node(name, NodeStatus.IDLE, available=FREE, idle_s=seconds)


def sliced(*slices, nodes, extra=(), **changes):
    """A world with slices named by their letters: "ab" is a slice of machines a and b."""
    names = [name for one in slices for name in one]
    machines = [machine(name, slice_id=one) for one in slices for name in one]
    records = [record(name, S.RAY_RUNNING) for name in names if name not in {r.instance_id for r in extra}]
    return world([*records, *extra], machines=machines, nodes=nodes, **changes)


def drained(seen):
    return sorted(action.instance_id for action in reconcile(seen).actions if isinstance(action, Drain))


def test_idle_machines_stay_while_another_of_their_slice_is_at_work():
    assert drained(sliced("ab", nodes=[idle("a"), node("b")])) == []
    assert drained(sliced("ab", "cd", nodes=[idle("a"), node("b"), idle("c"), idle("d")])) == ["c", "d"]


def test_a_machine_that_demand_was_planned_onto_keeps_its_slice():
    seen = sliced("ab", nodes=[idle("a"), idle("b")], demands=[demand(count=1)])
    assert drained(seen) == []


def test_above_the_maximum_whole_slices_go_and_no_more_than_needed():
    cap = spec(node_type("cpu", max_nodes=4))
    seen = sliced("ab", "cd", "ef", nodes=[node(name) for name in "abcdef"], spec=cap)
    gone = drained(seen)
    assert gone in (["a", "b"], ["c", "d"], ["e", "f"])


def test_a_request_that_is_too_much_beside_a_slice_goes_and_the_slice_stays():
    cap = spec(node_type("cpu", max_nodes=2))
    seen = sliced("ab", nodes=[node("a"), node("b")], extra=[record("q", S.QUEUED)], spec=cap)
    states, _ = tick(seen)
    assert (states["a"], states["b"], states["q"]) == ("RAY_RUNNING", "RAY_RUNNING", "TERMINATED")


def test_a_minimum_keeps_one_of_two_idle_slices_whichever_machines_are_idle_longest():
    least = spec(node_type("cpu", max_nodes=8, min_nodes=2))
    idlers = [idle("a", 500.0), idle("b", 310.0), idle("c", 400.0), idle("d", 320.0)]
    assert drained(sliced("ab", "cd", nodes=idlers, spec=least)) in (["a", "b"], ["c", "d"])


def test_a_slice_that_lost_a_machine_is_emptied():
    lost = record("a", S.RAY_STOPPED)
    seen = sliced("ab", "cd", nodes=[node("b"), node("c"), node("d")], extra=[lost])
    (drain,) = [action for action in reconcile(seen).actions if isinstance(action, Drain)]
    assert (drain.instance_id, drain.cause, drain.deadline_s) == ("b", StopCause.BROKEN_SLICE, 60.0)


def test_machines_that_stand_alone_are_removed_as_ever():
    states, _ = tick(world([record("a", S.RAY_RUNNING)], nodes=[idle("a")]))
    assert states == {"a": "RAY_STOP_REQUESTED"}

"""What the planner no longer wants is cancelled, drained or released, as its state allows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    S,
    after,
    created,
    following,
    machine,
    node,
    record,
    spec,
    tick,
    unchanged,
    world,
)
from tests.support.builders import amounts, demand, node_type

from muster.cluster.model import NodeStatus, StopCause, Timeouts
from muster.cluster.plan import Drain, Launch
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import ProviderTraits

FREE = amounts({"CPU": 1})


def idle(name, seconds=301.0):
    return node(name, NodeStatus.IDLE, available=FREE, idle_s=seconds)


def test_an_idle_node_is_drained_and_may_refuse():
    seen = world([record("a", S.RAY_RUNNING), record("b", S.RAY_RUNNING)], nodes=[idle("a"), node("b")])
    states, plan = tick(seen)
    assert states == {"a": "RAY_STOP_REQUESTED", "b": "RAY_RUNNING"}
    (drain,) = plan.actions
    assert (drain.instance_id, drain.deadline_s, drain.may_be_refused) == ("a", 0.0, True)
    assert after(seen, plan)["a"].stop_cause is StopCause.IDLE


def test_w22_a_busy_node_above_the_maximum_gets_a_deadline():
    cap = spec(node_type("cpu", max_nodes=1), timeouts=Timeouts(drain_deadline_s=17.0))
    seen = world([record("a", S.RAY_RUNNING), record("b", S.RAY_RUNNING)], spec=cap)
    (drain,) = reconcile(seen).actions
    assert (drain.cause, drain.deadline_s, drain.may_be_refused) == (
        StopCause.MAX_NODES_PER_TYPE,
        17.0,
        False,
    )


def test_the_node_that_was_drained_idle_comes_back_when_it_refuses_and_is_not_drained_while_busy():
    seen = world([record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)], nodes=[node("a")])
    assert unchanged(reconcile(seen))


def test_w21_a_draining_node_holds_no_demand():
    """Demand that would fit on it is launched; it still counts against the maximum, as it may come back."""
    draining = record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)
    seen = world([draining], nodes=[node("a", available=FREE)], demands=[demand()])
    assert [dict(a.shape) for a in reconcile(seen).actions] == [{"cpu": 1}]
    full = spec(node_type("cpu", max_nodes=1))
    seen = world([draining], nodes=[node("a", available=FREE)], demands=[demand()], spec=full)
    assert unchanged(reconcile(seen))


def test_w20_a_node_that_must_go_holds_no_demand_and_takes_no_room():
    old, new = node_type("old", {"CPU": 1}, max_nodes=0), node_type("new", {"CPU": 1}, max_nodes=1)
    seen = world(
        [record("a", S.RAY_RUNNING, node_type="old")],
        nodes=[node("a", node_type="old", available=FREE)],
        demands=[demand()],
        spec=spec(old, new, max_nodes=2),
    )
    plan = reconcile(seen)
    assert [type(a) for a in plan.actions] == [Drain, Launch]
    assert dict(plan.actions[1].shape) == {"new": 1}


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RAY_INSTALLING])
def test_machines_that_serve_nothing_yet_go_without_a_drain(state):
    seen = world([record("a", state)], spec=spec(node_type("cpu", max_nodes=0)))
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING"}
    assert [a for a in plan.actions if isinstance(a, Drain)] == []


def test_unneeded_machines_on_their_way_go_after_the_pending_idle_time():
    waiting = spec(timeouts=Timeouts(pending_idle_s=60.0))
    seen = world([record("a", S.ALLOCATED), record("q", S.REQUESTED)], spec=waiting)
    first = reconcile(seen)
    assert unchanged(first)
    second = following(seen, first, seconds=60.0)
    plan = reconcile(second)
    assert unchanged(plan)
    third = following(second, plan, seconds=1.0)
    assert tick(third)[0] == {"a": "TERMINATING", "q": "REQUESTED"}


def test_nothing_is_removed_before_the_head_runs():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[idle("a")], head=False)
    assert unchanged(reconcile(seen))


def test_nothing_is_removed_from_a_read_only_cluster():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[idle("a")], traits=ProviderTraits(read_only=True))
    assert unchanged(reconcile(seen))


def test_nothing_is_removed_when_the_runtime_cannot_be_read():
    seen = replace(world([record("a", S.RAY_RUNNING)], nodes=[idle("a")]), runtime=None)
    assert unchanged(reconcile(seen))


def test_idle_nodes_that_minimums_need_stay():
    floor = spec(node_type("cpu", min_nodes=1))
    seen = world(
        [record("a", S.RAY_RUNNING), record("b", S.RAY_RUNNING)],
        nodes=[idle("a", 900), idle("b")],
        spec=floor,
    )
    assert tick(seen)[0] == {"a": "RAY_STOP_REQUESTED", "b": "RAY_RUNNING"}


def test_a_cancelled_request_is_cancelled_once():
    cap = spec(node_type("cpu", max_nodes=0))
    seen = world([record("a", S.REQUESTED)], spec=cap)
    plan = reconcile(seen)
    assert after(seen, plan)["a"].cancelled
    assert unchanged(reconcile(following(seen, plan)))


def test_a_cancelled_request_still_counts_until_its_machine_came_and_went():
    """It may arrive: buying another one now could lead above the maximum."""
    cap = spec(node_type("cpu", max_nodes=1), max_nodes=2)
    gone = record("a", S.REQUESTED, cancelled=True, stop_cause=StopCause.MAX_NODES, node_type="old")
    seen = world([gone], demands=[demand()], spec=cap)
    assert created(seen, reconcile(seen)) == []
    arrived = following(seen, reconcile(seen), cloud={**seen.cloud, "c-x": machine("x", node_type="old")})
    states, _plan = tick(arrived)
    assert states["a"] == "TERMINATING"

"""Spec 8.2, RC-01 to RC-13, RC-17 to RC-19 and RC-28 to RC-31: the records mirror the world."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    CPU,
    HEAD,
    HEAD_MACHINE,
    HEAD_NODE,
    S,
    after,
    created,
    following,
    machine,
    node,
    record,
    spec,
    tick,
    trail,
    unchanged,
    unreported,
    world,
)
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, node_type

from muster.cluster.model import (
    DrainFailure,
    FailureKind,
    InstallFailure,
    LaunchFailure,
    NodeKind,
    NodeStatus,
    TerminateFailure,
)
from muster.cluster.plan import Terminate
from muster.cluster.reconcile import reconcile

GPU = node_type("gpu", {"CPU": 1, "GPU": 1})
TWO_TYPES = spec(CPU, GPU)
DEAD, DRAINING, IDLE, UNSPECIFIED = (
    NodeStatus.DEAD,
    NodeStatus.DRAINING,
    NodeStatus.IDLE,
    NodeStatus.UNSPECIFIED,
)


def refusal(name="cpu", request="r-1", message="no capacity"):
    return LaunchFailure(request_id=request, node_type=name, kind=FailureKind.CAPACITY, message=message)


def test_rc01_a_request_without_machine_and_within_its_time_is_unchanged():
    assert unchanged(reconcile(world([record("a", S.REQUESTED)])))


def test_rc02_a_machine_goes_to_the_request_of_its_type():
    seen = world(
        [record("a", S.REQUESTED), record("b", S.REQUESTED, node_type="gpu")],
        machines=[machine("x")],
        spec=TWO_TYPES,
    )
    states, plan = tick(seen)
    assert states == {"a": "ALLOCATED", "b": "REQUESTED"}
    bound = after(seen, plan)["a"]
    assert (bound.cloud_id, bound.kind, bound.node_type) == ("c-x", NodeKind.WORKER, "cpu")
    assert len(plan.writes) == 1
    assert plan.actions == ()


def test_rc03_one_request_with_a_machine_for_one_type_and_a_refusal_for_the_other():
    seen = world(
        [record("a", S.REQUESTED), record("b", S.REQUESTED, node_type="gpu")],
        machines=[machine("x", request_id="r-1")],
        launch_failures=(refusal("gpu"),),
        spec=TWO_TYPES,
    )
    states, plan = tick(seen)
    assert states == {"a": "ALLOCATED", "b": "ALLOCATION_FAILED"}
    assert after(seen, plan)["b"].details.split(": ") == [FailureKind.CAPACITY.value, refusal("gpu").message]


def test_rc04_one_request_refused_for_both_types():
    seen = world(
        [record("a", S.REQUESTED), record("b", S.REQUESTED, node_type="gpu")],
        launch_failures=(refusal("cpu"), refusal("gpu")),
        spec=TWO_TYPES,
    )
    assert tick(seen)[0] == {"a": "ALLOCATION_FAILED", "b": "ALLOCATION_FAILED"}


def test_rc05_two_refusals_fail_exactly_two_of_three():
    seen = world(
        [record(name, S.REQUESTED, since=NOW - age) for name, age in (("a", 3), ("b", 2), ("c", 1))],
        launch_failures=(refusal(message="one"), refusal(message="two")),
    )
    states, plan = tick(seen)
    assert states == {"a": "ALLOCATION_FAILED", "b": "ALLOCATION_FAILED", "c": "REQUESTED"}
    assert [w.details.split(": ") for w in plan.writes] == [["capacity", "one"], ["capacity", "two"]]


def test_rc06_vanished_refused_to_terminate_and_terminated():
    """The refused termination is tried again in the same tick; TERMINATED records are out of sight here.

    Ours waits for a booting machine that lists lack; this one has been missing for longer than that. It is
    terminated all the same: the lists may be wrong.
    """
    seen = world(
        [record("gone", S.ALLOCATED, missing_since=NOW - 31.0), record("kept", S.TERMINATING)],
        machines=[machine("kept")],
        terminate_failures=(TerminateFailure(cloud_id="c-kept", message="busy"),),
    )
    states, plan = tick(seen)
    assert states == {"gone": "TERMINATING", "kept": "TERMINATING"}
    assert after(seen, plan)["gone"].cloud_id == "c-gone"
    assert trail(seen, plan, "gone") == ["RAY_STOPPED", "TERMINATING"]
    assert trail(seen, plan, "kept") == ["TERMINATION_FAILED", "TERMINATING"]
    (call,) = plan.actions
    assert dict(zip(call.instance_ids, call.cloud_ids, strict=True)) == {"gone": "c-gone", "kept": "c-kept"}


def test_rc07_a_machine_without_node_is_unchanged():
    assert unchanged(reconcile(world([record("a", S.ALLOCATED)])))


def test_rc07_a_node_of_unspecified_status_is_set_aside_and_the_others_are_followed():
    """The reference raises; ours quarantines the one node (10.1.4)."""
    seen = world(
        [record("a", S.ALLOCATED), record("b", S.ALLOCATED)], nodes=[node("a", UNSPECIFIED), node("b")]
    )
    states, plan = tick(seen)
    assert states == {"a": "ALLOCATED", "b": "RAY_RUNNING"}
    assert [q.source for q in plan.quarantined] == ["node n-a"]


def test_rc08_a_node_on_a_machine_goes_to_the_record_that_lives():
    """The TERMINATED twin is not even in the snapshot; its id may only show in the memory of ended nodes."""
    seen = world([record("live", S.ALLOCATED)], nodes=[node("live")])
    states, plan = tick(seen)
    assert states == {"live": "RAY_RUNNING"}
    assert after(seen, plan)["live"].node_id == "n-live"
    assert len(plan.writes) == 1


def test_rc09_idle_nodes_of_running_and_terminating_records_change_nothing():
    seen = world(
        [record("a", S.RAY_RUNNING), record("b", S.TERMINATING, node_id="n-b")],
        nodes=[node("a", IDLE), node("b", IDLE)],
    )
    assert unchanged(reconcile(seen))


def test_rc10_draining_nodes():
    seen = world(
        [
            record("running", S.RAY_RUNNING),
            record("stopping", S.RAY_STOPPING),
            record("going", S.TERMINATING, node_id="n-going"),
        ],
        nodes=[node("running", DRAINING), node("stopping", DRAINING), node("going", DRAINING)],
    )
    states, plan = tick(seen)
    assert states == {"running": "RAY_STOPPING", "stopping": "RAY_STOPPING", "going": "TERMINATING"}
    assert [w.instance_id for w in plan.writes] == ["running"]


def test_rc11_dead_nodes_end_in_one_termination():
    seen = world(
        [
            record("new", S.ALLOCATED),
            record("stopping", S.RAY_STOPPING),
            record("going", S.TERMINATING, node_id="n-going"),
        ],
        nodes=[node("new", DEAD), node("stopping", DEAD), node("going", DEAD)],
    )
    states, plan = tick(seen)
    assert states == dict.fromkeys(("new", "stopping", "going"), "TERMINATING")
    assert trail(seen, plan, "new") == trail(seen, plan, "stopping") == ["RAY_STOPPED", "TERMINATING"]
    assert trail(seen, plan, "going") == []
    assert plan.actions == (
        Terminate(request_id="t-1-t1", cloud_ids=("c-stopping", "c-new"), instance_ids=("stopping", "new")),
    )


def test_rc12_a_failed_installation_is_terminated():
    seen = world(
        [record("a", S.RAY_INSTALLING), record("b", S.RAY_INSTALLING)],
        install_failures=(InstallFailure(instance_id="a", message="no route to host"),),
    )
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING", "b": "RAY_INSTALLING"}
    assert trail(seen, plan, "a") == ["RAY_INSTALL_FAILED", "TERMINATING"]
    assert after(seen, plan)["a"].history[1].details == "no route to host"


def test_rc13_running_records_whose_machines_are_gone_end():
    """Ours terminates first (the list may be wrong), and waits while the node lives (it drains).

    The report that first shows a death may lack the node that came after it, so the next one decides.
    """
    seen = world(
        [record("a", S.RAY_RUNNING), record("b", S.RAY_RUNNING)],
        machines=[],
        nodes=[node("a", DEAD), node("b", DRAINING)],
    )
    states, plan = tick(seen)
    assert states == {"a": "RAY_STOPPED", "b": "RAY_STOPPING"}
    dead = replace(seen.runtime, nodes=(HEAD_NODE, node("a", DEAD), node("b", DEAD)))
    later = following(seen, plan, runtime=dead)
    states, plan = tick(later)
    assert states == {"a": "TERMINATING", "b": "TERMINATING"}
    later = following(later, plan)
    assert tick(later)[0] == {"a": "TERMINATED", "b": "TERMINATED"}


@pytest.mark.parametrize("state", [S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.RAY_STOPPING])
def test_rc17_a_worker_whose_node_is_no_longer_listed_is_terminated(state):
    """After a grace, which Ray does not have: one report may lack half of the nodes."""
    seen = world([record("lost", state), record("well", S.RAY_RUNNING)], nodes=[node("well")])
    assert tick(seen)[0] == {"lost": state.name, "well": "RAY_RUNNING"}
    seen = replace(seen, memory=unreported("lost"))
    states, plan = tick(seen)
    assert states == {"lost": "TERMINATING", "well": "RAY_RUNNING"}
    assert trail(seen, plan, "lost") == ["RAY_STOPPED", "TERMINATING"]


def test_rc18_a_stopped_record_whose_machine_serves_under_another_ends_without_a_call():
    seen = world(
        [record("old", S.RAY_STOPPED), record("new", S.RAY_RUNNING, cloud_id="c-old")],
        machines=[machine("old")],
        nodes=[node("new", cloud_id="c-old")],
    )
    states, plan = tick(seen)
    assert states == {"old": "TERMINATED", "new": "RAY_RUNNING"}
    assert trail(seen, plan, "old") == ["TERMINATED"]
    assert plan.actions == ()


def test_rc19_only_the_refused_drain_is_taken_back():
    seen = world(
        [record("a", S.RAY_STOP_REQUESTED), record("b", S.RAY_STOP_REQUESTED)],
        drain_failures=(DrainFailure(instance_id="a", message="work arrived"),),
    )
    states, plan = tick(seen)
    assert states == {"a": "RAY_RUNNING", "b": "RAY_STOP_REQUESTED"}
    assert_line("cluster", "refused drain", after(seen, plan)["a"].details)
    assert len(plan.writes) == 1


def test_rc28_an_unknown_machine_and_an_unknown_node_get_records():
    """Ours also notes since when the node's machine is missing from the list: it gets a while to show up."""
    seen = world(machines=[machine("m")], nodes=[node("x")])
    _, plan = tick(seen)
    first, second = created(seen, plan)
    assert (first.state, first.cloud_id, first.node_id) == (S.ALLOCATED, "c-m", None)
    assert (second.state, second.cloud_id, second.node_id) == (S.RAY_RUNNING, "c-x", "n-x")
    assert trail(seen, plan, second.instance_id) == ["ALLOCATED", "RAY_RUNNING"]
    assert (first.missing_since, second.missing_since) == (None, NOW)
    assert (len(plan.writes), plan.actions) == (2, ())


def test_rc29_a_machine_that_is_back_gets_one_new_record_whatever_its_dead_node_says():
    seen = world(machines=[machine("x")], nodes=[node("x", DEAD)])
    _, plan = tick(seen)
    (new,) = plan.writes
    assert (new.state, new.cloud_id, new.node_id) == (S.ALLOCATED, "c-x", None)
    assert plan.memory.ended_nodes == {"n-x": NOW}
    assert plan.actions == ()


def test_rc30_a_restarted_raylet_gets_a_new_record_and_the_machine_stays():
    seen = world(
        [record("old", S.RAY_RUNNING, price_per_hour=2.0)],
        nodes=[node("old", DEAD), node("new", cloud_id="c-old")],
    )
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states == {"old": "TERMINATED", new.instance_id: "RAY_RUNNING"}
    assert trail(seen, plan, "old") == ["RAY_STOPPED", "TERMINATED"]
    assert trail(seen, plan, new.instance_id) == ["ALLOCATED", "RAY_RUNNING"]
    assert (new.cloud_id, new.node_id, new.price_per_hour) == ("c-old", "n-new", 2.0)
    assert plan.actions == ()


def test_rc31_a_fresh_autoscaler_adopts_the_live_node_and_not_the_dead_one():
    """W34: the reference makes a record for the dead node too, and terminates it."""
    seen = world(
        nodes=[node("dead", DEAD, cloud_id="c-x"), node("live", cloud_id="c-x")], machines=[machine("x")]
    )
    _, plan = tick(seen)
    (new,) = plan.writes
    assert (new.state, new.cloud_id, new.node_id) == (S.RAY_RUNNING, "c-x", "n-live")
    assert plan.actions == ()


def test_rc31_dead_nodes_whose_machines_are_gone_cause_nothing():
    """W34: three dead nodes, no useless call."""
    assert unchanged(reconcile(world(nodes=[node(name, DEAD) for name in "abc"], machines=[])))


def test_a_head_that_restarts_takes_over_from_its_old_record():
    """10 A1: in the reference the old head record stays RAY_RUNNING forever."""
    nodes = [
        node("head", DEAD, is_head=True, node_type="head"),
        node("next", is_head=True, node_type="head", cloud_id="c-head"),
    ]
    seen = world([HEAD], machines=[HEAD_MACHINE], nodes=nodes, head=False)
    plan = reconcile(seen)
    (new,) = created(seen, plan)
    assert trail(seen, plan, "head") == ["RAY_STOPPED", "TERMINATED"]
    assert (new.state, new.kind, new.node_type) == (S.RAY_RUNNING, NodeKind.HEAD, "head")
    assert (new.node_id, new.cloud_id) == ("n-next", "c-head")
    assert plan.actions == ()

"""More odd inputs: doubled ids, absurd counts, ports nobody can read. Set aside; the rest continues."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    HEAD,
    HEAD_MACHINE,
    HEAD_NODE,
    S,
    created,
    fine_world,
    machine,
    node,
    record,
    sources,
    tick,
    unchanged,
    world,
)
from tests.support.builders import cloud_instance, demand, gang

from muster.cluster.model import (
    DrainFailure,
    LaunchFailure,
    NodeKind,
    NodeStatus,
    RuntimeReport,
)
from muster.cluster.plan import Reason
from muster.cluster.reconcile import reconcile


def test_a_node_reported_twice_counts_once_and_is_said():
    seen = fine_world(
        [record("a", S.RAY_RUNNING)], nodes=[node("a"), node("a", NodeStatus.DRAINING)], demands=[demand()]
    )
    states, plan = tick(seen)
    assert states["a"] == "RAY_STOPPING"
    assert states["fine"] == "RAY_RUNNING"
    assert sources(plan) == ["node n-a"]


def test_two_records_on_one_vanished_machine_both_end():
    """10 S2: the reference ends one per loop."""
    seen = fine_world([record(name, S.TERMINATING, cloud_id="c-x") for name in "ab"], machines=[])
    assert tick(seen)[0] == {"a": "TERMINATED", "b": "TERMINATED", "fine": "RAY_RUNNING"}


def test_two_records_on_one_machine_are_given_back_in_one_call():
    seen = fine_world(
        [record(name, S.ALLOCATION_TIMEOUT, cloud_id="c-x") for name in "ab"], machines=[machine("x")]
    )
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING", "b": "TERMINATING", "fine": "RAY_RUNNING"}
    assert [a.cloud_ids for a in plan.actions] == [("c-x",)]


def test_a_machine_that_serves_is_not_given_back_for_a_record_that_gave_it_up():
    seen = fine_world(
        [record("dud", S.ALLOCATION_TIMEOUT, cloud_id="c-x"), record("x", S.RAY_RUNNING)], nodes=[node("x")]
    )
    states, plan = tick(seen)
    assert states == {"dud": "TERMINATED", "x": "RAY_RUNNING", "fine": "RAY_RUNNING"}
    assert plan.actions == ()


def test_two_new_nodes_on_one_unknown_machine_get_one_record():
    seen = fine_world(nodes=[node("a", cloud_id="c-x"), node("b", cloud_id="c-x")])
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert (new.node_id, new.cloud_id) == ("n-a", "c-x")
    assert sources(plan) == ["node n-b"]
    assert states["fine"] == "RAY_RUNNING"


@pytest.mark.parametrize("count", [0, -1, 10**10])
def test_a_demand_with_an_absurd_count_is_set_aside_and_the_next_is_served(count):
    seen = fine_world(demands=[demand(count=count, name="odd"), demand(name="good")])
    states, plan = tick(seen)
    assert states["fine"] == "RAY_RUNNING"
    assert [source.split() for source in sources(plan)] == [["demand", "odd"]]
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": 1}]


def test_gangs_that_make_no_sense_are_set_aside_and_the_next_is_served():
    good = gang([{"CPU": 1}], gang_id="good")
    odd = [
        gang([{"CPU": 1}], gang_id=""),
        gang([], gang_id="empty"),
        gang([demand(count=-1)], gang_id="negative"),
        replace(good, gang_id="none", options=()),
        good,
    ]
    seen = fine_world(gangs=[good, *odd])
    plan = reconcile(seen)
    assert [source.partition(" ")[2] for source in sources(plan)] == [
        "(no id)",
        "empty",
        "negative",
        "none",
        "good",
    ]
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": 1}]


def test_a_demand_for_something_nobody_has_is_infeasible_and_the_next_is_served():
    seen = fine_world(demands=[demand({"unobtainium": 1}, name="odd"), demand(name="good")])
    plan = reconcile(seen)
    reasons = {v.subject_id: v.reason for v in plan.verdicts if v.subject.value == "demand"}
    assert reasons == {"odd": Reason.INFEASIBLE, "good": Reason.WAITING_FOR_LAUNCH}
    assert plan.report.infeasible_demands == (demand({"unobtainium": 1}, name="odd"),)


def test_failures_of_things_nobody_knows_are_ignored():
    seen = fine_world(
        launch_failures=(LaunchFailure(request_id="r-x~odd", node_type="nothing"),),
        drain_failures=(DrainFailure(instance_id="nobody"),),
    )
    assert tick(seen)[0] == {"fine": "RAY_RUNNING"}


def test_without_a_machine_list_the_nodes_are_still_followed():
    seen = replace(fine_world([record("r", S.REQUESTED, since=0.0)]), cloud=None)
    states, plan = tick(seen)
    assert states == {"r": "REQUESTED", "fine": "RAY_RUNNING"}
    assert Reason.CLOUD_UNREADABLE in {v.reason for v in plan.verdicts}


def test_without_a_report_the_machines_are_still_followed():
    seen = replace(
        world([record("r", S.REQUESTED), record("a", S.RAY_RUNNING)], machines=[machine("x"), machine("a")]),
        runtime=None,
    )
    states, plan = tick(seen)
    assert states == {"r": "ALLOCATED", "a": "RAY_RUNNING"}
    assert Reason.RUNTIME_UNREADABLE in {v.reason for v in plan.verdicts}


def test_an_empty_world_is_a_quiet_tick():
    plan = reconcile(world(head=False))
    assert unchanged(plan)
    assert plan.quarantined == ()
    empty = world([HEAD], machines=[HEAD_MACHINE], nodes=[HEAD_NODE], head=False)
    assert unchanged(reconcile(replace(empty, runtime=RuntimeReport(nodes=(HEAD_NODE,)))))
    assert unchanged(
        reconcile(replace(empty, cloud={"c-head": cloud_instance("c-head", kind=NodeKind.HEAD)}))
    )

"""One reason for every request and for every machine that exists."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import S, node, record, spec, world
from tests.mistakes.views import assert_line
from tests.support.builders import amounts, demand, node_type

from muster.cluster.model import LaunchLimits, NodeStatus, StopCause
from muster.cluster.plan import Reason, Subject
from muster.cluster.reconcile import reconcile

STILL = LaunchLimits(max_concurrent=0)


def of_nodes(plan):
    return {v.subject_id: v.reason for v in plan.verdicts if v.subject is Subject.NODE}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (S.RAY_STOP_REQUESTED, Reason.LEAVING),
        (S.RAY_STOPPING, Reason.LEAVING),
        (S.TERMINATING, Reason.LEAVING),
        (S.QUEUED, Reason.KEPT_PENDING),
        (S.REQUESTED, Reason.KEPT_PENDING),
        (S.ALLOCATED, Reason.KEPT_PENDING),
        (S.RAY_INSTALLING, Reason.KEPT_PENDING),
        (S.RAY_RUNNING, Reason.KEPT_BUSY),
    ],
)
def test_each_machine_has_one_reason(state, reason):
    plan = reconcile(world([record("a", state)], spec=spec(limits=STILL)))
    assert of_nodes(plan) == {"head": Reason.KEPT_HEAD, "a": reason}
    assert [v.subject for v in plan.verdicts].count(Subject.NODE) == 2


def test_a_machine_given_back_in_this_tick_is_leaving():
    assert of_nodes(reconcile(world([record("a", S.RAY_STOPPED)])))["a"] is Reason.LEAVING


def test_a_lost_machine_is_told_apart_from_one_that_was_drained():
    dead = [node("lost", NodeStatus.DEAD), node("drained", NodeStatus.DEAD)]
    records = [
        record("lost", S.RAY_RUNNING),
        record("drained", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE),
    ]
    plan = reconcile(world(records, nodes=dead))
    told = {v.subject_id: v for v in plan.verdicts if v.subject is Subject.NODE}
    assert (told["lost"].reason, told["drained"].reason) == (Reason.LOST, Reason.LEAVING)
    assert_line("cluster", "lost node", told["lost"].detail)


def test_a_removed_node_says_why():
    idle = node("a", NodeStatus.IDLE, available=amounts({"CPU": 1}), idle_s=400.0)
    plan = reconcile(world([record("a", S.RAY_RUNNING)], nodes=[idle]))
    assert of_nodes(plan)["a"] is Reason.REMOVED_IDLE
    capped = world([record("a", S.RAY_RUNNING)], spec=spec(node_type("cpu", max_nodes=0)))
    assert of_nodes(reconcile(capped))["a"] is Reason.REMOVED_MAX_NODES_PER_TYPE


def test_the_counts_of_a_demands_verdicts_add_up():
    full = spec(node_type("cpu", max_nodes=3), limits=STILL)
    seen = world(
        [record("run", S.RAY_RUNNING), record("come", S.ALLOCATED)],
        nodes=[node("run", available=amounts({"CPU": 1}))],
        demands=[demand(count=5, name="d")],
        spec=full,
    )
    told = {v.reason: v.count for v in reconcile(seen).verdicts if v.subject is Subject.DEMAND}
    assert told == {
        Reason.PLACED: 1,
        Reason.WAITING_FOR_NODE: 1,
        Reason.WAITING_FOR_LAUNCH: 1,
        Reason.BLOCKED_BY_TYPE_LIMIT: 2,
    }


def test_the_cluster_says_what_it_could_not_read():
    seen = replace(world([record("a", S.RAY_STOPPING)]), runtime=None, cloud=None)
    plan = reconcile(seen)
    cluster = [v.reason for v in plan.verdicts if v.subject is Subject.CLUSTER]
    assert cluster == [Reason.CLOUD_UNREADABLE, Reason.RUNTIME_UNREADABLE]
    assert of_nodes(plan) == {"a": Reason.LEAVING}

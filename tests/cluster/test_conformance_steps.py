"""Spec 8.2, RC-14 to RC-16, RC-20 to RC-27 and RC-32 to RC-35: what follows from the world."""

from __future__ import annotations

import math

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
    past,
    record,
    spec,
    tick,
    trail,
    unchanged,
    world,
)
from tests.support.builders import NOW, amounts, demand, gang, node_type

from muster.cluster.model import LaunchLimits, NodeStatus, StopCause, Timeouts
from muster.cluster.plan import (
    Drain,
    Install,
    Launch,
    PendingInstance,
    PendingRequest,
    Reason,
    ScalingReport,
    Terminate,
)
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import FailedLaunch, ProviderTraits

NO_LAUNCHES = LaunchLimits(max_concurrent=0)
ROOMY = node_type("cpu", {"CPU": 1}, max_nodes=5_000)


@pytest.mark.slow
@pytest.mark.parametrize("speed", [0.0, 0.1, 0.5, 1.0, 100.0])
@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize(
    ("allocated", "requested", "running"),
    [
        (0, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (1, 0, 1),
        (1, 1, 1),
        (10, 0, 10),
        (0, 9, 10),
        (10, 10, 10),
        (0, 0, 25),
    ],
)
def test_rc14_launches_follow_speed_and_concurrency(speed, limit, allocated, requested, running):
    others = [record(f"a{i}", S.ALLOCATED) for i in range(allocated)]
    others += [record(f"r{i}", S.REQUESTED) for i in range(requested)]
    others += [record(f"n{i}", S.RAY_RUNNING) for i in range(running)]
    queued = [record(f"q{i}", S.QUEUED, since=NOW - 1000 + i) for i in range(1000)]
    limits = LaunchLimits(upscaling_speed=speed, max_concurrent=limit)
    plan = reconcile(world([*others, *queued], spec=spec(ROOMY, limits=limits)))
    expected = min(max(1, math.ceil(speed * max(running, 1))), max(0, limit - requested))
    assert sorted(w.instance_id for w in plan.writes) == sorted(f"q{i}" for i in range(expected))
    assert {w.state for w in plan.writes} <= {S.REQUESTED}
    ids = tuple(f"q{i}" for i in range(expected))
    launches = (Launch(request_id="t-1-r1", shape={"cpu": expected}, instance_ids=ids),)
    assert plan.actions == (launches if expected else ())


def test_rc15_a_stuck_request_is_asked_again_until_its_retries_are_used_up():
    """With max_concurrent 0, as section 10 says: otherwise the record ends REQUESTED again.

    The one that fails is of another type: a type that failed is backed off, which withdraws its wishes (W24).
    """
    once = past((S.QUEUED, 0), (S.REQUESTED, 1))
    twice = past((S.QUEUED, 0), (S.REQUESTED, 1), (S.QUEUED, 2), (S.REQUESTED, 3))
    limits = LaunchLimits(max_concurrent=0, max_request_retries=1)
    seen = world(
        [
            record("once", S.REQUESTED, history=once),
            record("twice", S.REQUESTED, history=twice, node_type="gpu"),
            record("young", S.REQUESTED, since=NOW - 10),
        ],
        spec=spec(CPU, node_type("gpu", {"GPU": 1}), limits=limits, timeouts=Timeouts(request_s=10)),
    )
    states, plan = tick(seen)
    assert states == {"once": "QUEUED", "twice": "ALLOCATION_FAILED", "young": "REQUESTED"}
    assert after(seen, plan)["once"].launch_request_id == "r-1"
    assert plan.actions == ()


def test_rc16_a_drain_that_does_not_start_is_taken_back():
    seen = world(
        [
            record("stuck", S.RAY_STOP_REQUESTED, since=NOW - 301, stop_cause=StopCause.IDLE),
            record("young", S.RAY_STOP_REQUESTED, since=NOW - 300, stop_cause=StopCause.IDLE),
        ]
    )
    states, plan = tick(seen)
    assert states == {"stuck": "RAY_RUNNING", "young": "RAY_STOP_REQUESTED"}
    back = after(seen, plan)["stuck"]
    assert (back.node_id, back.stop_cause) == ("n-stuck", None)
    assert len(plan.writes) == 1


def test_rc20_stuck_machines_are_given_back():
    seen = world(
        [
            record("allocated", S.ALLOCATED, since=NOW - 11),
            record("installing", S.RAY_INSTALLING, since=NOW - 21),
            record("terminating", S.TERMINATING, since=NOW - 31),
            record("young1", S.ALLOCATED, since=NOW - 10),
            record("young2", S.RAY_INSTALLING, since=NOW - 20),
            record("young3", S.TERMINATING, since=NOW - 30),
        ],
        spec=spec(timeouts=Timeouts(allocate_s=10, install_s=20, terminating_s=30)),
    )
    states, plan = tick(seen)
    assert states == {
        "allocated": "TERMINATING",
        "installing": "TERMINATING",
        "terminating": "TERMINATING",
        "young1": "ALLOCATED",
        "young2": "RAY_INSTALLING",
        "young3": "TERMINATING",
    }
    assert trail(seen, plan, "allocated") == ["ALLOCATION_TIMEOUT", "TERMINATING"]
    assert trail(seen, plan, "installing") == ["RAY_INSTALL_FAILED", "TERMINATING"]
    assert trail(seen, plan, "terminating") == ["TERMINATION_FAILED", "TERMINATING"]
    (action,) = plan.actions
    assert isinstance(action, Terminate)
    assert sorted(action.cloud_ids) == ["c-allocated", "c-installing", "c-terminating"]
    assert len(plan.writes) == 3


@pytest.mark.parametrize("state", [S.RAY_STOPPING, S.QUEUED])
def test_rc21_a_slow_state_is_warned_about_once_and_left_alone(state):
    """Warnings are verdicts here: rules do not log."""
    seen = world([record("slow", state, since=NOW - 91)], spec=spec(limits=NO_LAUNCHES))
    plan = reconcile(seen)
    stuck = [v for v in plan.verdicts if v.reason is Reason.STUCK]
    assert [(v.subject_id, v.detail) for v in stuck] == [("slow", f"{state.name} for 91 s")]
    assert unchanged(plan)


@pytest.mark.parametrize("state", [S.RAY_STOPPING, S.QUEUED])
def test_rc21_there_is_no_warning_up_to_the_interval(state):
    plan = reconcile(world([record("slow", state, since=NOW - 90)], spec=spec(limits=NO_LAUNCHES)))
    assert [v for v in plan.verdicts if v.reason is Reason.STUCK] == []


def test_rc22_states_without_a_limit_may_last_for_ever():
    """Terminal records are set aside if one should ever get here; RAY_RUNNING has no limit."""
    seen = world([record("a", S.RAY_RUNNING, since=-1e9)])
    plan = reconcile(seen)
    assert unchanged(plan)
    assert [v for v in plan.verdicts if v.reason is Reason.STUCK] == []


def test_rc23_the_gate_opens_when_the_head_runs():
    head = record("head", S.ALLOCATED, kind=HEAD.kind, node_type="head")
    closed = world([head], machines=[HEAD_MACHINE], nodes=[], demands=[demand()], head=False)
    plan = reconcile(closed)
    assert unchanged(plan)
    assert [v.reason for v in plan.verdicts if v.subject_id == ""] == [Reason.WAITING_FOR_HEAD]
    opened = world([head], machines=[HEAD_MACHINE], nodes=[HEAD_NODE], demands=[demand()], head=False)
    states, plan = tick(opened)
    assert sorted(states.values()) == ["REQUESTED"]
    assert trail(opened, plan, "head") == ["RAY_RUNNING"]


def test_rc24_the_planners_wishes_become_records_and_drains():
    small, big = node_type("small", {"CPU": 1}), node_type("big", {"CPU": 8})
    huge = gang([{"CPU": 100}], gang_id="huge")
    idle = node("idle", NodeStatus.IDLE, node_type="small", available=amounts({"CPU": 1}), idle_s=301.0)
    seen = world(
        [record("idle", S.RAY_RUNNING, node_type="small")],
        nodes=[idle],
        demands=[demand({"CPU": 8}, 2)],
        gangs=[huge],
        spec=spec(small, big, limits=NO_LAUNCHES),
    )
    states, plan = tick(seen)
    new = created(seen, plan)
    assert [(n.node_type, n.state.name) for n in new] == [("big", "QUEUED"), ("big", "QUEUED")]
    assert states["idle"] == "RAY_STOP_REQUESTED"
    assert "head" not in {w.instance_id for w in plan.writes}
    assert plan.report.infeasible_gangs == (huge,)
    assert plan.report.infeasible_demands == ()
    assert plan.actions == (
        Drain(
            request_id="t-1-d1",
            instance_id="idle",
            node_id="n-idle",
            cause=StopCause.IDLE,
            deadline_s=0.0,
            message="idle for 301 s",
        ),
    )
    assert len(plan.writes) == 3


@pytest.mark.parametrize("state", [S.RAY_STOPPED, S.RAY_INSTALL_FAILED, S.TERMINATION_FAILED])
def test_rc25_what_is_done_with_is_terminated(state):
    seen = world([record("a", state), record("b", S.RAY_RUNNING)])
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING", "b": "RAY_RUNNING"}
    assert plan.actions == (Terminate(request_id="t-1-t1", cloud_ids=("c-a",), instance_ids=("a",)),)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_rc26_only_a_machine_that_is_up_is_set_up_and_only_when_wanted(wanted, running):
    seen = world(
        [record("a", S.ALLOCATED)],
        machines=[machine("a", is_running=running)],
        spec=spec(install_runtime=wanted),
        traits=ProviderTraits(installs_runtime=False),
    )
    states, plan = tick(seen)
    if wanted and running:
        assert states == {"a": "RAY_INSTALLING"}
        assert plan.actions == (
            Install(request_id="t-1-s1", instance_id="a", cloud_id="c-a", node_type="cpu"),
        )
    else:
        assert unchanged(plan)


def test_rc27_the_report_lists_what_is_pending_and_what_failed():
    """W12: wishes never asked for are listed too. W13: failures come from the store's recent ones."""
    failed = FailedLaunch(instance_id="f", node_type="cpu", started_at=1.0, failed_at=2.0, reason="sold out")
    seen = world(
        [
            record("r1", S.REQUESTED, since=NOW - 7),
            record("r2", S.REQUESTED, since=NOW - 7),
            record(
                "again", S.QUEUED, launch_request_id="r-0", history=past((S.REQUESTED, 900), (S.QUEUED, 950))
            ),
            record("never", S.QUEUED),
            record("up", S.ALLOCATED, internal_ip="10.0.0.1", since=NOW - 3),
            record("setup", S.RAY_INSTALLING),
            record("runs", S.RAY_RUNNING),
        ],
        recent_failures=(failed,),
        spec=spec(limits=NO_LAUNCHES),
        runtime_version=17,
    )
    plan = reconcile(seen)
    assert unchanged(plan)
    assert plan.report == ScalingReport(
        seen_runtime_version=17,
        pending_requests=(
            PendingRequest(
                node_type="cpu", machine_type="m5.large", count=2, requested_at=NOW - 7, request_id="r-1"
            ),
            PendingRequest(
                node_type="cpu", machine_type="m5.large", count=1, requested_at=900.0, request_id="r-0"
            ),
            PendingRequest(node_type="cpu", machine_type="m5.large", count=1, requested_at=0.0),
        ),
        pending_instances=(
            PendingInstance(
                instance_id="up", node_type="cpu", machine_type="m5.large", ip="10.0.0.1", details=""
            ),
            PendingInstance(instance_id="setup", node_type="cpu", machine_type="m5.large", ip="", details=""),
        ),
        failed_launches=(replace(failed, machine_type="m5.large"),),
    )


@pytest.mark.parametrize(
    ("state", "end"),
    [
        pytest.param(S.ALLOCATED, "TERMINATING", id="rc32"),
        pytest.param(S.QUEUED, "TERMINATED", id="rc33"),
        pytest.param(S.RAY_INSTALLING, "TERMINATING", id="rc34"),
    ],
)
def test_rc32_to_rc34_a_lowered_maximum_removes_what_is_on_its_way(state, end):
    seen = world(
        [record("extra", state), record("runs", S.RAY_RUNNING)],
        spec=spec(node_type("cpu", {"CPU": 1}, max_nodes=1)),
    )
    states, plan = tick(seen)
    assert states == {"extra": end, "runs": "RAY_RUNNING"}
    assert after(seen, plan)["extra"].stop_cause is StopCause.MAX_NODES_PER_TYPE
    call = Terminate(request_id="t-1-t1", cloud_ids=("c-extra",), instance_ids=("extra",))
    assert plan.actions == ((call,) if end == "TERMINATING" else ())


FULL = node_type("cpu", {"CPU": 1}, max_nodes=3)


def test_rc35_a_full_group_gives_a_place_back_before_it_takes_it_again():
    """At the maximum of 3 with one machine timed out: the deletion comes before the purchase (W20)."""
    seen = world(
        [record("a", S.RAY_RUNNING), record("b", S.RAY_RUNNING), record("dud", S.ALLOCATION_TIMEOUT)],
        demands=[demand()],
        spec=spec(FULL),
    )
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states == {
        "a": "RAY_RUNNING",
        "b": "RAY_RUNNING",
        "dud": "TERMINATING",
        new.instance_id: "REQUESTED",
    }
    assert [type(action) for action in plan.actions] == [Terminate, Launch]
    assert plan.actions[0].cloud_ids == ("c-dud",)
    assert dict(plan.actions[1].shape) == {"cpu": 1}
    second = following(seen, plan)
    assert unchanged(reconcile(second))
    gone = following(second, reconcile(second), cloud={k: m for k, m in seen.cloud.items() if k != "c-dud"})
    assert tick(gone)[0] == {**states, "dud": "TERMINATED"}


def test_rc35_a_machine_that_times_out_now_blocks_its_type_for_a_moment():
    """W24: the first tick only deletes; the purchase follows when the back-off of 5 s is over."""
    seen = world(
        [
            record("a", S.RAY_RUNNING),
            record("b", S.RAY_RUNNING),
            record("dud", S.ALLOCATED, since=NOW - 3601),
        ],
        demands=[demand()],
        spec=spec(FULL),
    )
    states, plan = tick(seen)
    assert states == {"a": "RAY_RUNNING", "b": "RAY_RUNNING", "dud": "TERMINATING"}
    assert [type(action) for action in plan.actions] == [Terminate]
    early = following(seen, plan, seconds=4.9)
    early_plan = reconcile(early)
    assert early_plan.actions == ()
    due = following(early, early_plan, seconds=0.2)
    plan = reconcile(due)
    assert [type(action) for action in plan.actions] == [Launch]
    assert dict(plan.actions[0].shape) == {"cpu": 1}

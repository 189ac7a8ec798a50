"""Ways to stop the reference's loop (spec 9.1 and 10.1): here each is set aside, and the rest continues.

Every world also has the record "fine", whose node has just come up: its progress is asserted each time.
"""

from __future__ import annotations

import pytest
from tests.cluster.worlds import (
    FINE,
    S,
    after,
    created,
    fine_world,
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
from tests.support.builders import NOW, amounts, demand, node_type

from muster.cluster.model import (
    DrainFailure,
    LaunchLimits,
    NodeKind,
    NodeStatus,
    StatusChange,
    StopCause,
)
from muster.cluster.plan import Drain, Launch, Reason, Terminate
from muster.cluster.planner.request import Packing, Removal
from muster.cluster.reconcile import RULES, reconcile
from muster.cluster.snapshot import ProviderTraits

FREE = amounts({"CPU": 1})


# 9.1


def test_w1_a_request_above_a_lowered_maximum_is_cancelled_on_arrival():
    one = spec(node_type("cpu", max_nodes=1))
    seen = fine_world([record("extra", S.REQUESTED)], spec=one)
    states, plan = tick(seen)
    assert states == {"extra": "REQUESTED", "fine": "RAY_RUNNING"}
    cancelled = after(seen, plan)["extra"]
    assert (cancelled.cancelled, cancelled.stop_cause) == (True, StopCause.MAX_NODES_PER_TYPE)
    assert plan.actions == ()
    arrived = following(seen, plan, cloud={**seen.cloud, "c-x": machine("x", request_id="r-1")})
    states, plan = tick(arrived)
    assert states == {"extra": "TERMINATING", "fine": "RAY_RUNNING"}
    assert trail(arrived, plan, "extra") == ["ALLOCATED", "TERMINATING"]
    assert plan.actions == (Terminate(request_id="t-2-t1", cloud_ids=("c-x",), instance_ids=("extra",)),)


def test_w2_minimums_above_the_cluster_maximum_buy_only_what_fits():
    """The head, "fine" and one more make three; nobody is chosen as a victim."""
    greedy = spec(node_type("cpu", min_nodes=9), max_nodes=3, limits=LaunchLimits(upscaling_speed=10.0))
    seen = fine_world(spec=greedy)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states == {"fine": "RAY_RUNNING", new.instance_id: "REQUESTED"}
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": 1}]


def test_w3_one_node_too_many_is_one_victim():
    cap = spec(node_type("cpu", max_nodes=3))
    seen = fine_world(
        [record(name, S.RAY_RUNNING) for name in "abc"], nodes=[node(name) for name in "abc"], spec=cap
    )
    states, plan = tick(seen)
    assert sorted(states.values()) == ["RAY_RUNNING"] * 3 + ["RAY_STOP_REQUESTED"]
    assert [type(action) for action in plan.actions] == [Drain]


def test_w4_a_node_of_a_type_that_left_the_config_is_drained_when_idle():
    records = [record(name, S.RAY_RUNNING, node_type="gone") for name in ("busy", "old")]
    idle = node("old", NodeStatus.IDLE, node_type="gone", idle_s=1.0)
    seen = fine_world(records, nodes=[node("busy", node_type="gone"), idle])
    states, plan = tick(seen)
    assert states == {"busy": "RAY_RUNNING", "old": "RAY_STOP_REQUESTED", "fine": "RAY_RUNNING"}
    (drain,) = plan.actions
    assert (drain.node_id, drain.cause) == ("n-old", StopCause.IDLE)
    assert drain.may_be_refused


def test_w5_a_node_that_drains_while_we_install_is_followed():
    seen = fine_world([record("a", S.RAY_INSTALLING)], nodes=[node("a", NodeStatus.DRAINING)])
    states, plan = tick(seen)
    assert states == {"a": "RAY_STOPPING", "fine": "RAY_RUNNING"}
    assert after(seen, plan)["a"].node_id == "n-a"


def test_w6_a_refused_drain_of_a_node_that_vanished_means_stopped():
    seen = fine_world(
        [record("a", S.RAY_STOP_REQUESTED)],
        drain_failures=(DrainFailure(instance_id="a", message="gone"),),
        memory=unreported("a"),
    )
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING", "fine": "RAY_RUNNING"}
    assert trail(seen, plan, "a") == ["RAY_STOPPED", "TERMINATING"]


def test_w6_a_refused_drain_of_a_node_that_died_means_stopped():
    seen = fine_world(
        [record("a", S.RAY_STOP_REQUESTED)],
        nodes=[node("a", NodeStatus.DEAD)],
        drain_failures=(DrainFailure(instance_id="a", message="gone"),),
    )
    assert tick(seen)[0] == {"a": "TERMINATING", "fine": "RAY_RUNNING"}


def test_w7_a_node_on_a_machine_nobody_lists_is_adopted_or_ignored():
    """Read-only, as section 10 says: the node names its own machine."""
    seen = fine_world(nodes=[node("x", cloud_id=None)], traits=READ_ONLY)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert (new.cloud_id, new.node_id) == ("n-x", "n-x")
    assert states == {"fine": "RAY_RUNNING", new.instance_id: "RAY_RUNNING"}


def test_w8_a_node_already_stopping_is_not_stopped_again():
    cap = spec(node_type("cpu", max_nodes=1))
    stopping = record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.MAX_NODES_PER_TYPE)
    seen = fine_world([stopping], nodes=[node("a")], spec=cap)
    states, plan = tick(seen)
    assert states == {"a": "RAY_STOP_REQUESTED", "fine": "RAY_RUNNING"}
    assert plan.actions == ()


@pytest.mark.parametrize("broken", [rule.__name__ for rule in RULES])
def test_w9_a_rule_that_raises_is_undone_and_the_others_run(broken):
    def failing(draft):
        draft.create(S.QUEUED, "cpu", "half done")
        raise RuntimeError("boom")

    failing.__name__ = broken
    rules = tuple(failing if rule.__name__ == broken else rule for rule in RULES)
    seen = fine_world([record("stopped", S.RAY_STOPPED)])
    plan = reconcile(seen, rules)
    assert [(q.source, q.message) for q in plan.quarantined] == [(f"rule {broken}", "RuntimeError: boom")]
    assert created(seen, plan) == []
    end = {i: r.state.name for i, r in after(seen, plan).items()}
    assert end["fine"] == ("ALLOCATED" if broken == "observe_nodes" else "RAY_RUNNING")
    assert end["stopped"] == ("RAY_STOPPED" if broken == "terminate" else "TERMINATING")


# 10.1


@pytest.mark.parametrize(
    "status", [NodeStatus.RUNNING, NodeStatus.IDLE, NodeStatus.DRAINING, NodeStatus.DEAD]
)
@pytest.mark.parametrize("state", [S.ALLOCATION_TIMEOUT, S.RAY_INSTALL_FAILED])
def test_1_a_node_on_a_machine_that_was_given_up_does_not_save_it(state, status):
    seen = fine_world([record("late", state)], nodes=[node("late", status)])
    states, plan = tick(seen)
    assert states == {"late": "TERMINATING", "fine": "RAY_RUNNING"}
    assert sources(plan) == ["node n-late"]
    states, plan = tick(following(seen, plan))
    assert states == {"late": "TERMINATING", "fine": "RAY_RUNNING"}
    assert (plan.actions, sources(plan)) == ((), [])


READ_ONLY = ProviderTraits(read_only=True, lists_nodes=True)


def test_2_read_only_with_a_list_newer_than_the_report():
    seen = fine_world(machines=[machine("new")], traits=READ_ONLY)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states == {"fine": "RAY_RUNNING", new.instance_id: "ALLOCATED"}
    assert plan.actions == ()


def test_2_read_only_with_a_node_that_is_not_in_the_list():
    seen = fine_world(nodes=[node("x")], traits=READ_ONLY)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states == {"fine": "RAY_RUNNING", new.instance_id: "RAY_RUNNING"}
    assert plan.actions == ()


@pytest.mark.parametrize("state", [S.QUEUED, S.REQUESTED, S.ALLOCATED, S.RAY_INSTALLING])
def test_2_read_only_with_a_pending_record(state):
    seen = fine_world([record("p", state)], demands=[demand(count=5)], traits=READ_ONLY)
    states, plan = tick(seen)
    assert states == {"p": state.name, "fine": "RAY_RUNNING"}
    assert plan.actions == ()
    assert Reason.READ_ONLY in {v.reason for v in plan.verdicts}


@pytest.mark.parametrize("fault", [{"node_type": ""}, {"cloud_id": None}])
def test_3_an_unknown_node_without_type_or_machine_is_set_aside(fault):
    seen = fine_world(nodes=[node("x", **fault)])
    states, plan = tick(seen)
    assert states == {"fine": "RAY_RUNNING"}
    assert sources(plan) == ["node n-x"]


@pytest.mark.parametrize("fault", [{"kind": NodeKind.UNMANAGED}, {"node_type": ""}])
def test_4_a_machine_that_is_not_ours_or_has_no_type_is_set_aside(fault):
    seen = fine_world(machines=[machine("x", **fault)])
    states, plan = tick(seen)
    assert states == {"fine": "RAY_RUNNING"}
    assert sources(plan) == ["machine c-x"]


def test_4_the_node_of_a_machine_that_is_not_ours_is_not_adopted_either():
    seen = fine_world(machines=[machine("x", kind=NodeKind.UNMANAGED)], nodes=[node("x")])
    states, plan = tick(seen)
    assert states == {"fine": "RAY_RUNNING"}
    assert sources(plan) == ["machine c-x"]


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.TERMINATING])
def test_4_a_node_of_unspecified_status_neither_helps_nor_hurts_its_record(state):
    seen = fine_world([record("a", state, node_id="n-a")], nodes=[node("a", NodeStatus.UNSPECIFIED)])
    states, plan = tick(seen)
    assert states == {"a": state.name, "fine": "RAY_RUNNING"}
    assert sources(plan) == ["node n-a"]


def test_4_a_node_of_unspecified_status_whose_record_ended_is_ignored():
    seen = fine_world(nodes=[node("ended", NodeStatus.UNSPECIFIED)])
    states, plan = tick(seen)
    assert states == {"fine": "RAY_RUNNING"}
    assert sources(plan) == ["node n-ended"]


@pytest.mark.parametrize(
    ("speed", "launched"),
    [(float("inf"), 7), (float("nan"), 1), (None, 1), (float("-inf"), 1), ("fast", 1), (-2.0, 1), (1e308, 7)],
)
def test_5_an_upscaling_speed_that_is_no_speed(speed, launched):
    limits = LaunchLimits(upscaling_speed=speed, max_concurrent=7)
    seen = fine_world(demands=[demand(count=9)], spec=spec(limits=limits))
    states, plan = tick(seen)
    assert states["fine"] == "RAY_RUNNING"
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": launched}]


ODD = "record odd"
CLOUDLESS = [S.ALLOCATED, S.RAY_STOPPED, S.ALLOCATION_TIMEOUT, S.RAY_INSTALL_FAILED, S.TERMINATION_FAILED]


@pytest.mark.parametrize("state", [*CLOUDLESS, S.TERMINATING, S.RAY_RUNNING, S.RAY_INSTALLING])
def test_6_a_record_on_the_cloud_without_cloud_id_is_closed(state):
    seen = fine_world([record("odd", state, cloud_id=None)])
    states, plan = tick(seen)
    assert states == {"odd": "TERMINATED", "fine": "RAY_RUNNING"}
    (aside,) = plan.quarantined
    assert (aside.source, aside.message.split()[0]) == (ODD, state.name)
    assert plan.actions == ()


@pytest.mark.parametrize("state", [S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.RAY_STOPPING])
def test_6_a_record_without_node_id_finds_its_node_by_the_machine(state):
    status = NodeStatus.DRAINING if state is S.RAY_STOPPING else NodeStatus.RUNNING
    seen = fine_world([record("odd", state, node_id=None)], nodes=[node("odd", status)])
    states, plan = tick(seen)
    assert states == {"odd": state.name, "fine": "RAY_RUNNING"}
    assert after(seen, plan)["odd"].node_id == "n-odd"
    assert plan.actions == ()


@pytest.mark.parametrize("state", [S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.RAY_STOPPING])
def test_6_a_record_without_node_id_and_without_node_is_reported_and_given_back(state):
    seen = fine_world([record("odd", state, node_id=None)])
    states, plan = tick(seen)
    assert states == {"odd": "TERMINATING", "fine": "RAY_RUNNING"}
    assert sources(plan) == [ODD]


def test_6_a_request_without_launch_id_is_closed_as_failed():
    seen = fine_world([record("odd", S.REQUESTED, launch_request_id=None)])
    states, plan = tick(seen)
    assert states == {"odd": "ALLOCATION_FAILED", "fine": "RAY_RUNNING"}
    assert sources(plan) == [ODD]


@pytest.mark.parametrize("state", [S.QUEUED, S.REQUESTED, S.ALLOCATED])
def test_6_a_record_without_type_is_closed(state):
    seen = fine_world([record("odd", state, node_type="")], machines=[])
    states, plan = tick(seen)
    assert states == {
        "odd": {S.REQUESTED: "ALLOCATION_FAILED"}.get(state, "TERMINATED"),
        "fine": "RAY_RUNNING",
    }
    assert sources(plan) == [ODD]
    assert plan.actions == ()


@pytest.mark.parametrize("state", [S.UNKNOWN, S.TERMINATED, S.ALLOCATION_FAILED])
def test_6_a_live_record_in_no_living_state_is_set_aside_untouched(state):
    seen = fine_world([record("odd", state)])
    states, plan = tick(seen)
    assert states == {"odd": state.name, "fine": "RAY_RUNNING"}
    assert sources(plan) == [ODD]
    assert [w.instance_id for w in plan.writes] == ["fine"]


@pytest.mark.parametrize("history", [(), past((S.QUEUED, 1.0))])
@pytest.mark.parametrize("state", [S.REQUESTED, S.ALLOCATED, S.RAY_STOP_REQUESTED, S.TERMINATING])
def test_7_a_history_that_does_not_say_since_when_starts_the_clock_now(state, history):
    seen = fine_world([record("odd", state, history=history)], nodes=[node("odd")] if state in RUNS else [])
    states, plan = tick(seen)
    assert states == {"odd": state.name, "fine": "RAY_RUNNING"}
    assert sources(plan) == [ODD]
    repaired = after(seen, plan)["odd"]
    assert repaired.history == (
        *history,
        StatusChange(state, NOW, "history was incomplete: counted from here"),
    )
    assert sources(reconcile(following(seen, plan))) == []


RUNS = frozenset({S.RAY_STOP_REQUESTED})


def removing(*names):
    """The rules, with a planner that wants these records gone."""

    def capacity(draft):
        removals = [
            Removal(instance_id=name, node_type="cpu", cause=StopCause.IDLE, details="") for name in names
        ]
        draft.planned.packing = Packing(launch={"cpu": 1}, removals=tuple(removals), resize={"nobody": FREE})

    return tuple(capacity if rule.__name__ == "capacity" else rule for rule in RULES)


GOING = [
    S.RAY_STOP_REQUESTED,
    S.RAY_STOPPING,
    S.RAY_STOPPED,
    S.TERMINATING,
    S.TERMINATION_FAILED,
    S.ALLOCATION_TIMEOUT,
    S.RAY_INSTALL_FAILED,
]


@pytest.mark.parametrize("state", GOING)
def test_8_a_removal_of_what_is_already_leaving_changes_nothing(state):
    status = NodeStatus.DRAINING if state is S.RAY_STOPPING else NodeStatus.RUNNING
    nodes = [node("a", status)] if state in (S.RAY_STOP_REQUESTED, S.RAY_STOPPING) else []
    seen = fine_world([record("a", state)], nodes=nodes)
    asked, plain = reconcile(seen, removing("a")), reconcile(seen)
    assert after(seen, asked)["a"] == after(seen, plain)["a"]
    assert after(seen, asked)["fine"].state is S.RAY_RUNNING
    assert sources(asked) == []
    assert [type(a) for a in asked.actions if isinstance(a, Drain)] == []


@pytest.mark.parametrize("name", ["nobody", "", "head"])
def test_8_a_removal_of_nobody_or_of_the_head_changes_nothing(name):
    seen = fine_world()
    plan = reconcile(seen, removing(name))
    assert after(seen, plan)["fine"].state is S.RAY_RUNNING
    assert [type(action) for action in plan.actions] == [Launch]
    assert "head" not in {w.instance_id for w in plan.writes}


def test_10_nodes_but_no_head_waits_and_says_so():
    seen = world([FINE], nodes=[node("fine")], demands=[demand(count=3)], head=False)
    states, plan = tick(seen)
    assert states == {"fine": "RAY_RUNNING"}
    assert plan.actions == ()
    assert Reason.WAITING_FOR_HEAD in {v.reason for v in plan.verdicts}

"""Nodes and records: running, draining, dead, vanished, restarted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
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

from muster.cluster.model import DrainFailure, InstallFailure, NodeKind, NodeStatus, StopCause
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, ProviderTraits, TypeHealth
from muster.testing.builders import NOW, node_type

DEAD, DRAINING, IDLE, RUNNING = NodeStatus.DEAD, NodeStatus.DRAINING, NodeStatus.IDLE, NodeStatus.RUNNING


@pytest.mark.parametrize(
    ("state", "status", "steps"),
    [
        (S.ALLOCATED, RUNNING, ["RAY_RUNNING"]),
        (S.ALLOCATED, IDLE, ["RAY_RUNNING"]),
        (S.ALLOCATED, DRAINING, ["RAY_STOPPING"]),
        (S.ALLOCATED, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_INSTALLING, RUNNING, ["RAY_RUNNING"]),
        (S.RAY_INSTALLING, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_RUNNING, DRAINING, ["RAY_STOPPING"]),
        (S.RAY_RUNNING, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_STOP_REQUESTED, RUNNING, []),
        (S.RAY_STOP_REQUESTED, DRAINING, ["RAY_STOPPING"]),
        (S.RAY_STOP_REQUESTED, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_STOPPING, RUNNING, []),
        (S.RAY_STOPPING, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_STOPPED, RUNNING, ["TERMINATING"]),
        (S.TERMINATING, RUNNING, []),
        (S.TERMINATING, DEAD, []),
    ],
)
def test_a_record_follows_its_node_and_never_goes_backwards(state, status, steps):
    seen = world([record("a", state, node_id="n-a")], nodes=[node("a", status)])
    assert trail(seen, reconcile(seen), "a") == steps


def test_a_node_is_found_by_its_machine_the_first_time():
    seen = world([record("a", S.ALLOCATED, cloud_id="c-x")], nodes=[node("new", cloud_id="c-x")])
    end = after(seen, reconcile(seen))["a"]
    assert (end.state, end.node_id, end.details) == (S.RAY_RUNNING, "n-new", "its node is running")


def test_read_only_machines_are_named_by_their_nodes():
    seen = world(
        [record("a", S.ALLOCATED, cloud_id="n-a")],
        nodes=[node("a", cloud_id=None)],
        traits=ProviderTraits(read_only=True),
    )
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}


def test_a_second_live_node_on_a_machine_is_set_aside():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[node("a"), node("b", cloud_id="c-a")])
    states, plan = tick(seen)
    assert states == {"a": "RAY_RUNNING"}
    assert [q.message for q in plan.quarantined] == ["machine c-a already has live node n-a"]
    assert unchanged(plan)


def test_a_dead_node_of_an_earlier_life_says_nothing():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[node("a"), node("older", DEAD, cloud_id="c-a")])
    assert unchanged(reconcile(seen))


def test_a_dead_node_known_to_have_ended_does_not_end_the_next_record():
    """The cloud listed the machine late: its record had ended, and a new one was made."""
    seen = world(
        [record("a", S.ALLOCATED)],
        nodes=[node("old", DEAD, cloud_id="c-a")],
        memory=Memory(ended_nodes={"n-old": 1.0}),
    )
    plan = reconcile(seen)
    assert unchanged(plan)
    assert plan.memory.ended_nodes == {"n-old": 1.0}


def test_a_live_node_known_to_have_ended_is_not_adopted_without_its_machine():
    """Its machine was missing for longer than the grace and its record ended: it is not bought back."""
    waiting = record("a", S.RAY_RUNNING, missing_since=NOW - 31.0)
    seen = world([waiting], machines=[], nodes=[node("a")])
    states, plan = tick(seen)
    assert states == {"a": "TERMINATED"}
    assert plan.memory.ended_nodes == {"n-a": NOW}
    again = following(seen, plan)
    assert created(again, reconcile(again)) == []
    listed = following(again, reconcile(again), cloud={**seen.cloud, "c-a": machine("a")})
    (new,) = created(listed, reconcile(listed))
    assert (new.state, new.node_id) == (S.RAY_RUNNING, "n-a")


def test_ended_nodes_are_forgotten_when_the_runtime_forgets_them():
    seen = world(nodes=[node("a", DEAD)], memory=Memory(ended_nodes={"n-a": 1.0, "n-b": 2.0}))
    assert reconcile(seen).memory.ended_nodes == {"n-a": 1.0}


@pytest.mark.parametrize("state", [S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.RAY_STOPPING, S.RAY_STOPPED])
def test_a_restarted_runtime_takes_its_machine_over(state):
    """Also when the old node is no longer listed at all. Type, price and hash stay the machine's."""
    old = record("old", state, node_type="gpu", price_per_hour=2.0, launch_hash="h")
    types = spec(node_type("cpu"), node_type("gpu", price_per_hour=9.0, launch_hash="today"))
    seen = world([old], nodes=[node("new", cloud_id="c-old", node_type="")], spec=types)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states == {"old": "TERMINATED", new.instance_id: "RAY_RUNNING"}
    assert (new.node_type, new.price_per_hour, new.launch_hash) == ("gpu", 2.0, "h")
    assert (new.cloud_id, new.node_id, new.kind) == ("c-old", "n-new", NodeKind.WORKER)
    assert plan.actions == ()


def test_two_restarts_seen_at_once_make_one_record():
    nodes = [node("old", DEAD), node("b", cloud_id="c-old"), node("c", cloud_id="c-old")]
    seen = world([record("old", S.RAY_RUNNING)], nodes=nodes)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert (new.node_id, states["old"]) == ("n-b", "TERMINATED")
    assert [q.source for q in plan.quarantined] == ["node n-c"]


@pytest.mark.parametrize("state", [S.TERMINATING, S.TERMINATION_FAILED])
def test_a_new_node_on_a_machine_that_is_leaving_is_not_taken_over(state):
    seen = world([record("a", state, node_id="n-a")], nodes=[node("new", cloud_id="c-a")])
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING"}
    assert created(seen, plan) == []


def test_the_head_keeps_its_kind_when_its_new_node_does_not_say_so():
    nodes = [node("next", cloud_id="c-head", node_type="head")]
    seen = world([HEAD], machines=[HEAD_MACHINE], nodes=nodes, head=False)
    (new,) = created(seen, reconcile(seen))
    assert (new.kind, new.state) == (NodeKind.HEAD, S.RAY_RUNNING)


def test_the_heads_node_may_be_missing_for_a_while():
    seen = world([HEAD], machines=[HEAD_MACHINE], nodes=[], head=False)
    assert unchanged(reconcile(seen))


def test_a_head_whose_node_died_closes_the_gate_and_stays():
    nodes = [replace(HEAD_NODE, status=DEAD)]
    seen = world([HEAD], machines=[HEAD_MACHINE], nodes=nodes, head=False)
    plan = reconcile(seen)
    assert after(seen, plan)["head"].state is S.RAY_STOPPED
    assert plan.actions == ()
    assert reconcile(following(seen, plan)).actions == ()


# What failed to start or to stop.


def test_an_install_failure_counts_only_while_installing():
    seen = world(
        [record("a", S.ALLOCATED)], install_failures=(InstallFailure(instance_id="a", message="late"),)
    )
    assert unchanged(reconcile(seen))


def test_an_installation_said_to_have_failed_whose_node_runs_has_worked():
    """Spec 2.2: nodes (S5) before install failures (S6). The node may be at work already."""
    failure = InstallFailure(instance_id="a", message="ssh: connection reset")
    seen = world([record("a", S.RAY_INSTALLING)], nodes=[node("a")], install_failures=(failure,))
    assert trail(seen, reconcile(seen), "a") == ["RAY_RUNNING"]


def test_an_install_failure_is_heard_also_when_the_nodes_cannot_be_read():
    failure = InstallFailure(instance_id="a", message="no route")
    seen = replace(world([record("a", S.RAY_INSTALLING)], install_failures=(failure,)), runtime=None)
    assert trail(seen, reconcile(seen), "a") == ["RAY_INSTALL_FAILED", "TERMINATING"]


def test_a_drain_refusal_counts_only_while_it_is_waited_for():
    seen = world([record("a", S.RAY_RUNNING)], drain_failures=(DrainFailure(instance_id="a"),))
    assert unchanged(reconcile(seen))


def test_a_drain_refusal_of_a_node_that_drains_anyway_is_overtaken():
    seen = world(
        [record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)],
        nodes=[node("a", DRAINING)],
        drain_failures=(DrainFailure(instance_id="a"),),
    )
    assert tick(seen)[0] == {"a": "RAY_STOPPING"}


def test_a_drain_refusal_is_heard_also_when_the_nodes_cannot_be_read():
    seen = replace(
        world(
            [record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)],
            drain_failures=(DrainFailure(instance_id="a", message="busy"),),
        ),
        runtime=None,
    )
    states, plan = tick(seen)
    assert states == {"a": "RAY_RUNNING"}
    assert after(seen, plan)["a"].stop_cause is None


def test_without_a_report_no_node_is_missed():
    seen = replace(world([record("a", S.RAY_RUNNING), record("b", S.RAY_STOPPING)]), runtime=None)
    assert unchanged(reconcile(seen))


# A machine that came up says that its type can be had.

ASKED = past((S.QUEUED, 800), (S.REQUESTED, 900), (S.ALLOCATED, 950))


@pytest.mark.parametrize(("failed_at", "forgiven"), [(899.0, True), (900.0, True), (901.0, False)])
def test_a_node_that_came_clears_failures_older_than_its_request(failed_at, forgiven):
    memory = Memory(health={"cpu": TypeHealth(failures=3.0, failed_at=failed_at, blocked_until=0.0)})
    seen = world([record("a", S.ALLOCATED, history=ASKED)], nodes=[node("a")], memory=memory)
    assert ("cpu" not in reconcile(seen).memory.health) is forgiven


def test_a_machine_nobody_asked_for_clears_nothing():
    """A raylet that restarts on an old machine must not end the back-off of a quota failure."""
    memory = Memory(health={"cpu": TypeHealth(failures=3.0, failed_at=1.0, blocked_until=NOW + 60.0)})
    seen = world([record("old", S.RAY_RUNNING)], nodes=[node("new", cloud_id="c-old")], memory=memory)
    plan = reconcile(seen)
    assert len(created(seen, plan)) == 1
    assert plan.memory.health == memory.health


def test_a_report_without_the_heads_own_node_is_taken_for_incomplete():
    """After a restart of the runtime its nodes come back one by one: nobody is given up meanwhile."""
    seen = world([record("a", S.RAY_RUNNING)], machines=[machine("a")], nodes=[])
    blind = replace(seen, runtime=replace(seen.runtime, nodes=()))
    plan = reconcile(blind)
    assert (trail(blind, plan, "a"), plan.actions) == ([], ())
    assert [note.source for note in plan.quarantined] == ["runtime"]
    assert trail(seen, reconcile(seen), "a") == ["RAY_STOPPED", "TERMINATING"]

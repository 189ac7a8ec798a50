"""Every limit of spec 2.4 expires strictly after its time, and only when there was something to look at."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    HEAD_MACHINE,
    S,
    after,
    following,
    node,
    past,
    record,
    spec,
    tick,
    trail,
    unchanged,
    world,
)
from tests.mistakes.views import assert_line
from tests.support.builders import NOW

from muster.cluster.model import LaunchLimits, NodeKind, NodeStatus, NoticePolicy, StopCause, Timeouts
from muster.cluster.plan import Reason
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import ProviderTraits

STILL = LaunchLimits(max_concurrent=0)


def test_the_defaults_are_the_specifications():
    limits, launches = Timeouts(), LaunchLimits()
    assert (limits.request_s, limits.allocate_s, limits.install_s) == (600, 3600, 1800)
    assert (limits.terminating_s, limits.stop_requested_s, limits.warn_s) == (300, 300, 90)
    assert limits.pending_idle_s is None
    assert (launches.max_request_retries, launches.max_concurrent, launches.upscaling_speed) == (3, 10, 0.0)


@pytest.mark.parametrize(
    ("state", "limit", "steps"),
    [
        (S.REQUESTED, 600, ["QUEUED"]),
        (S.ALLOCATED, 3600, ["ALLOCATION_TIMEOUT", "TERMINATING"]),
        (S.RAY_INSTALLING, 1800, ["RAY_INSTALL_FAILED", "TERMINATING"]),
        (S.TERMINATING, 300, ["TERMINATION_FAILED", "TERMINATING"]),
        (S.RAY_STOP_REQUESTED, 300, ["RAY_RUNNING"]),
    ],
)
def test_each_limit_is_strict(state, limit, steps):
    for age, expected in ((limit, []), (limit + 0.001, steps)):
        seen = world([record("a", state, since=NOW - age)], spec=spec(limits=STILL))
        assert trail(seen, reconcile(seen), "a") == expected


@pytest.mark.parametrize(
    ("state", "field"),
    [
        (S.REQUESTED, "request_s"),
        (S.ALLOCATED, "allocate_s"),
        (S.RAY_INSTALLING, "install_s"),
        (S.TERMINATING, "terminating_s"),
        (S.RAY_STOP_REQUESTED, "stop_requested_s"),
    ],
)
def test_each_limit_is_settable_per_cluster(state, field):
    hasty = spec(limits=STILL, timeouts=Timeouts(**{field: 7.0}))
    for age, moves in ((7.0, False), (7.5, True)):
        seen = world([record("a", state, since=NOW - age)], spec=hasty)
        assert bool(trail(seen, reconcile(seen), "a")) is moves


@pytest.mark.parametrize(("attempts", "end"), [(1, "QUEUED"), (3, "QUEUED"), (4, "ALLOCATION_FAILED")])
def test_a_request_is_repeated_three_times(attempts, end):
    story = [(state, at) for at in range(attempts) for state in (S.QUEUED, S.REQUESTED)]
    seen = world([record("a", S.REQUESTED, history=past(*story))], spec=spec(limits=STILL))
    states, plan = tick(seen)
    assert states == {"a": end}
    health = plan.memory.health.get("cpu")
    assert (health.message if health else None) == (
        "no machine within 600 s" if end == "ALLOCATION_FAILED" else None
    )


def test_a_cancelled_request_is_not_repeated():
    seen = world([record("a", S.REQUESTED, since=0.0, cancelled=True)])
    states, plan = tick(seen)
    assert states == {"a": "ALLOCATION_FAILED"}
    assert plan.actions == ()


def test_a_retried_request_is_asked_again_in_the_same_tick():
    """10 A2."""
    seen = world([record("a", S.REQUESTED, since=0.0)])
    assert trail(seen, reconcile(seen), "a") == ["QUEUED", "REQUESTED"]


def test_a_machine_whose_node_never_came_counts_against_its_type():
    seen = world([record("a", S.ALLOCATED, since=NOW - 3601)])
    health = reconcile(seen).memory.health["cpu"]
    assert (health.timed_out_at, health.failures, health.blocked_until) == (NOW, 1.0, NOW + 5.0)
    assert_line("cluster", "node never came", health.message)


def test_w32_the_head_is_never_given_up():
    head = record("head", S.ALLOCATED, since=-1e6, kind=NodeKind.HEAD, node_type="head")
    plan = reconcile(world([head], machines=[HEAD_MACHINE], nodes=[], head=False))
    assert unchanged(plan)
    assert plan.memory.health == {}


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RAY_INSTALLING])
def test_while_nothing_can_be_terminated_no_machine_is_given_up(state):
    """Found by the simulated RayCluster, seed 688: its node came while the cluster was suspended."""
    seen = world(
        [record("a", state, since=NOW - 4000)],
        spec=spec(limits=STILL),
        traits=ProviderTraits(read_only=True),
    )
    assert trail(seen, reconcile(seen), "a") == []


@pytest.mark.parametrize(("state", "limit_s"), [(S.ALLOCATED, 3600.0), (S.RAY_INSTALLING, 1800.0)])
def test_a_time_that_passed_unseen_is_over_at_the_second_report(state, limit_s):
    """World 7200328 of the strangers: the first report after a downtime may be older than the node."""
    seen = world([record("a", state, since=NOW - limit_s + 60.0)], nodes=[])
    states, plan = tick(seen)
    later = following(seen, plan, seconds=100.0)
    states, plan = tick(later)
    assert states == {"a": state.name}
    assert tick(following(later, plan))[0] == {"a": "TERMINATING"}
    assert tick(following(seen, reconcile(seen), seconds=61.0, spec=HASTY))[0] == {"a": "TERMINATING"}


HASTY = spec(limits=STILL, timeouts=Timeouts(listing_grace_s=70.0))


def test_without_a_list_no_request_expires():
    seen = replace(world([record("a", S.REQUESTED, since=0.0)]), cloud=None)
    assert unchanged(reconcile(seen))


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RAY_INSTALLING, S.RAY_STOP_REQUESTED])
def test_without_a_report_no_machine_is_given_up(state):
    seen = replace(world([record("a", state, since=-1e6)]), runtime=None)
    assert unchanged(reconcile(seen))


# Our own drains have an end; the drains of others are their business.


@pytest.mark.parametrize(
    ("cause", "age", "steps"),
    [
        (StopCause.IDLE, 960.0, []),
        (StopCause.IDLE, 960.1, ["RAY_STOPPED", "TERMINATING"]),
        (StopCause.MAX_NODES, 960.1, ["RAY_STOPPED", "TERMINATING"]),
        (None, 1e6, []),
    ],
)
def test_a_drain_of_ours_long_past_its_deadline_is_ended(cause, age, steps):
    seen = world([record("a", S.RAY_STOPPING, since=NOW - age, stop_cause=cause)])
    assert trail(seen, reconcile(seen), "a") == steps


# Warnings are verdicts.


@pytest.mark.parametrize(
    "state", [S.RAY_STOPPING, S.RAY_INSTALL_FAILED, S.RAY_STOPPED, S.TERMINATION_FAILED, S.QUEUED]
)
@pytest.mark.parametrize(("age", "warned"), [(90.0, False), (90.1, True)])
def test_slow_states_are_warned_about(state, age, warned):
    seen = world([record("a", state, since=NOW - age)], spec=spec(limits=STILL))
    stuck = [v for v in reconcile(seen).verdicts if v.reason is Reason.STUCK]
    assert [v.subject_id for v in stuck] == (["a"] if warned else [])


@pytest.mark.parametrize("state", [S.REQUESTED, S.ALLOCATED, S.RAY_RUNNING, S.TERMINATING])
def test_states_with_a_limit_of_their_own_are_not_warned_about(state):
    seen = world([record("a", state, since=NOW - 200.0)])
    assert [v for v in reconcile(seen).verdicts if v.reason is Reason.STUCK] == []


def test_a_drain_that_never_started_leaves_a_dead_node_to_the_other_rule():
    seen = world([record("a", S.RAY_STOP_REQUESTED, since=0.0)], nodes=[node("a", NodeStatus.DEAD)])
    assert trail(seen, reconcile(seen), "a") == ["RAY_STOPPED", "TERMINATING"]
    assert after(seen, reconcile(seen))["a"].state is S.TERMINATING


def test_a_node_under_notice_is_not_given_up_before_the_deadline_that_the_cloud_gave_it():
    policy = NoticePolicy(ahead_s=600.0)
    patient = spec(timeouts=Timeouts(drain_deadline_s=20.0, stopping_s=60.0), notices=policy)
    for cause, limit in ((StopCause.MAX_NODES, 80.0), (StopCause.NOTICE, 660.0)):
        for age, moves in ((limit, False), (limit + 0.001, True)):
            seen = world([record("a", S.RAY_STOPPING, since=NOW - age, stop_cause=cause)], spec=patient)
            assert bool(trail(seen, reconcile(seen), "a")) is moves

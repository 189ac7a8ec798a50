"""A machine whose provider knows why it does not come up is explained at once, and given up sooner."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import S, after, machine, node, record, spec, tick, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, demand, node_type

from muster.cluster.cost import cost_of, price_per_hour
from muster.cluster.model import FailureKind, LaunchLimits, MachineProblem, Timeouts
from muster.cluster.plan import Launch, Reason, Subject, Terminate
from muster.cluster.reconcile import reconcile

GATED = MachineProblem(kind=FailureKind.QUOTA, message="the pod waits for quota")
FULL = MachineProblem(kind=FailureKind.CAPACITY, message="no node has room")
MISTAKE = MachineProblem(kind=FailureKind.CONFIG, message="no such image")
FAST = LaunchLimits(upscaling_speed=10)


def stuck(problem, age_s, **changes):
    return world(
        [record("a", S.ALLOCATED, since=NOW - age_s)], machines=[machine("a", problem=problem)], **changes
    )


def verdicts(plan, reason=Reason.STUCK):
    return [(v.subject_id, v.detail) for v in plan.verdicts if v.reason is reason]


def launches(plan):
    return [dict(action.shape) for action in plan.actions if isinstance(action, Launch)]


def test_it_is_said_within_the_first_tick():
    ((name, said),) = verdicts(reconcile(stuck(FULL, 0.0)))
    assert name == "a"
    assert_line("cluster", "stuck instance", said)


@pytest.mark.parametrize(
    ("problem", "age_s", "state"),
    [
        (FULL, 3600.0, "ALLOCATED"),  # as long as Ray waits
        (FULL, 3600.1, "TERMINATING"),
        (MISTAKE, 180.0, "ALLOCATED"),
        (MISTAKE, 180.1, "TERMINATING"),
        (GATED, 100_000.0, "ALLOCATED"),  # it would lose its place in the queue
    ],
)
def test_it_is_given_up_strictly_after_the_time_of_its_kind(problem, age_s, state):
    states, plan = tick(stuck(problem, age_s))
    assert states["a"] == state
    assert any(isinstance(action, Terminate) for action in plan.actions) == (state == "TERMINATING")


def test_times_are_settings():
    limits = Timeouts(allocate_s=10.0, mistake_s=5.0)
    assert tick(stuck(FULL, 11.0, spec=spec(timeouts=limits)))[0]["a"] == "TERMINATING"
    assert tick(stuck(MISTAKE, 6.0, spec=spec(timeouts=limits)))[0]["a"] == "TERMINATING"


def test_a_gated_machine_is_not_stuck_and_its_type_has_not_failed():
    plan = reconcile(stuck(GATED, 601.0))
    assert (verdicts(plan), plan.memory.health) == ([], {})
    assert verdicts(plan, Reason.WAITING_FOR_QUOTA) == [("a", "ALLOCATED for 601 s: the pod waits for quota")]


def test_its_type_is_blamed_with_the_kind_and_the_reason():
    health = reconcile(stuck(MISTAKE, 181.0)).memory.health["cpu"]
    assert (health.kind, health.message) == (FailureKind.CONFIG, "no such image")


@pytest.mark.parametrize(("problem", "age_s"), [(GATED, 1.0), (MISTAKE, 1.0), (FULL, 60.1)])
def test_another_type_that_fits_serves_the_demand_within_one_tick(problem, age_s):
    other = spec(node_type("cpu"), node_type("other"), limits=FAST)
    assert launches(reconcile(stuck(problem, age_s, demands=[demand(count=5)], spec=other))) == [{"other": 5}]


def test_a_new_node_for_an_unschedulable_machine_gets_the_time_to_come():
    other = spec(node_type("cpu"), node_type("other"), limits=FAST)
    assert launches(reconcile(stuck(FULL, 59.0, demands=[demand()], spec=other))) == []


@pytest.mark.parametrize("problem", [GATED, MISTAKE])
def test_where_nothing_else_fits_the_machine_is_waited_for_and_no_more_are_bought(problem):
    small = node_type("small")
    plan = reconcile(
        stuck(
            problem,
            10.0,
            demands=[demand({"CPU": 4}, count=5)],
            spec=spec(node_type("cpu", {"CPU": 4}), small, limits=FAST),
        )
    )
    assert launches(plan) == []
    assert [v.reason for v in plan.verdicts if v.subject is Subject.DEMAND] == [Reason.BLOCKED_BY_BACKOFF]


def test_where_nothing_else_fits_more_unschedulable_machines_are_bought():
    seen = stuck(FULL, 100.0, demands=[demand(count=3)], spec=spec(limits=FAST))
    assert launches(reconcile(seen)) == [{"cpu": 2}]


def test_a_gated_type_launches_nothing_and_names_the_owner_of_the_gate():
    gated = node_type("cpu", gates=("kueue.k8s.io/quota-exceeded",))
    plan = reconcile(world([], demands=[demand(count=2)], spec=spec(gated, node_type("other"), limits=FAST)))
    assert launches(plan) == [{"other": 2}]
    alone = reconcile(world([], demands=[demand(count=2)], spec=spec(gated, limits=FAST)))
    (blocked,) = [v for v in alone.verdicts if v.subject is Subject.DEMAND]
    assert_line("cluster", "gated type", blocked.detail)
    assert launches(alone) == []


def test_what_was_queued_or_requested_before_the_gate_holds_no_demand():
    gated = node_type("cpu", gates=("kueue.k8s.io/quota-exceeded",))
    both = spec(gated, node_type("other"), limits=FAST)
    waiting = [record("q", S.QUEUED, since=NOW), record("r", S.REQUESTED, since=NOW, launch_request_id="x")]
    states, plan = tick(world(waiting, demands=[demand(count=2)], spec=both))
    assert (states["q"], states["r"], launches(plan)) == ("TERMINATED", "REQUESTED", [{"other": 2}])


def test_it_is_blamed_once_for_each_machine():
    seen = stuck(MISTAKE, 10.0)
    first = reconcile(seen)
    again = reconcile(stuck(MISTAKE, 12.0, memory=first.memory))
    assert again.memory.health["cpu"].failures == first.memory.health["cpu"].failures == 1.0


def test_where_room_may_come_more_are_asked_for():
    seen = stuck(FULL, 10.0, demands=[demand(count=3)], spec=spec(limits=LaunchLimits(upscaling_speed=10)))
    assert [dict(a.shape) for a in reconcile(seen).actions if isinstance(a, Launch)] == [{"cpu": 2}]


def test_a_node_that_came_all_the_same_is_no_problem():
    seen = world(
        [record("a", S.ALLOCATED, since=NOW - 1000)],
        machines=[machine("a", problem=GATED)],
        nodes=[node("a")],
    )
    assert after(seen, reconcile(seen))["a"].state is S.RAY_RUNNING


QUEUED = MachineProblem(kind=FailureKind.CAPACITY, message="waiting for Priority", has_place=True)


def test_a_machine_in_a_queue_is_not_given_up_and_says_what_it_waits_for():
    seen = stuck(QUEUED, 100_000.0)
    assert tick(seen)[0]["a"] == "ALLOCATED"
    plan = reconcile(seen)
    assert (verdicts(plan), plan.memory.health) == ([], {})
    assert [name for name, _ in verdicts(plan, Reason.WAITING_IN_QUEUE)] == ["a"]
    (noted,) = plan.writes
    assert (noted.is_queued, noted.dequeued_at) == (True, None)


@pytest.mark.parametrize(("left_s", "state"), [(3600.0, "ALLOCATED"), (3600.1, "TERMINATING")])
def test_a_machine_that_left_its_queue_has_all_the_time_to_start(left_s, state):
    waited = record("a", S.ALLOCATED, since=NOW - 50_000.0, dequeued_at=NOW - left_s)
    assert tick(world([waited], machines=[machine("a")]))[0]["a"] == state


def test_the_time_in_a_queue_ends_when_a_list_shows_the_machine_without_its_reason():
    waiting = record("a", S.ALLOCATED, since=NOW - 50_000.0, is_queued=True)
    states, plan = tick(world([waiting], machines=[machine("a")]))
    (noted,) = plan.writes
    assert (states["a"], noted.is_queued, noted.dequeued_at) == ("ALLOCATED", False, NOW)


def test_the_node_of_a_machine_may_come_before_a_list_shows_that_it_left_the_queue():
    running = record("a", S.RAY_RUNNING, since=NOW - 10.0, is_queued=True, node_id="n-a")
    seen = world([running], machines=[machine("a")], nodes=[node("a")])
    (noted,) = reconcile(seen).writes
    assert (noted.is_queued, noted.dequeued_at) == (False, NOW)


def test_time_in_a_queue_costs_nothing():
    waiting = record("a", S.ALLOCATED, since=NOW - 3600.0, price_per_hour=2.0, is_queued=True)
    started = replace(waiting, is_queued=False, dequeued_at=NOW - 1800.0)
    assert (cost_of(waiting, NOW), cost_of(started, NOW)) == (0.0, 1.0)
    assert price_per_hour([waiting, started]) == 2.0

"""A machine whose provider knows why it does not come up is explained at once, and given up sooner."""

from __future__ import annotations

import pytest
from tests.cluster.worlds import S, after, machine, node, record, spec, tick, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, demand, node_type

from muster.cluster.model import FailureKind, LaunchLimits, MachineProblem
from muster.cluster.plan import Launch, Reason, Terminate
from muster.cluster.reconcile import reconcile

GATED = MachineProblem(kind=FailureKind.QUOTA, message="the pod waits for quota", give_up_s=600.0)
FULL = MachineProblem(kind=FailureKind.CAPACITY, message="no node has room", give_up_s=900.0)


def stuck(problem, age_s, **changes):
    return world(
        [record("a", S.ALLOCATED, since=NOW - age_s)], machines=[machine("a", problem=problem)], **changes
    )


def verdicts(plan):
    return [(v.subject_id, v.detail) for v in plan.verdicts if v.reason is Reason.STUCK]


def test_it_is_said_within_the_first_tick():
    ((name, said),) = verdicts(reconcile(stuck(FULL, 0.0)))
    assert name == "a"
    assert_line("cluster", "stuck instance", said)


@pytest.mark.parametrize(("age_s", "state"), [(600.0, "ALLOCATED"), (600.1, "TERMINATING")])
def test_it_is_given_up_strictly_after_its_own_time(age_s, state):
    states, plan = tick(stuck(GATED, age_s))
    assert states["a"] == state
    assert any(isinstance(action, Terminate) for action in plan.actions) == (state == "TERMINATING")


def test_its_type_is_blamed_with_the_kind_and_the_reason():
    health = reconcile(stuck(GATED, 601.0)).memory.health["cpu"]
    assert (health.kind, health.message) == (FailureKind.QUOTA, "the pod waits for quota")


def test_while_only_the_user_can_mend_it_no_more_of_the_type_are_bought():
    seen = stuck(GATED, 10.0, demands=[demand(count=5)], spec=spec(limits=LaunchLimits(upscaling_speed=10)))
    plan = reconcile(seen)
    assert not [action for action in plan.actions if isinstance(action, Launch)]
    other = spec(node_type("cpu"), node_type("other"), limits=LaunchLimits(upscaling_speed=10))
    launched = reconcile(stuck(GATED, 10.0, demands=[demand(count=5)], spec=other)).actions
    assert [dict(action.shape) for action in launched if isinstance(action, Launch)] == [{"other": 4}]


def test_it_is_blamed_once_for_each_machine():
    seen = stuck(GATED, 10.0)
    first = reconcile(seen)
    again = reconcile(stuck(GATED, 12.0, memory=first.memory))
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

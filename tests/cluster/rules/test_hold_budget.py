"""A budget is held: what is reserved counts as spent, and workers go before it is used up."""

from __future__ import annotations

from msgspec.structs import replace
from tests.cluster.worlds import S, created, following, machine, node, past, record, spec, states, tick, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, demand, node_type

from muster.cluster.budget_policy import Budget
from muster.cluster.model import Objective, StopCause
from muster.cluster.plan import Drain, Launch, Reason, Subject
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import BudgetPeriod, Memory

PRICED = node_type("cpu", {"CPU": 1}, price_per_hour=3.6, max_nodes=100)  # a tenth of a cent per second
LEAST = 0.001 * (150 + 60 + 60)  # $ of one machine: boot, drain, end


def limited(**budget):
    return spec(PRICED, max_nodes=101, budget=Budget(**budget))


def serving(name, since):
    return record(
        name, S.RAY_RUNNING, price_per_hour=3.6, history=past((S.ALLOCATED, since), (S.RAY_RUNNING, since))
    )


def launched(seen):
    return len(created(seen, reconcile(seen)))


def test_no_more_machines_are_bought_than_fit_under_the_price_per_hour():
    assert launched(world(demands=[demand(count=5)], spec=limited(per_hour=8.0))) == 2


def test_no_more_machines_are_bought_than_the_total_can_pay_back_to_their_end():
    assert launched(world(demands=[demand(count=5)], spec=limited(total=3.5 * LEAST))) == 3


def test_what_is_not_bought_says_that_the_budget_is_the_reason_and_how_much_is_left():
    plan = reconcile(world(demands=[demand(count=5, name="x")], spec=limited(per_hour=8.0)))
    (blocked,) = [v for v in plan.verdicts if v.reason is Reason.BLOCKED_BY_BUDGET]
    assert (blocked.subject, blocked.count) == (Subject.DEMAND, 3)
    assert_line("cluster", "blocked by the budget", blocked.detail)


def test_a_budget_below_one_machine_buys_none_and_says_so():
    plan = reconcile(world(demands=[demand()], spec=limited(total=0.1)))
    assert not [a for a in plan.actions if isinstance(a, Launch)]
    (said,) = [verdict.detail for verdict in plan.verdicts if verdict.reason is Reason.BUDGET]
    assert_line("cluster", "budget below one machine", said)


def test_machines_that_exist_are_reserved_up_to_the_moment_they_can_be_given_back():
    """Spent 0.1, reserved 0.12 for the one that runs: 0.27 for another fit into 0.5, and not into 0.48."""
    records = [serving("a", NOW - 100)]
    assert launched(world(records, demands=[demand()], spec=limited(total=0.5))) == 1
    assert launched(world(records, demands=[demand()], spec=limited(total=0.48))) == 0


def test_workers_are_drained_before_the_budget_is_used_up():
    """At a tenth of a cent per second, releasing takes 120 s; with 30 s of slack they go at 0.25 left."""
    records = [serving("a", NOW - 100), serving("b", NOW - 100)]
    assert tick(world(records, spec=limited(total=0.51)))[0] == dict.fromkeys("ab", "RAY_RUNNING")
    seen = world(records, spec=limited(total=0.49))
    after, plan = tick(seen)
    assert after == dict.fromkeys("ab", "RAY_STOP_REQUESTED")
    drains = [action for action in plan.actions if isinstance(action, Drain)]
    assert {(d.cause, d.deadline_s) for d in drains} == {(StopCause.BUDGET, 60.0)}


def test_a_machine_that_comes_late_and_is_one_too_many_per_hour_is_given_back():
    """Two were to be there at most; the newest goes, and no more than one."""
    records = [serving("a", NOW - 300), serving("b", NOW - 200), serving("c", NOW - 100)]
    after, plan = tick(world(records, spec=limited(per_hour=8.0)))
    assert after == {"a": "RAY_RUNNING", "b": "RAY_RUNNING", "c": "RAY_STOP_REQUESTED"}
    (said,) = [v.detail for v in plan.verdicts if v.reason is Reason.BUDGET]
    assert_line("cluster", "above the budget per hour", said)
    again = following(world(records, spec=limited(per_hour=8.0)), plan, seconds=10)
    assert tick(again)[0] == after


def test_a_machine_that_was_cancelled_and_serves_nevertheless_is_drained_when_the_budget_is_used_up():
    """Its node joined before its machine could be ended."""
    cancelled = replace(serving("a", NOW - 100), cancelled=True, stop_cause=StopCause.BUDGET)
    assert tick(world([cancelled], spec=limited(total=0.2)))[0] == {"a": "RAY_STOP_REQUESTED"}


def test_what_may_run_unseen_on_a_cancelled_machine_is_waited_for_as_long_as_it_is_paid_for():
    """A node that names no machine may run on it. Drain and end are reserved: 0.12 of 0.001 per second."""
    stray = node("z", node_type="cpu", cloud_id="", ip="")
    for total, expected in ((0.25, "ALLOCATED"), (0.11, "TERMINATING")):
        coming = record(
            "a",
            S.ALLOCATED,
            price_per_hour=3.6,
            history=past((S.ALLOCATED, NOW - 100)),
            cancelled=True,
            stop_cause=StopCause.IDLE,
        )
        seen = world([coming], nodes=[stray], spec=limited(total=total))
        after, plan = tick(seen)
        assert after["a"] == expected
    (ended,) = [one for one in plan.writes if one.instance_id == "a"]
    assert ended.stop_cause is StopCause.BUDGET
    assert_line("cluster", "waiting not paid for", ended.details)


def stopping(*changes):
    history = past((S.ALLOCATED, NOW - 900), (S.RAY_RUNNING, NOW - 800), *changes)
    return record("a", changes[-1][0], price_per_hour=3.6, history=history, stop_cause=StopCause.BUDGET)


def test_a_drain_for_which_there_is_no_more_money_ends_with_the_time_it_was_given():
    """Other drains may begin late and have minutes more; this one is paid for 60 s."""
    for given, expected in ((61, "TERMINATING"), (59, "RAY_STOP_REQUESTED")):
        lost = stopping((S.RAY_STOP_REQUESTED, NOW - given))
        assert tick(world([lost], spec=limited(total=0.1)))[0] == {"a": expected}
    slow = stopping((S.RAY_STOP_REQUESTED, NOW - 61), (S.RAY_STOPPING, NOW - 40))
    assert tick(world([slow], spec=limited(total=0.1)))[0] == {"a": "TERMINATING"}


def test_a_machine_may_exist_since_it_was_asked_for():
    """Asked for 100 s before it was listed: 0.1 more are reserved than for one that came at once."""
    late = record(
        "a",
        S.RAY_RUNNING,
        price_per_hour=3.6,
        history=past((S.REQUESTED, NOW - 200), (S.ALLOCATED, NOW - 100), (S.RAY_RUNNING, NOW - 100)),
    )
    assert launched(world([late], demands=[demand()], spec=limited(total=0.6))) == 1
    assert launched(world([late], demands=[demand()], spec=limited(total=0.58))) == 0


def test_a_request_that_nothing_answered_may_have_been_heard_and_one_that_was_refused_was_not():
    """Asked for 800 s and 100 s before it was listed: the first was open for longer than it may be."""
    for open_s, total in ((601, 0.1 + 0.12 + 0.8), (10, 0.1 + 0.12 + 0.1)):
        late = record(
            "a",
            S.RAY_RUNNING,
            price_per_hour=3.6,
            history=past(
                (S.REQUESTED, NOW - 900),
                (S.QUEUED, NOW - 900 + open_s),
                (S.REQUESTED, NOW - 200),
                (S.ALLOCATED, NOW - 100),
                (S.RAY_RUNNING, NOW - 100),
            ),
        )
        spare = LEAST + 0.001
        assert launched(world([late], demands=[demand()], spec=limited(total=total + spare))) == 1
        assert launched(world([late], demands=[demand()], spec=limited(total=total + spare - 0.01))) == 0


def test_nothing_is_bought_while_the_workers_go():
    records = [serving("a", NOW - 100)]
    seen = world(records, demands=[demand(count=3)], spec=limited(total=0.2))
    plan = reconcile(seen)
    again = following(seen, plan, seconds=10)
    assert created(again, reconcile(again)) == []


def test_a_new_period_has_a_new_total():
    spent = Memory(spent=5.0, budget_period=BudgetPeriod(since=NOW - 3000, spent_before=0.0))
    seen = world(demands=[demand()], spec=limited(total=5.0, period_s=3600.0), memory=spent)
    assert launched(seen) == 0
    old = replace(spent, budget_period=BudgetPeriod(since=NOW - 3700, spent_before=0.0))
    later = replace(seen, memory=old)
    plan = reconcile(later)
    assert len(created(later, plan)) == 1
    assert plan.memory.budget_period == BudgetPeriod(since=NOW - 100, spent_before=5.0)


def test_a_type_without_a_price_is_never_bought_under_a_budget():
    free = spec(node_type("cpu", {"CPU": 1}, max_nodes=9), budget=Budget(total=100.0))
    assert launched(world(demands=[demand()], spec=free)) == 0


def test_a_cluster_never_costs_more_than_its_total_and_uses_most_of_it():
    """Machines come after 60 s, go 50 s after their drain and 20 s after their end; demand never ends."""
    total = 4.0
    seen, bill = _next_world(world(spec=limited(total=total)), ()), 0.0
    for _ in range(400):
        plan = reconcile(seen)
        seen = following(seen, plan, seconds=5.0)
        records = [_moved_on(one, seen.now) for name, one in seen.instances.items() if name != "head"]
        bill += 5.0 * 0.001 * sum(_is_paid(one, seen.now) for one in records)
        seen = _next_world(seen, records)
    assert 0.7 * total < bill <= total
    assert states(seen, reconcile(seen)) == {}


def _next_world(seen, records):
    listed = [machine(one.instance_id, node_type="cpu") for one in records if _is_paid(one, seen.now)]
    fresh = world(records, machines=listed, demands=[demand(count=20)], spec=seen.spec)
    return replace(seen, instances=fresh.instances, cloud=fresh.cloud, runtime=fresh.runtime)


def _is_paid(one, now):
    is_ending = one.state is S.TERMINATING and now - one.history[-1].at >= 20.0
    return one.cloud_id is not None and not is_ending


def _moved_on(one, now):
    """The world's answer to what was asked: a launch, a drain."""
    steps = {
        S.REQUESTED: (S.ALLOCATED, 10.0, {"cloud_id": f"c-{one.instance_id}"}),
        S.ALLOCATED: (S.RAY_RUNNING, 50.0, {"node_id": f"n-{one.instance_id}"}),
        S.RAY_STOP_REQUESTED: (S.RAY_STOPPED, 50.0, {}),
    }
    state, after_s, fields = steps.get(one.state, (one.state, float("inf"), {}))
    if now - one.history[-1].at < after_s:
        return one
    return replace(one, state=state, history=(*one.history, *past((state, now))), **fields)


def test_fewer_machines_are_not_larger_ones_that_the_budget_does_not_allow():
    large = node_type("large", {"CPU": 9}, price_per_hour=20.0, max_nodes=9)
    limit = spec(PRICED, large, max_nodes=101, objective=Objective.COST, budget=Budget(per_hour=8.0))
    seen = world(demands=[demand(count=5)], spec=limit)
    assert {each.node_type for each in created(seen, reconcile(seen))} <= {"cpu"}


def test_once_the_budget_is_used_up_that_is_the_reason_of_what_waits():
    plan = reconcile(world(demands=[demand(name="x")], spec=limited(total=0.0)))
    reasons = {v.reason for v in plan.verdicts if v.subject is Subject.DEMAND}
    assert reasons == {Reason.BLOCKED_BY_BUDGET}

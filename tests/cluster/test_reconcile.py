"""The list of rules and what happens when one of them fails."""

from __future__ import annotations

from tests.cluster.worlds import S, after, node, record, spec, world
from tests.support.builders import NOW, amounts, demand

from muster.cluster.plan import Launch
from muster.cluster.reconcile import RULES, reconcile
from muster.cluster.snapshot import Quarantined


def broken(name):
    def rule(draft):
        raise ZeroDivisionError("oops")

    rule.__name__ = name
    return tuple(rule if each.__name__ == name else each for each in RULES)


def test_the_rules_in_order():
    assert [rule.__name__ for rule in RULES] == [
        "repair",
        "observe_cloud",
        "observe_nodes",
        "timeouts",
        "notices",
        "backoff",
        "resize",
        "capacity",
        "defer_launches",
        "consolidate",
        "enforce_budget",
        "scale_down",
        "scale_up",
        "terminate",
        "launch",
        "install",
        "idle_cluster",
        "report",
        "verdicts",
    ]


def test_the_plan_names_its_tick_and_time():
    plan = reconcile(world())
    assert (plan.tick_id, plan.at) == ("t-1", NOW)


def test_no_rules_decide_nothing():
    plan = reconcile(world([record("a", S.RAY_STOPPED)]), ())
    assert (plan.writes, plan.actions, plan.verdicts, plan.quarantined) == ((), (), (), ())


def test_notes_of_the_observer_come_first():
    note = Quarantined(source="config", message="line 7")
    plan = reconcile(world(quarantined=(note,)), broken("repair"))
    assert [q.source.split() for q in plan.quarantined] == [["config"], ["rule", "repair"]]


def test_when_the_nodes_could_not_be_mirrored_no_machine_is_given_up_and_none_is_bought():
    """The node of "late" is there and at work; not having looked must not cost it its machine."""
    seen = world(
        [record("late", S.ALLOCATED, since=-1e6), record("free", S.RAY_RUNNING)],
        nodes=[node("late"), node("free", available=amounts({"CPU": 1}))],
        demands=[demand()],
    )
    plan = reconcile(seen, broken("observe_nodes"))
    assert (plan.writes, plan.actions) == ((), ())
    assert [q.source.split() for q in plan.quarantined] == [["rule", "observe_nodes"]]


def test_when_the_machines_could_not_be_mirrored_no_request_is_repeated():
    """Its machine is listed; asking again would launch a second one."""
    seen = world([record("a", S.REQUESTED, since=0.0)], machines=[])
    plan = reconcile(seen, broken("observe_cloud"))
    assert after(seen, plan)["a"].state is S.REQUESTED
    assert [a for a in plan.actions if isinstance(a, Launch)] == []


def test_when_the_planner_fails_wishes_of_earlier_ticks_are_still_asked_for():
    seen = world([record("q", S.QUEUED)], demands=[demand(count=3)], spec=spec())
    plan = reconcile(seen, broken("capacity"))
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": 1}]
    assert len(plan.writes) == 1

"""What the planner wants becomes wishes, reinstated requests and resizes."""

from __future__ import annotations

from msgspec.structs import replace
from tests.cluster.worlds import S, after, created, machine, node, record, spec, tick, unchanged, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, amounts, demand, node_type

from muster.cluster.model import LaunchLimits, StopCause
from muster.cluster.plan import Resize
from muster.cluster.planner.request import Packing
from muster.cluster.reconcile import RULES, reconcile

STILL = spec(limits=LaunchLimits(max_concurrent=0))
CANCELLED = {"cancelled": True, "stop_cause": StopCause.IDLE}


def planning(**answer):
    """The rules, with a planner that answers this."""

    def capacity(draft):
        draft.planned.packing = Packing(**{"launch": {}, **answer})

    return tuple(capacity if rule.__name__ == "capacity" else rule for rule in RULES)


def test_wishes_carry_price_hash_and_reason():
    priced = replace(
        STILL, node_types=(STILL.node_types[0], node_type("cpu", price_per_hour=2.0, launch_hash="h"))
    )
    seen = world(demands=[demand(count=2)], spec=priced)
    plan = reconcile(seen)
    assert [(r.state, r.price_per_hour, r.launch_hash) for r in plan.writes] == [(S.QUEUED, 2.0, "h")] * 2
    for wish in plan.writes:
        assert_line("cluster", "planned launch", wish.details)
    assert [r.instance_id for r in plan.writes] == ["t-1-i1", "t-1-i2"]


def test_wishes_are_not_repeated_while_they_wait():
    seen = world([record("q", S.QUEUED), record("r", S.REQUESTED)], demands=[demand(count=2)], spec=STILL)
    assert unchanged(reconcile(seen))


def test_a_cancelled_request_is_taken_back_before_a_new_machine_is_wished_for():
    seen = world([record("a", S.REQUESTED, **CANCELLED)], demands=[demand(count=2)], spec=STILL)
    states, plan = tick(seen)
    back = after(seen, plan)["a"]
    assert (back.state, back.cancelled, back.stop_cause) == (S.REQUESTED, False, None)
    assert [r.node_type for r in created(seen, plan)] == ["cpu"]
    assert len(states) == 2


def test_only_as_many_as_wanted_and_only_of_the_type_are_taken_back():
    two = spec(
        node_type("cpu", {"CPU": 1}), node_type("gpu", {"GPU": 1}), limits=LaunchLimits(max_concurrent=0)
    )
    seen = world(
        [
            record("a", S.REQUESTED, **CANCELLED),
            record("b", S.REQUESTED, **CANCELLED),
            record("g", S.REQUESTED, node_type="gpu", **CANCELLED),
        ],
        demands=[demand({"CPU": 1})],
        spec=two,
    )
    plan = reconcile(seen)
    assert [w.instance_id for w in plan.writes] == ["a"]
    assert created(seen, plan) == []


def test_a_reinstated_request_is_kept_when_its_machine_comes():
    seen = world([record("a", S.REQUESTED)], machines=[machine("x", request_id="r-1")], demands=[demand()])
    assert tick(seen)[0] == {"a": "ALLOCATED"}


def test_nothing_is_wished_for_before_the_head_runs():
    seen = world([record("a", S.RAY_RUNNING)], demands=[demand()], head=False)
    assert unchanged(reconcile(seen))


def test_a_resize_is_asked_for_nodes_that_run_and_for_nobody_else():
    bigger = amounts({"CPU": 8})
    seen = world([record("a", S.RAY_RUNNING), record("b", S.ALLOCATED)], nodes=[node("a")])
    plan = reconcile(seen, planning(resize={"a": bigger, "b": bigger, "nobody": bigger}))
    assert plan.actions == (Resize(request_id="t-1-z1", instance_id="a", cloud_id="c-a", desired=bigger),)
    assert plan.quarantined == ()


def test_new_ids_are_made_from_the_ticks_id():
    seen = replace(world(demands=[demand()], spec=STILL), tick_id="t-77")
    assert [r.instance_id for r in reconcile(seen).writes] == ["t-77-i1"]
    assert reconcile(seen).writes[0].history[0].at == NOW

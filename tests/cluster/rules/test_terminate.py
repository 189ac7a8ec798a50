"""Machines are released in one call, retried with pauses, and never the head's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    HEAD_MACHINE,
    S,
    after,
    following,
    machine,
    node,
    past,
    record,
    spec,
    tick,
    unchanged,
    unreported,
    world,
)
from tests.mistakes.views import assert_line
from tests.support.builders import NOW

from muster.cluster.model import Backoff, NodeKind, StopCause
from muster.cluster.plan import Terminate
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import ProviderTraits
from muster.cluster.states import ON_CLOUD


def test_everything_due_goes_in_one_call_of_the_tick():
    states = [S.RAY_STOPPED, S.ALLOCATION_TIMEOUT, S.RAY_INSTALL_FAILED, S.TERMINATION_FAILED]
    seen = world([record(state.name, state) for state in states])
    end, plan = tick(seen)
    assert end == {state.name: "TERMINATING" for state in states}
    ids = tuple(state.name for state in states)
    assert plan.actions == (
        Terminate(request_id="t-1-t1", cloud_ids=tuple(f"c-{i}" for i in ids), instance_ids=ids),
    )


def test_the_record_says_why_it_was_given_back():
    dud = record("a", S.ALLOCATION_TIMEOUT, stop_cause=StopCause.IDLE)
    dud = replace(dud, history=(replace(dud.history[0], details="its node did not come"),))
    seen = world([dud])
    assert_line("cluster", "terminated with its cause", after(seen, reconcile(seen))["a"].details)


@pytest.mark.parametrize("state", [s for s in S if s in ON_CLOUD])
@pytest.mark.parametrize("cancelled", [False, True])
def test_the_head_is_never_given_back(state, cancelled):
    head = record("head", state, since=-1e6, kind=NodeKind.HEAD, node_type="head", cancelled=cancelled)
    seen = world([head], machines=[HEAD_MACHINE], nodes=[], head=False)
    for _ in range(3):
        plan = reconcile(seen)
        assert [a for a in plan.actions if isinstance(a, Terminate)] == []
        seen = following(seen, plan, seconds=1_000.0)


@pytest.mark.parametrize("state", [S.RAY_STOPPED, S.TERMINATION_FAILED])
def test_a_read_only_provider_is_not_asked(state):
    seen = world([record("a", state)], traits=ProviderTraits(read_only=True))
    assert unchanged(reconcile(seen))


def test_a_read_only_cluster_still_closes_records_whose_machine_serves_under_another():
    seen = world(
        [record("old", S.RAY_STOPPED), record("new", S.RAY_RUNNING, cloud_id="c-old")],
        machines=[machine("old")],
        nodes=[node("new", cloud_id="c-old")],
        traits=ProviderTraits(read_only=True),
    )
    assert tick(seen)[0] == {"old": "TERMINATED", "new": "RAY_RUNNING"}


def refused(times, since):
    return [(S.TERMINATING, 0.0), (S.TERMINATION_FAILED, 0.0)] * (times - 1) + [
        (S.TERMINATING, since),
        (S.TERMINATION_FAILED, since),
    ]


@pytest.mark.parametrize(
    ("times", "pause"), [(1, 0.0), (2, 5.0), (3, 10.0), (4, 20.0), (8, 320.0), (9, 600.0), (200, 600.0)]
)
def test_refused_terminations_are_retried_after_doubling_pauses(times, pause):
    for age, end in ((pause, "TERMINATING"), (pause - 0.5, "TERMINATION_FAILED")):
        if age >= 0:
            story = past(*refused(times, NOW - age))
            seen = world([record("a", S.TERMINATION_FAILED, history=story)])
            assert tick(seen)[0] == {"a": end}


def test_the_pauses_follow_the_clusters_policy():
    quick = spec(backoff=Backoff(base_s=1.0, max_s=2.0))
    seen = world([record("a", S.TERMINATION_FAILED, history=past(*refused(9, NOW - 2.0)))], spec=quick)
    assert tick(seen)[0] == {"a": "TERMINATING"}


def test_a_cancelled_machine_waits_for_a_look_at_its_node():
    arrived = record("a", S.ALLOCATED, cancelled=True, stop_cause=StopCause.MAX_NODES)
    blind = replace(world([arrived]), runtime=None)
    assert unchanged(reconcile(blind))
    assert tick(world([arrived]))[0] == {"a": "TERMINATING"}


@pytest.mark.parametrize("is_read", [True, False])
def test_a_cancelled_machine_is_kept_while_the_report_lacks_nodes_that_serve(is_read):
    arrived = record("a", S.ALLOCATED, cancelled=True, stop_cause=StopCause.IDLE)
    partial = world([arrived, record("b", S.RAY_RUNNING)], nodes=[])
    plan = reconcile(partial if is_read else replace(partial, cloud=None))
    assert after(partial, plan)["a"].state is S.ALLOCATED
    assert tick(replace(partial, memory=unreported("b")))[0]["a"] == "TERMINATING"


def test_a_machine_is_not_overdue_while_the_report_lacks_nodes_that_serve():
    late = record("a", S.ALLOCATED, since=NOW - 10_000.0)
    assert tick(world([late, record("b", S.RAY_RUNNING)], nodes=[]))[0]["a"] == "ALLOCATED"
    assert tick(world([late, record("b", S.RAY_RUNNING)], nodes=[node("b")]))[0]["a"] == "TERMINATING"


def test_a_cancelled_machine_whose_node_is_at_work_is_drained_and_not_killed():
    one = spec(max_nodes=2)
    arrived = record("a", S.ALLOCATED, cancelled=True, stop_cause=StopCause.MAX_NODES)
    seen = world([arrived, record("b", S.RAY_RUNNING)], nodes=[node("a"), node("b")], spec=one)
    states, plan = tick(seen)
    assert sorted(states.values()) == ["RAY_RUNNING", "RAY_STOP_REQUESTED"]
    assert [a for a in plan.actions if isinstance(a, Terminate)] == []

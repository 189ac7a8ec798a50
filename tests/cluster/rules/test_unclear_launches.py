"""Launches that cannot be repeated safely: what may exist takes room until lists would show it."""

from __future__ import annotations

import pytest
from tests.cluster.worlds import NOW, S, machine, node, record, spec, world
from tests.support.builders import demand, node_type

from muster.cluster.model import LaunchFailure, LaunchLimits, Timeouts
from muster.cluster.plan import Launch
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, ProviderTraits, UnclearLaunch

WITHIN_S = 600.0
LATE = ProviderTraits(listed_within_s=WITHIN_S)
ONE = spec(node_type("cpu", max_nodes=1), timeouts=Timeouts(request_s=60.0))
UNCLEAR = UnclearLaunch(request_id="r-1", node_type="cpu", until=NOW + 100)


def launched(plan):
    return sum(sum(action.shape.values()) for action in plan.actions if isinstance(action, Launch))


@pytest.mark.parametrize(("until", "count"), [(NOW + 1, 0), (NOW, 1)])
def test_a_machine_that_may_still_be_listed_takes_room(until, count):
    memory = Memory(unclear_launches={"i-9/2": UnclearLaunch(request_id="r-9", node_type="cpu", until=until)})
    seen = world(demands=[demand()], spec=ONE, traits=LATE, memory=memory)
    plan = reconcile(seen)
    assert (launched(plan), len(plan.memory.unclear_launches)) == (count, 1 - count)


@pytest.mark.parametrize(("may_exist", "count"), [(True, 1), (False, 0)])
def test_a_failure_of_unclear_outcome_is_remembered(may_exist, count):
    failure = LaunchFailure(request_id="r-1", node_type="cpu", may_exist=may_exist)
    seen = world([record("a", S.REQUESTED)], launch_failures=(failure,), spec=ONE, traits=LATE)
    plan = reconcile(seen)
    assert plan.writes[0].state is S.ALLOCATION_FAILED
    found = [(one.request_id, one.until) for one in plan.memory.unclear_launches.values()]
    assert found == [("r-1", NOW + WITHIN_S)] * count


def test_a_provider_whose_launches_can_be_repeated_remembers_none():
    failure = LaunchFailure(request_id="r-1", node_type="cpu", may_exist=True)
    plan = reconcile(world([record("a", S.REQUESTED)], launch_failures=(failure,), spec=ONE))
    assert plan.memory.unclear_launches == {}


def test_a_late_machine_gets_a_record_of_its_own_and_room_is_counted_once():
    """It must not be taken for the answer to another request, whose machine is still to come."""
    waiting = record("w", S.REQUESTED, launch_request_id="r-2")
    memory = Memory(unclear_launches={"i-9/2": UNCLEAR})
    late = machine("late", request_id="r-1")
    two = spec(node_type("cpu", max_nodes=2))
    plan = reconcile(world([waiting], machines=[late], spec=two, traits=LATE, memory=memory))
    (adopted,) = plan.writes
    assert (adopted.cloud_id, adopted.state) == ("c-late", S.ALLOCATED)
    assert plan.memory.unclear_launches == {}


@pytest.mark.parametrize(
    ("waited_s", "is_open", "state", "unclear"),
    [
        (WITHIN_S, False, None, 0),
        (WITHIN_S + 1, False, S.REQUESTED, 0),
        (WITHIN_S + 1, True, None, 0),
        (2 * WITHIN_S + 1, True, S.QUEUED, 1),
    ],
)
def test_a_request_expires_when_its_machine_must_be_listed(waited_s, is_open, state, unclear):
    """One that is still in the outbox may happen later: it keeps its room when it is made again."""
    waiting = record("w", S.REQUESTED, since=NOW - waited_s)
    seen = world(
        [waiting], spec=ONE, traits=LATE, demands=[demand()], open_launches=frozenset("w" if is_open else "")
    )
    plan = reconcile(seen)
    assert [one.state for one in plan.writes] == ([] if state is None else [state])
    assert len(plan.memory.unclear_launches) == unclear


def test_a_machine_that_no_list_has_shown_takes_room_after_its_node_is_gone():
    lost = record("a", S.RAY_STOPPED, provisional=True, missing_since=NOW - 1, launch_request_id="r-1")
    seen = world([lost], machines=[], nodes=[], spec=ONE, traits=LATE, demands=[demand()])
    assert launched(reconcile(seen)) == 0
    forgotten = record("a", S.RAY_STOPPED, provisional=True, missing_since=NOW - 99, launch_request_id="r-1")
    memory = Memory(listed_at=NOW - 1)
    plan = reconcile(
        world([forgotten], machines=[], nodes=[], spec=ONE, traits=LATE, demands=[demand()], memory=memory)
    )
    assert (plan.writes[0].state, launched(plan)) == (S.TERMINATED, 0)
    assert len(plan.memory.unclear_launches) == 1


def test_a_cancelled_machine_that_cannot_be_terminated_is_not_replaced():
    """Found by the simulator: a node that names no machine may run there."""
    kept = record("a", S.ALLOCATED, cancelled=True)
    unseen = node("x", cloud_id=None, ip="")
    fast = spec(node_type("cpu", max_nodes=1), limits=LaunchLimits(upscaling_speed=9.0))
    plan = reconcile(world([kept, record("q", S.QUEUED)], nodes=[unseen], spec=fast, demands=[demand()]))
    assert launched(plan) == 0

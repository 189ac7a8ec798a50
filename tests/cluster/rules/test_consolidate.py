"""A node is emptied when its trials can continue elsewhere for less, and `why` has the figures."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import S, created, following, node, record, spec, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, amounts, demand, node_type

from muster.base.forecast import Forecast, RunningTrial
from muster.cluster.budget_policy import Consolidation
from muster.cluster.model import NodeStatus, StopCause
from muster.cluster.plan import Drain
from muster.cluster.reconcile import reconcile

SMALL = node_type("small", {"CPU": 2}, price_per_hour=1.0, max_nodes=9)
LARGE = node_type("large", {"CPU": 8}, price_per_hour=4.0, max_nodes=9)


def priced(**changes):
    return spec(SMALL, LARGE, max_nodes=20, **changes)


def worker(name, of):
    return record(name, S.RAY_RUNNING, node_type=of.name, price_per_hour=of.price_per_hour)


def used(name, of, cpus):
    left = amounts({"CPU": of.resources["CPU"] / 10_000 - cpus})
    return node(name, node_type=of.name, total=of.resources, available=left)


def trial(name, on, cpus=2, **changes):
    usual = {"is_movable": True, "unsaved_s": 30.0, "restart_s": 20.0, "rest_s": 3600.0}
    shape = amounts({"CPU": cpus})
    return RunningTrial(trial_id=name, node_id=f"n-{on}", shape=shape, **{**usual, **changes})


def told(*trials):
    return (Forecast(experiment="e", driver="d", at=NOW, trials=trials),)


def two_half_empty(**changes):
    """Two large nodes with one trial of 2 CPUs each."""
    trials = changes.pop("trials", (trial("x", "a"), trial("y", "b")))
    return world(
        [worker("a", LARGE), worker("b", LARGE)],
        nodes=[used("a", LARGE, 2), used("b", LARGE, 2)],
        spec=priced(**changes),
        forecasts=told(*trials),
    )


def drained(seen):
    return [action.instance_id for action in reconcile(seen).actions if isinstance(action, Drain)]


def why(seen, name):
    return [v.detail for v in reconcile(seen).verdicts if v.subject_id == name][-1]


def test_a_node_is_emptied_into_the_free_room_of_another():
    seen = two_half_empty()
    (drain,) = reconcile(seen).actions
    assert (drain.cause, drain.instance_id) == (StopCause.CONSOLIDATION, "a")
    assert drain.deadline_s == 600.0
    assert " saves $3" in drain.message


def test_a_node_that_is_busy_and_reported_as_all_free_is_no_place_to_move_to():
    """Its room was given to trials a moment ago: they wait no longer, and nobody reports them yet."""
    seen = two_half_empty(trials=(trial("x", "a"),))
    assert drained(seen) == ["a"]
    settling = [used("a", LARGE, 2), used("b", LARGE, 0)]
    assert drained(replace(seen, runtime=replace(seen.runtime, nodes=tuple(settling)))) == []


def test_only_one_of_two_is_emptied_and_the_other_waits_until_it_is_done():
    seen = two_half_empty()
    plan = reconcile(seen)
    assert drained(following(seen, plan)) == []


def test_its_work_is_planned_for_before_it_asks_for_room():
    """The other node has room for it, so nothing is launched."""
    seen = two_half_empty()
    again = following(seen, reconcile(seen))
    assert created(again, reconcile(again)) == []


def test_nothing_moves_that_is_not_worth_twice_the_cost_and_the_reason_is_told():
    brief = (trial("x", "a", rest_s=20.0), trial("y", "b", rest_s=20.0))
    seen = two_half_empty(trials=brief)
    assert drained(seen) == []
    assert_line("cluster", "move not worth it", why(seen, "a"))


def test_eager_moves_for_less():
    """70 s of a quarter node are lost, three quarters of 40 s of a node saved: worth its cost, not twice."""
    shares = (
        trial("x", "a", rest_s=40.0, unsaved_s=50.0),
        trial("y", "b", rest_s=1e6, is_movable=False),
    )
    assert drained(two_half_empty(trials=shares)) == []
    assert drained(two_half_empty(trials=shares, consolidation=Consolidation.EAGER)) == ["a"]


def test_it_can_be_switched_off():
    assert drained(two_half_empty(consolidation=Consolidation.OFF)) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"is_movable": False}, "trial x may not be moved"),
        ({"rest_s": None}, "not known how long trial x will run"),
        ({"moved_at": NOW - 500.0}, "trial x was moved 500 s ago"),
    ],
)
def test_a_node_with_a_trial_that_may_not_move_stays(change, text):
    seen = two_half_empty(trials=(trial("x", "a", **change), trial("y", "b", moved_at=NOW - 1.0)))
    assert drained(seen) == []
    assert text in why(seen, "a")


@pytest.mark.parametrize(("left_s", "expected"), [(7600.0, ["a"]), (7500.0, [])])
def test_a_trial_is_moved_only_if_its_deadline_leaves_twice_what_it_needs_then(left_s, expected):
    """An hour of rest, 20 s to restart and 150 s for another machine: 7,540 s."""
    seen = two_half_empty()
    late = replace(seen, forecasts=tuple(replace(f, deadline=NOW + left_s) for f in seen.forecasts))
    assert drained(late) == expected
    assert expected or " deadline" in why(late, "a")


def test_a_trial_that_would_be_slower_elsewhere_needs_more_time():
    seen = two_half_empty()
    seen = replace(
        seen,
        spec=replace(
            seen.spec,
            node_types=tuple(replace(t, speed=2.0) if t.name == "large" else t for t in seen.spec.node_types),
        ),
        forecasts=tuple(replace(f, deadline=NOW + 10_000.0) for f in seen.forecasts),
    )
    assert drained(seen) == []


def test_a_trial_that_was_moved_longer_ago_may_be_moved_again():
    assert drained(two_half_empty(trials=(trial("x", "a", moved_at=NOW - 601.0), trial("y", "b")))) == ["a"]


def test_a_node_on_which_anything_else_runs_is_never_emptied():
    seen = two_half_empty(trials=(trial("x", "a"),))
    busy = replace(seen.runtime, nodes=tuple(_busier(n) for n in seen.runtime.nodes))
    assert drained(replace(seen, runtime=busy)) == []


def _busier(seen_node):
    return replace(seen_node, available=amounts({"CPU": 4})) if seen_node.node_id == "n-a" else seen_node


def one_on_a_large_node(*more, nodes=(), **changes):
    """One trial of 2 CPUs on a large node: a small one does for a quarter of the price."""
    return world(
        [worker("a", LARGE), *more],
        nodes=[used("a", LARGE, 2), *nodes],
        spec=priced(),
        forecasts=told(trial("x", "a", rest_s=7200.0)),
        **changes,
    )


def test_a_cheaper_machine_is_bought_before_the_node_is_emptied():
    seen = one_on_a_large_node()
    plan = reconcile(seen)
    assert [one.node_type for one in created(seen, plan)] == ["small"]
    assert drained(seen) == []
    assert_line("cluster", "move to a new machine", why(seen, "a"))


def test_only_one_machine_is_bought_while_it_comes():
    seen = one_on_a_large_node()
    again = following(seen, reconcile(seen))
    assert created(again, reconcile(again)) == []
    assert drained(again) == []
    assert re.search(r" awaited: .* free ", why(again, "a"))


def test_the_node_is_emptied_when_the_cheaper_machine_is_up():
    idle = node("s", NodeStatus.IDLE, node_type="small", total=SMALL.resources, idle_s=3.0)
    seen = one_on_a_large_node(worker("s", SMALL), nodes=[replace(idle, available=SMALL.resources)])
    assert drained(seen) == ["a"]


def test_several_trials_go_into_several_machines_that_cost_less_together():
    trials = (trial("x", "a", rest_s=7200.0), trial("y", "a", rest_s=7200.0))
    seen = world([worker("a", LARGE)], nodes=[used("a", LARGE, 4)], spec=priced(), forecasts=told(*trials))
    assert [one.node_type for one in created(seen, reconcile(seen))] == ["small", "small"]


def test_nothing_is_bought_for_a_move_that_other_work_would_take():
    """A request waits that only a small machine can hold: one is launched for it, none for the move."""
    with_disk = replace(SMALL, resources=amounts({"CPU": 2, "disk": 1}))
    seen = one_on_a_large_node(demands=[demand({"CPU": 1, "disk": 1})])
    seen = replace(seen, spec=spec(with_disk, LARGE, max_nodes=20))
    assert [one.node_type for one in created(*planned(seen))] == ["small"]
    assert_line("cluster", "move that others would take", why(seen, "a"))


def planned(seen):
    return seen, reconcile(seen)


def test_an_idle_node_is_no_place_to_move_to():
    idle = node("b", NodeStatus.IDLE, node_type="small", total=SMALL.resources, idle_s=10.0)
    seen = world(
        [worker("a", SMALL), worker("b", SMALL)],
        nodes=[used("a", SMALL, 2), replace(idle, available=SMALL.resources)],
        spec=priced(),
        forecasts=told(trial("x", "a")),
    )
    assert drained(seen) == []


def test_a_machine_that_is_bought_for_others_is_no_reason_to_wait():
    seen = two_half_empty()
    more = replace(seen, runtime=replace(seen.runtime, demands=(demand({"CPU": 8}),)))
    assert drained(more) == ["a"]


def test_room_that_was_planned_for_others_is_not_free():
    seen = two_half_empty()
    more = replace(seen, runtime=replace(seen.runtime, demands=(demand({"CPU": 5}, count=2),)))
    assert drained(more) == []
    assert_line("cluster", "move from a needed node", why(more, "a"))


def test_a_trial_is_not_put_on_a_dear_node_that_would_be_kept_for_it():
    """The trial of the large node ends soon, the other one runs for hours: it would hold the large one."""
    trials = (trial("x", "a", rest_s=7200.0), trial("y", "b", rest_s=60.0))
    seen = world(
        [worker("a", SMALL), worker("b", LARGE)],
        nodes=[used("a", SMALL, 2), used("b", LARGE, 2)],
        spec=priced(),
        forecasts=told(*trials),
    )
    assert "a" not in drained(seen)
    assert_line("cluster", "move that costs more", why(seen, "a"))


def test_a_trial_goes_into_a_dear_node_that_stays_for_others():
    trials = (trial("x", "a", rest_s=1800.0), trial("y", "b", cpus=6, rest_s=36000.0))
    seen = world(
        [worker("a", SMALL), worker("b", LARGE)],
        nodes=[used("a", SMALL, 2), used("b", LARGE, 6)],
        spec=priced(),
        forecasts=told(*trials),
    )
    assert drained(seen) == ["a"]


def test_a_slower_machine_must_be_cheaper_for_the_same_work():
    """A small machine at a fifth of the speed costs more than the large one until the trial is done."""
    slow = replace(SMALL, speed=0.2)
    seen = replace(one_on_a_large_node(), spec=spec(slow, LARGE, max_nodes=20))
    assert created(*planned(seen)) == []
    assert_line("cluster", "move that costs more", why(seen, "a"))


def test_the_trials_of_a_node_that_is_emptied_need_no_room_in_one_place():
    """Two trials of 2 CPUs each go into two rooms of 2 CPUs: nothing is launched for them."""
    going = record(
        "a",
        S.RAY_STOPPING,
        node_type="large",
        price_per_hour=4.0,
        stop_cause=StopCause.CONSOLIDATION,
    )
    seen = world(
        [going, worker("b", LARGE), worker("c", LARGE)],
        nodes=[
            replace(used("a", LARGE, 4), status=NodeStatus.DRAINING),
            used("b", LARGE, 6),
            used("c", LARGE, 6),
        ],
        spec=priced(consolidation=Consolidation.OFF),
        forecasts=told(trial("x", "a"), trial("y", "a")),
    )
    assert created(*planned(seen)) == []

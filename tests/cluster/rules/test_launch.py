"""QUEUED becomes REQUESTED: order, ids, limits (the table of limits is RC-14)."""

from __future__ import annotations

from tests.cluster.worlds import S, after, created, following, machine, node, past, record, spec, tick, world
from tests.support.builders import NOW, demand, node_type

from muster.cluster.model import LaunchFailure, LaunchLimits, Timeouts
from muster.cluster.plan import Launch
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import ProviderTraits

CPU, GPU = node_type("cpu", {"CPU": 1}), node_type("gpu", {"GPU": 1})
FAST = LaunchLimits(upscaling_speed=10.0)


def test_all_new_requests_of_a_tick_share_one_id_and_one_call():
    wishes = [record("a", S.QUEUED), record("b", S.QUEUED, node_type="gpu"), record("c", S.QUEUED)]
    seen = world(wishes, spec=spec(CPU, GPU, limits=FAST))
    states, plan = tick(seen)
    assert set(states.values()) == {"REQUESTED"}
    assert plan.actions == (
        Launch(request_id="t-1-r1", shape={"cpu": 2, "gpu": 1}, instance_ids=("a", "c", "b")),
    )
    assert {r.launch_request_id for r in plan.writes} == {"t-1-r1"}


def test_a_retry_keeps_its_base_id_and_is_a_new_request_to_the_provider():
    again = record("a", S.QUEUED, launch_request_id="r-1", history=past((S.REQUESTED, 1), (S.QUEUED, 2)))
    fresh = record("b", S.QUEUED)
    seen = world([again, fresh], spec=spec(limits=FAST))
    _, plan = tick(seen)
    assert plan.actions == (
        Launch(request_id="r-1~2.t-1", shape={"cpu": 1}, instance_ids=("a",)),
        Launch(request_id="t-1-r1", shape={"cpu": 1}, instance_ids=("b",)),
    )
    end = after(seen, plan)
    assert (end["a"].launch_request_id, end["b"].launch_request_id) == ("r-1", "t-1-r1")


def test_retries_spread_over_ticks_never_share_an_id():
    """An idempotent provider buys nothing for an id it has seen: a shared id would cost a whole timeout."""
    stuck = [record(name, S.REQUESTED, since=0.0) for name in "abc"]
    slow = spec(limits=LaunchLimits(max_concurrent=1), timeouts=Timeouts(request_s=10.0))
    seen = world(stuck, spec=slow)
    ids = []
    for arrived in range(3):
        plan = reconcile(seen)
        (launch,) = plan.actions
        ids.append(launch.request_id)
        machines = {f"c-{arrived}": machine(str(arrived), request_id=launch.request_id)}
        seen = following(seen, plan, cloud={**seen.cloud, **machines})
    assert ids == ["r-1~2.t-1", "r-1~2.t-2", "r-1~2.t-3"]


def test_the_oldest_wish_goes_first_and_a_retried_one_keeps_its_seniority():
    once = past((S.QUEUED, 1), (S.REQUESTED, 2), (S.QUEUED, NOW))
    seen = world(
        [
            record("young", S.QUEUED, since=NOW - 1),
            record("old", S.QUEUED, since=NOW - 9),
            record("retried", S.QUEUED, launch_request_id="r-1", history=once),
        ],
        spec=spec(limits=LaunchLimits(upscaling_speed=2.0)),
    )
    states, _ = tick(seen)
    assert states == {"young": "QUEUED", "old": "REQUESTED", "retried": "REQUESTED"}


def test_the_concurrency_limit_is_shared_by_all_types():
    wishes = [record(f"c{i}", S.QUEUED) for i in range(3)]
    wishes += [record(f"g{i}", S.QUEUED, node_type="gpu") for i in range(3)]
    limits = LaunchLimits(upscaling_speed=10.0, max_concurrent=4)
    _, plan = tick(world(wishes, spec=spec(CPU, GPU, limits=limits)))
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": 3, "gpu": 1}]


def test_at_least_one_of_each_type_may_go_whatever_the_speed():
    wishes = [record(f"c{i}", S.QUEUED) for i in range(3)]
    wishes += [record(f"g{i}", S.QUEUED, node_type="gpu") for i in range(3)]
    _, plan = tick(world(wishes, spec=spec(CPU, GPU)))
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": 1, "gpu": 1}]


def test_a_read_only_provider_is_asked_for_nothing():
    seen = world([record("q", S.QUEUED)], traits=ProviderTraits(read_only=True))
    states, plan = tick(seen)
    assert (states, plan.actions) == ({"q": "QUEUED"}, ())


def test_the_hash_is_the_one_of_the_config_the_launch_is_made_with():
    """W11: stored at launch, so that a later look can tell what is outdated."""
    seen = world([record("q", S.QUEUED, launch_hash="old")], spec=spec(node_type("cpu", launch_hash="new")))
    (launched,) = reconcile(seen).writes
    assert (launched.state, launched.launch_hash) == (S.REQUESTED, "new")


def test_a_request_that_was_called_back_keeps_its_place_until_it_is_resolved():
    """It cannot be called back: launched beside it, a machine of the new type would be one too many."""
    lowered = spec(node_type("cpu", max_nodes=0), node_type("gpu", {"GPU": 1}, max_nodes=5), max_nodes=2)
    seen = world([record("old", S.REQUESTED)], demands=[demand({"GPU": 1})], spec=lowered)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert (states["old"], new.node_type, new.state, plan.actions) == ("REQUESTED", "gpu", S.QUEUED, ())
    assert after(seen, plan)["old"].cancelled
    failure = LaunchFailure(request_id="r-1", node_type="cpu")
    later = following(seen, plan, launch_failures=(failure,))
    assert [dict(action.shape) for action in reconcile(later).actions] == [{"gpu": 1}]


def test_a_node_that_may_not_be_ended_yet_keeps_its_place_when_its_type_is_no_longer_wanted():
    unseen = record("a", S.RAY_RUNNING, provisional=True, missing_since=NOW, launch_request_id="r-1")
    lowered = spec(node_type("cpu", max_nodes=0), node_type("gpu", {"GPU": 1}, max_nodes=5), max_nodes=2)
    seen = world([unseen], machines=[], demands=[demand({"GPU": 1})], spec=lowered)
    plan = reconcile(seen)
    assert (created(seen, plan), plan.actions) == ([], ())


def test_somebodys_own_node_takes_no_place_of_ours():
    theirs = record("x", S.RAY_RUNNING, provisional=True, missing_since=NOW)
    one = spec(node_type("cpu", {"CPU": 1}, max_nodes=1), limits=FAST)
    seen = world([theirs, record("q", S.QUEUED)], machines=[], nodes=[node("x")], spec=one)
    assert tick(seen)[0]["q"] == "REQUESTED"

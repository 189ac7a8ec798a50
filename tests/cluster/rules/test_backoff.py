"""Stockouts in seconds: a type that failed is left alone, and the same tick falls to the next best."""

from __future__ import annotations

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import S, after, created, following, record, spec, tick, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, demand, node_type

from muster.cluster.controller import ClusterController
from muster.cluster.model import Backoff, FailureKind, LaunchFailure, LaunchLimits
from muster.cluster.plan import Launch, Reason, Subject
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, TypeHealth
from muster.errors import CapacityExhausted, ProviderDenied, ProviderMisconfigured, QuotaExceeded, Throttled

FAST = LaunchLimits(upscaling_speed=10.0)
CHEAP = node_type("cheap", {"CPU": 4}, price_per_hour=1.0)
MIDDLE = node_type("middle", {"CPU": 4}, price_per_hour=2.0)
DEAR = node_type("dear", {"CPU": 4}, price_per_hour=4.0)
PRICED = spec(DEAR, CHEAP, MIDDLE, limits=FAST)


def refusal(name, kind=FailureKind.CAPACITY, request="r-1"):
    return LaunchFailure(request_id=request, node_type=name, kind=kind, message="sold out")


def shapes(plan):
    return [dict(action.shape) for action in plan.actions if isinstance(action, Launch)]


def blocked(kind=FailureKind.CAPACITY, until=NOW + 10.0):
    return TypeHealth(failures=1.0, failed_at=NOW, blocked_until=until, kind=kind, message="sold out")


def test_a_refusal_of_the_cheapest_type_buys_the_next_best_in_the_same_tick():
    seen = world(
        [record("a", S.REQUESTED, node_type="cheap")],
        demands=[demand({"CPU": 4})],
        launch_failures=(refusal("cheap"),),
        spec=PRICED,
    )
    states, plan = tick(seen)
    assert states["a"] == "ALLOCATION_FAILED"
    assert shapes(plan) == [{"middle": 1}]


def test_types_are_tried_one_after_the_other_and_the_first_comes_back():
    seen = world(demands=[demand({"CPU": 4})], spec=PRICED)
    launched = []
    for _ in range(4):
        plan = reconcile(seen)
        (shape,) = shapes(plan) or [{}]
        launched.append(shape)
        failures = [refusal(n, request=a.request_id) for a in plan.actions for n in a.shape]
        seen = following(seen, plan, seconds=1.0, launch_failures=tuple(failures))
    assert launched == [{"cheap": 1}, {"middle": 1}, {"dear": 1}, {}]
    later = following(seen, reconcile(seen), seconds=3.0)  # 5 s after the refusal of the cheapest
    assert shapes(reconcile(later)) == [{"cheap": 1}]


def test_with_rays_rule_a_refused_type_is_passed_over_too():
    plain = spec(node_type("small", {"CPU": 1}), node_type("big", {"CPU": 4}), limits=FAST)
    seen = world(
        [record("a", S.REQUESTED, node_type="small")],
        demands=[demand({"CPU": 1})],
        launch_failures=(refusal("small"),),
        spec=plain,
    )
    assert shapes(reconcile(seen)) == [{"big": 1}]


def test_wishes_for_a_type_that_just_failed_are_withdrawn_and_planned_elsewhere():
    seen = world(
        [record("a", S.REQUESTED, node_type="cheap"), record("q", S.QUEUED, node_type="cheap")],
        demands=[demand({"CPU": 4}, 2)],
        launch_failures=(refusal("cheap"),),
        spec=PRICED,
    )
    states, plan = tick(seen)
    assert (states["a"], states["q"]) == ("ALLOCATION_FAILED", "TERMINATED")
    assert_line("cluster", "withdrawn request", after(seen, plan)["q"].details)
    assert shapes(plan) == [{"middle": 2}]


def test_a_type_whose_pause_is_over_keeps_its_wishes():
    memory = Memory(health={"cpu": blocked(until=NOW)})
    states, plan = tick(world([record("q", S.QUEUED)], memory=memory))
    assert states == {"q": "REQUESTED"}
    assert shapes(plan) == [{"cpu": 1}]


def test_requests_under_way_are_not_withdrawn():
    states, _ = tick(world([record("r", S.REQUESTED)], memory=Memory(health={"cpu": blocked()})))
    assert states == {"r": "REQUESTED"}


def test_minimums_wait_for_the_back_off_too():
    minimum = spec(node_type("cpu", min_nodes=2), limits=FAST)
    seen = world(spec=minimum, memory=Memory(health={"cpu": blocked()}))
    plan = reconcile(seen)
    assert created(seen, plan) == []
    later = following(seen, plan, seconds=10.0)
    assert shapes(reconcile(later)) == [{"cpu": 2}]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailureKind.CAPACITY, Reason.TYPE_BACKED_OFF),
        (FailureKind.THROTTLED, Reason.TYPE_BACKED_OFF),
        (FailureKind.UNKNOWN, Reason.TYPE_BACKED_OFF),
        (FailureKind.QUOTA, Reason.TYPE_NEEDS_USER_ACTION),
        (FailureKind.PERMISSION, Reason.TYPE_NEEDS_USER_ACTION),
        (FailureKind.CONFIG, Reason.TYPE_NEEDS_USER_ACTION),
    ],
)
def test_a_person_can_read_why_a_type_is_not_bought(kind, reason):
    seen = world(demands=[demand()], memory=Memory(health={"cpu": blocked(kind)}))
    plan = reconcile(seen)
    told = {v.subject_id: v for v in plan.verdicts if v.subject is Subject.NODE_TYPE}
    assert told["cpu"].reason is reason
    assert "sold out" in told["cpu"].detail
    (waiting,) = (v for v in plan.verdicts if v.subject is Subject.DEMAND)
    assert waiting.reason is Reason.BLOCKED_BY_BACKOFF


def run_refused(error, ticks, every_s=5.0):
    """The number of launch calls when each is refused for `ticks` ticks."""
    stage = Stage(wishes=spec(backoff=Backoff()))
    stage.runtime.demands = [demand(count=3)]
    stage.provider.answers["launch"] = error
    loop = ClusterController(stage.ports, stage.ambient)
    for _ in range(ticks):
        loop.tick()
        stage.clock.advance(every_s)
    return len(stage.provider.called("launch"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "calls"),
    [
        # 1000 s: pauses of 5, 10, 20, 40, 80, 160, 320 and 600 s, each seen by the tick after it.
        (CapacityExhausted("sold out"), 8),
        (Throttled("slow down"), 8),
        # Pauses of 60, 120, 240, 480 and 600 s.
        (QuotaExceeded("0 of 0"), 5),
        (ProviderDenied("no credentials"), 5),
        (ProviderMisconfigured("no such image"), 5),
    ],
)
def test_200_ticks_of_refusals_are_no_hot_loop(error, calls):
    assert run_refused(error, 200) == calls

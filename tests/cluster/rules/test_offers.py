"""Offers through whole ticks: launches, refusals, back-off per offer, what records keep."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import S, after, created, following, machine, node, past, record, spec, tick, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, demand, node_type, selector

from muster.cluster.model import FailureKind, LaunchFailure, LaunchLimits, Offer, Timeouts
from muster.cluster.plan import Install, Launch, Reason, Subject
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, ProviderTraits, TypeHealth
from muster.cluster.status import offer_statuses

CHEAP = Offer(zone="a", market="spot", price_per_hour=1.0, billing_minimum_s=60.0)
NEXT = Offer(zone="b", market="spot", price_per_hour=2.0)
DEAR = Offer(zone="a", market="on-demand", price_per_hour=4.0)
GPU = node_type("gpu", {"CPU": 4}, offers=(DEAR, CHEAP, NEXT))
FAST = LaunchLimits(upscaling_speed=10.0)
TRAITS = ProviderTraits(buys_offers=True)


def offered(records=(), *, known=GPU, wanted=1, **changes):
    demands = [demand({"CPU": 4}, wanted)] if wanted else []
    types = changes.pop("types", (known,))
    return world(
        records, **{"spec": spec(*types, limits=FAST), "demands": demands, "traits": TRAITS, **changes}
    )


def launches(plan):
    return [(action.offer, dict(action.shape)) for action in plan.actions if isinstance(action, Launch)]


def asked(name="a", offer=CHEAP, **changes):
    return record(
        name, S.REQUESTED, node_type="gpu", offer=offer, price_per_hour=offer.price_per_hour, **changes
    )


def refused(kind=FailureKind.CAPACITY, offer=""):
    return (LaunchFailure(request_id="r-1", node_type="gpu", kind=kind, message="none", offer=offer),)


def blocked(*names):
    return Memory(
        health={n: TypeHealth(failures=1.0, blocked_until=NOW + 60.0, message="none") for n in names}
    )


def test_a_launch_names_its_offer_and_the_record_keeps_it_with_its_price():
    seen = offered()
    plan = reconcile(seen)
    (launched,) = created(seen, plan)
    assert launches(plan) == [(CHEAP, {"gpu": 1})]
    assert (launched.offer, launched.price_per_hour) == (CHEAP, 1.0)
    assert_line("cluster", "launch of an offer", launched.details)


def test_each_offer_has_a_call_of_its_own_and_types_without_offers_share_one():
    few = replace(GPU, offers=(replace(CHEAP, max_nodes=1), NEXT))
    plain = [node_type(name, {name: 1}) for name in ("x", "y")]
    demands = [demand({"CPU": 4}, 3), demand({"x": 1}), demand({"y": 1})]
    plan = reconcile(offered(types=(few, *plain), demands=demands))
    assert launches(plan) == [(few.offers[0], {"gpu": 1}), (NEXT, {"gpu": 2}), (None, {"x": 1, "y": 1})]
    assert len({action.request_id for action in plan.actions}) == 3


@pytest.mark.parametrize("kind", [FailureKind.CAPACITY, FailureKind.UNKNOWN])
def test_a_stock_out_of_an_offer_buys_from_the_next_in_the_same_tick(kind):
    plan = reconcile(offered([asked()], launch_failures=refused(kind)))
    assert launches(plan) == [(NEXT, {"gpu": 1})]
    assert [name for name, health in plan.memory.health.items() if health.blocked_until > NOW] == [
        "gpu a/spot"
    ]


def empty(message="none"):
    return (
        LaunchFailure(
            request_id="r-1", node_type="gpu", kind=FailureKind.CAPACITY, message=message, pause_s=180.0
        ),
    )


def test_a_stock_that_is_empty_again_is_left_alone_for_longer_and_why_says_so():
    health = TypeHealth(failures=2.0, failed_at=NOW - 400.0, blocked_until=NOW, kind=FailureKind.CAPACITY)
    seen = offered([asked()], launch_failures=empty(), memory=Memory(health={"gpu a/spot": health}))
    plan = reconcile(seen)
    known = plan.memory.health["gpu a/spot"]
    assert (known.failures, known.blocked_until) == (3.0, NOW + 720.0)
    rows = {row.zone: row for row in offer_statuses((GPU,), (), plan.memory, NOW) if row.market == "spot"}
    assert rows["a"].blocked_until == NOW + 720.0
    assert_line("cluster", "stock empty 3 times", rows["a"].message)
    assert rows["b"].blocked_until is None


@pytest.mark.parametrize(
    ("failed_at", "left"), [(NOW - 500.0, 2.0), (NOW + 1.0, 4.0)], ids=["asked later", "asked before"]
)
def test_a_machine_that_was_asked_for_after_the_refusal_halves_what_is_remembered(failed_at, left):
    health = TypeHealth(failures=4.0, failed_at=failed_at, blocked_until=NOW, kind=FailureKind.CAPACITY)
    came = machine("a", node_type="gpu", request_id="r-1", zone="a", market="spot")
    seen = offered([asked()], wanted=0, machines=[came], memory=Memory(health={"gpu a/spot": health}))
    assert reconcile(seen).memory.health["gpu a/spot"].failures == left


def test_offer_after_offer_is_tried_until_one_sells():
    seen, tried = offered([asked()], launch_failures=refused()), []
    for _ in range(2):
        plan = reconcile(seen)
        (action,) = plan.actions
        tried.append(action.offer.name)
        failure = LaunchFailure(
            request_id=action.request_id, node_type="gpu", kind=FailureKind.CAPACITY, message="none"
        )
        seen = following(seen, plan, seconds=1.0, launch_failures=(failure,))
    assert tried == ["b/spot", "a/on-demand"]
    assert launches(reconcile(seen)) == []  # all three are backed off


@pytest.mark.parametrize("kind", [FailureKind.QUOTA, FailureKind.PERMISSION, FailureKind.CONFIG])
def test_what_a_user_must_mend_closes_the_type_unless_the_failure_names_the_offer(kind):
    of_type = reconcile(offered([asked()], launch_failures=refused(kind)))
    assert (launches(of_type), list(of_type.memory.health)) == ([], ["gpu"])
    of_offer = reconcile(offered([asked()], launch_failures=refused(kind, offer="a/spot")))
    assert (launches(of_offer), list(of_offer.memory.health)) == ([(NEXT, {"gpu": 1})], ["gpu a/spot"])


def test_a_record_that_waits_is_bought_from_what_is_cheapest_at_its_launch():
    waits = record("w", S.QUEUED, node_type="gpu")
    assert launches(reconcile(offered([waits]))) == [(CHEAP, {"gpu": 1})]
    assert launches(reconcile(offered([waits], memory=blocked("gpu a/spot")))) == [(NEXT, {"gpu": 1})]
    cheaper = replace(GPU, offers=(replace(DEAR, price_per_hour=0.5), CHEAP, NEXT))
    assert launches(reconcile(offered([waits], known=cheaper)))[0][0].name == "a/on-demand"


def test_waiting_records_that_the_open_offers_cannot_hold_are_withdrawn_for_another_type():
    few = replace(GPU, offers=(replace(NEXT, max_nodes=1), CHEAP))
    other = node_type("other", {"CPU": 4}, price_per_hour=9.0)
    waits = [record(name, S.QUEUED, node_type="gpu") for name in "vw"]
    seen = offered(waits, types=(few, other), wanted=2, memory=blocked("gpu a/spot"))
    states, plan = tick(seen)
    assert (states["v"], states["w"]) == ("REQUESTED", "TERMINATED")
    assert launches(plan) == [(few.offers[0], {"gpu": 1}), (None, {"other": 1})]


def repeated(offer=CHEAP):
    steps = past((S.QUEUED, 0), (S.REQUESTED, 1), (S.QUEUED, 2))
    return record("a", S.QUEUED, node_type="gpu", offer=offer, launch_request_id="r-1", history=steps)


def test_a_repeated_request_keeps_its_offer_at_todays_price():
    today = replace(GPU, offers=(DEAR, replace(CHEAP, price_per_hour=1.5), replace(NEXT, price_per_hour=0.1)))
    seen = offered([repeated()], known=today)
    plan = reconcile(seen)
    assert launches(plan) == [(today.offers[1], {"gpu": 1})]
    assert after(seen, plan)["a"].price_per_hour == 1.5


@pytest.mark.parametrize("gone", [True, False])
def test_a_repeated_request_is_withdrawn_when_its_offer_is_gone_or_backed_off(gone):
    known = replace(GPU, offers=(NEXT, DEAR)) if gone else GPU
    seen = offered([repeated()], known=known, memory=Memory() if gone else blocked("gpu a/spot"))
    states, plan = tick(seen)
    assert states["a"] == "TERMINATED"
    assert launches(plan) == [(NEXT, {"gpu": 1})]


def test_machines_on_their_way_and_running_count_for_the_maximum_of_their_offer():
    few = replace(GPU, offers=(replace(CHEAP, max_nodes=2), NEXT))
    mine = [asked("a"), record("b", S.RAY_RUNNING, node_type="gpu", offer=CHEAP)]
    plan = reconcile(offered(mine, known=few, wanted=2))
    assert launches(plan) == [(NEXT, {"gpu": 1})]


def test_a_request_that_never_brings_a_machine_blames_its_offer():
    steps = past((S.QUEUED, 0), *((S.REQUESTED, 1), (S.QUEUED, 2)) * 3, (S.REQUESTED, NOW - 601))
    seen = offered([asked(history=steps)])
    plan = reconcile(seen)
    assert list(plan.memory.health) == ["gpu a/spot"]
    assert launches(plan) == [(NEXT, {"gpu": 1})]


def test_a_machine_that_never_comes_up_blames_its_offer_and_lowers_the_types_rank():
    lost = record("a", S.ALLOCATED, node_type="gpu", offer=CHEAP, since=NOW - 99)
    seen = offered([lost], nodes=(), spec=spec(GPU, limits=FAST, timeouts=Timeouts(allocate_s=60.0)))
    health = reconcile(seen).memory.health
    assert health["gpu a/spot"].blocked_until > NOW
    assert (health["gpu"].blocked_until, health["gpu"].timed_out_at) == (0.0, NOW)


def test_a_machine_that_came_from_another_offer_costs_what_that_one_costs():
    arrived = machine("m", node_type="gpu", request_id="r-1", zone="b", market="spot")
    seen = offered([asked()], machines=[arrived])
    bound = after(seen, reconcile(seen))["a"]
    assert (bound.state, bound.offer, bound.price_per_hour) == (S.ALLOCATED, NEXT, 2.0)


def test_a_refusal_blames_the_offer_that_was_asked_although_a_machine_from_another_came():
    """Seed 44000679: the record had just been bound to a late machine of its type."""
    late = machine("m", node_type="gpu", request_id="r-gone", zone="b", market="spot")
    plan = reconcile(offered([asked()], machines=[late], launch_failures=refused(), wanted=2))
    assert list(plan.memory.health) == ["gpu a/spot"]
    assert launches(plan) == [(NEXT, {"gpu": 1})]


def test_an_adopted_machine_gets_the_offer_that_it_reports():
    found = machine("m", node_type="gpu", zone="a", market="on-demand")
    (adopted,) = created(seen := offered(machines=[found], wanted=0), reconcile(seen))
    assert (adopted.offer, adopted.price_per_hour) == (DEAR, 4.0)


def test_a_zone_that_is_not_in_the_file_is_kept_without_inventing_a_price():
    found = machine("m", node_type="gpu", zone="z", market="spot")
    (adopted,) = created(seen := offered(machines=[found], wanted=0), reconcile(seen))
    assert (adopted.offer.name, adopted.price_per_hour) == ("z/spot", None)


def test_a_restarted_node_keeps_the_offer_of_its_machine():
    old = record("a", S.RAY_RUNNING, node_type="gpu", offer=CHEAP, price_per_hour=1.0)
    new = node("x", node_type="gpu", cloud_id="c-a")
    (taken_over,) = created(seen := offered([old], nodes=[new], wanted=0), reconcile(seen))
    assert (taken_over.offer, taken_over.price_per_hour) == (CHEAP, 1.0)


def test_a_provider_that_cannot_choose_gets_plain_launches_and_the_user_is_told():
    plan = reconcile(offered(traits=ProviderTraits()))
    assert launches(plan) == [(None, {"gpu": 1})]
    assert [note.source for note in plan.quarantined] == ["offers"]


FLEETS = ProviderTraits(buys_offers=True, takes_next_offer=True)


def others(plan):
    return [action.offers[1:] for action in plan.actions if isinstance(action, Launch)]


def test_where_one_call_can_try_several_offers_it_is_given_those_of_the_same_market():
    third = Offer(zone="c", market="spot", price_per_hour=1.5)
    limited = Offer(zone="d", market="spot", price_per_hour=1.6, max_nodes=5)
    many = replace(GPU, offers=(DEAR, CHEAP, NEXT, third, limited))
    assert others(reconcile(offered(known=many, traits=FLEETS))) == [(third, NEXT)]
    assert others(reconcile(offered(known=many))) == [()]


def test_an_offer_that_is_backed_off_is_not_tried_in_place_of_another():
    assert others(reconcile(offered(traits=FLEETS, memory=blocked("gpu b/spot")))) == [()]


def test_a_refusal_of_all_offers_that_a_call_has_tried_backs_off_all_of_them():
    failure = replace(refused(offer="a/spot")[0], also=("b/spot",))
    seen = offered([asked()], launch_failures=(failure,), traits=FLEETS)
    plan = reconcile(seen)
    assert launches(plan) == [(DEAR, {"gpu": 1})]
    assert sorted(plan.memory.health) == ["gpu a/spot", "gpu b/spot"]


ZONE, MARKET = "ray.io/availability-zone", "ray.io/market-type"


def in_zone(zone, count=1, **more):
    return demand({"CPU": 4}, count, selectors=(selector(**{ZONE: zone, **more}),))


def test_a_request_for_a_zone_is_launched_from_an_offer_of_that_zone():
    seen = offered(demands=[in_zone("b", 2), demand({"CPU": 4})])
    plan = reconcile(seen)
    assert sorted((offer.name, shape["gpu"]) for offer, shape in launches(plan)) == [
        ("a/spot", 1),
        ("b/spot", 2),
    ]


def test_a_request_for_a_market_is_launched_from_the_cheapest_offer_of_that_market():
    plan = reconcile(offered(demands=[demand({"CPU": 4}, selectors=(selector(**{MARKET: "on-demand"}),))]))
    assert launches(plan) == [(DEAR, {"gpu": 1})]


def test_a_request_for_a_zone_without_an_offer_is_infeasible():
    seen = offered(demands=[in_zone("c")])
    plan = reconcile(seen)
    assert launches(plan) == []
    assert [demand.count for demand in plan.report.infeasible_demands] == [1]


def test_a_queued_record_is_seen_in_the_zone_that_it_was_planned_for():
    one_at_a_time = LaunchLimits(upscaling_speed=1.0, max_concurrent=1)
    seen = offered(demands=[in_zone("b", 3)], spec=spec(GPU, limits=one_at_a_time))
    plan = reconcile(seen)
    made = created(seen, plan)
    assert [(record.state, record.offer) for record in made] == [(S.REQUESTED, NEXT)] + [(S.QUEUED, NEXT)] * 2
    again = reconcile(following(seen, plan))
    assert created(following(seen, plan), again) == []  # what waits for its launch will serve them


def test_a_queued_record_of_another_zone_does_not_serve_a_request_for_a_zone():
    waiting = record("a", S.QUEUED, node_type="gpu", offer=CHEAP, is_pinned=True)
    seen = offered([waiting], demands=[in_zone("b")])
    assert [offer for offer, _ in launches(reconcile(seen)) if offer is not CHEAP] == [NEXT]


def test_a_machine_that_comes_serves_the_zone_it_comes_from():
    seen = offered([asked(offer=NEXT)], demands=[in_zone("b")])
    assert created(seen, reconcile(seen)) == []


def test_a_machine_for_a_zone_is_not_launched_in_the_next_one():
    traits = replace(TRAITS, takes_next_offer=True)
    (first,) = [a for a in reconcile(offered(traits=traits)).actions if isinstance(a, Launch)]
    (pinned,) = [
        a for a in reconcile(offered(traits=traits, demands=[in_zone("a")])).actions if isinstance(a, Launch)
    ]
    assert (first.offers, pinned.offers) == ((CHEAP, NEXT), (CHEAP,))


def test_a_zone_in_back_off_lets_its_requests_wait_with_the_reason():
    waiting = record("a", S.QUEUED, node_type="gpu", offer=NEXT, is_pinned=True)
    seen = offered([waiting], demands=[in_zone("b")], memory=blocked("gpu b/spot"))
    plan = reconcile(seen)
    assert (launches(plan), after(seen, plan)["a"].state) == ([], S.TERMINATED)
    (verdict,) = [v for v in plan.verdicts if v.subject is Subject.DEMAND]
    assert verdict.reason is Reason.BLOCKED_BY_BACKOFF


def test_an_installed_worker_gets_the_offer_of_its_machine():
    came = record("a", S.ALLOCATED, node_type="gpu", offer=NEXT)
    installed = spec(GPU, limits=FAST, install_runtime=True)
    seen = offered([came], wanted=0, spec=installed, traits=replace(TRAITS, installs_runtime=False))
    (action,) = [a for a in reconcile(seen).actions if isinstance(a, Install)]
    assert action.place == {"RAY_NODE_ZONE": "b", "RAY_NODE_MARKET_TYPE": "spot"}

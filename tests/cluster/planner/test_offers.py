"""Offers in the planner: the cheapest that can be had, within the limits of the offer and of the type."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from msgspec.structs import replace
from tests.support.builders import (
    NOW,
    cluster_spec,
    demand,
    node_type,
    pack_node,
    pack_nodes,
    pack_request,
    selector,
)

from muster.base.resources import EMPTY
from muster.cluster.model import FailureKind, Objective, Offer, health_key
from muster.cluster.plan import Reason, Subject
from muster.cluster.planner.explain import explain
from muster.cluster.planner.offers import by_price, offer_states
from muster.cluster.planner.pack import objective_of, offers_of, pack
from muster.cluster.snapshot import TypeHealth
from muster.cluster.states import InstanceState

A_SPOT = Offer(zone="a", market="spot", price_per_hour=1.0)
B_SPOT = Offer(zone="b", market="spot", price_per_hour=2.0)
A_PLAIN = Offer(zone="a", market="on-demand", price_per_hour=3.0)
EVERY = (A_PLAIN, B_SPOT, A_SPOT)
both = pytest.mark.parametrize("objective", [Objective.COST, Objective.UTILIZATION])


def gpu(*offers, **changes):
    return node_type("gpu", {"CPU": 4}, offers=offers or EVERY, **changes)


def sold_out(*names, kind=FailureKind.CAPACITY):
    failed = TypeHealth(failures=1.0, failed_at=NOW, blocked_until=NOW + 9.0, kind=kind, message="none left")
    return dict.fromkeys(names, failed)


def ask(*types, count=1, health=None, objective=Objective.COST, **changes):
    offers = offers_of(cluster_spec(types), health or {}, NOW)
    wanted = (demand({"CPU": 4}, count),) if count else ()
    return replace(pack_request(), offers=offers, demands=wanted, objective=objective, **changes)


def launched(*types, **changes):
    return pack(ask(*types, **changes)).launched_offers


@both
def test_the_cheapest_offer_is_bought(objective):
    packing = pack(ask(gpu(), count=3, objective=objective))
    assert (packing.launch, packing.launched_offers) == ({"gpu": 3}, {"gpu": {"a/spot": 3}})
    assert packing.price_per_hour == 3.0


@both
def test_an_offer_in_back_off_is_passed_over(objective):
    health = sold_out("gpu a/spot", "gpu b/spot")
    assert launched(gpu(), health=health, objective=objective) == {"gpu": {"a/on-demand": 1}}


@both
def test_an_offer_at_its_maximum_is_continued_with_the_next(objective):
    limited = gpu(replace(A_SPOT, max_nodes=2), replace(B_SPOT, max_nodes=1), A_PLAIN)
    packing = pack(ask(limited, count=5, objective=objective))
    assert packing.launched_offers == {"gpu": {"a/spot": 2, "b/spot": 1, "a/on-demand": 2}}
    assert (packing.launch, packing.price_per_hour) == ({"gpu": 5}, 10.0)


@both
def test_the_limit_of_the_type_holds_over_all_its_offers(objective):
    limited = gpu(*(replace(each, max_nodes=2) for each in EVERY), max_nodes=3)
    packing = pack(ask(limited, count=9, objective=objective))
    assert packing.launched_offers == {"gpu": {"a/spot": 2, "b/spot": 1}}
    assert packing.demands[0].unplaced == 6


@both
def test_nodes_count_for_the_offer_they_were_bought_from(objective):
    limited = gpu(replace(A_SPOT, max_nodes=2), B_SPOT)
    busy = pack_nodes(2, limited, available=EMPTY, offer="a/spot")
    assert launched(limited, nodes=busy, objective=objective) == {"gpu": {"b/spot": 1}}


def test_machines_that_may_come_back_count_for_their_offer():
    limited = gpu(replace(A_SPOT, max_nodes=1), B_SPOT)
    leaving = {"leaving": {"gpu": 1}, "leaving_offers": {health_key("gpu", "a/spot"): 1}}
    assert launched(limited, **leaving) == {"gpu": {"b/spot": 1}}


def test_records_that_wait_for_their_launch_will_take_the_cheapest_offers():
    limited = gpu(replace(A_SPOT, max_nodes=2), B_SPOT)
    queued = pack_nodes(2, limited, state=InstanceState.QUEUED)
    assert launched(limited, count=3, nodes=queued) == {"gpu": {"b/spot": 1}}


@both
def test_equal_prices_go_to_the_first_of_the_file(objective):
    zones = [Offer(zone=zone, price_per_hour=1.0) for zone in "cab"]
    assert launched(gpu(*zones), objective=objective) == {"gpu": {"c/on-demand": 1}}


def test_an_offer_without_a_price_comes_last():
    assert launched(gpu(Offer(zone="free"), A_PLAIN)) == {"gpu": {"a/on-demand": 1}}


def test_minimums_are_bought_from_the_cheapest_offers_too():
    assert launched(gpu(min_nodes=2), count=0) == {"gpu": {"a/spot": 2}}


def test_by_cost_a_dearer_type_is_chosen_when_the_cheap_offers_of_the_other_are_gone():
    other = node_type("other", {"CPU": 4}, price_per_hour=2.5)
    assert pack(ask(gpu(), other)).launch == {"gpu": 1}
    health = sold_out("gpu a/spot", "gpu b/spot")
    assert pack(ask(gpu(), other, health=health)).launch == {"other": 1}


def test_by_cost_two_types_share_the_demand_where_their_offers_cross_in_price():
    cheap_first = gpu(replace(A_SPOT, max_nodes=2), A_PLAIN)
    other = node_type("other", {"CPU": 4}, price_per_hour=2.0)
    packing = pack(ask(cheap_first, other, count=4))
    assert (packing.launch, packing.price_per_hour) == ({"gpu": 2, "other": 2}, 6.0)


def test_by_utilization_the_type_is_chosen_as_without_offers():
    small, large = node_type("small", {"CPU": 4}), node_type("large", {"CPU": 8})
    plain = pack(ask(small, large, objective=Objective.UTILIZATION))
    offered = [
        replace(t, offers=(replace(A_SPOT, price_per_hour=p),)) for t, p in ((small, 9.0), (large, 1.0))
    ]
    assert pack(ask(*offered, objective=Objective.UTILIZATION)).launch == plain.launch == {"small": 1}


def test_auto_plans_by_cost_when_every_offer_has_a_price():
    assert objective_of(ask(gpu(), objective=Objective.AUTO)) is Objective.COST
    assert objective_of(ask(gpu(*EVERY, Offer(zone="x")), objective=Objective.AUTO)) is Objective.UTILIZATION


def test_a_back_off_of_the_type_closes_all_its_offers():
    health = sold_out("gpu", kind=FailureKind.QUOTA)
    assert launched(gpu(), health=health) == {}


def verdict_of(request, subject):
    return next(v for v in explain(request, pack(request)) if v.subject is subject)


def test_the_reason_names_the_offers_and_the_cheaper_ones_that_are_backed_off():
    request = ask(gpu(), count=2, health=sold_out("gpu a/spot"))
    found = verdict_of(request, Subject.NODE_TYPE)
    assert (found.reason, found.count) == (Reason.TYPE_CHOSEN, 2)
    assert re.fullmatch(r"2 .* b/spot .* \$2 .*; a/spot .* \$1 .* \(capacity\)", found.detail)


def test_when_all_offers_are_backed_off_the_reason_names_the_one_tried_first():
    health = {**sold_out("gpu a/spot", "gpu b/spot"), "gpu a/on-demand": TypeHealth(blocked_until=NOW + 3.0)}
    found = verdict_of(ask(gpu(), health=health), Subject.DEMAND)
    assert found.reason is Reason.BLOCKED_BY_BACKOFF
    assert re.fullmatch(r"gpu a/on-demand .* \(unknown\); .* 3 s", found.detail)


def test_when_some_offers_are_full_and_the_rest_are_backed_off_the_demand_waits_for_the_back_off():
    limited = gpu(replace(A_SPOT, max_nodes=1), B_SPOT)
    request = ask(limited, count=2, health=sold_out("gpu b/spot"))
    waits = [v for v in explain(request, pack(request)) if v.reason is Reason.BLOCKED_BY_BACKOFF]
    (wait,) = waits
    assert re.fullmatch(r"gpu b/spot .* \(capacity: .*\); .* 9 s", wait.detail)


def test_a_type_whose_open_offers_are_full_is_backed_off_as_long_as_the_others_are():
    limited = gpu(replace(A_SPOT, max_nodes=1), B_SPOT, min_nodes=2)
    busy = pack_nodes(1, limited, available=EMPTY, offer="a/spot")
    found = verdict_of(ask(limited, count=0, nodes=busy, health=sold_out("gpu b/spot")), Subject.NODE_TYPE)
    assert found.reason is Reason.TYPE_BACKED_OFF
    assert re.search(r" 9 s; 1 .* 2 .*$", found.detail)


def test_when_every_offer_is_full_the_reason_is_a_limit():
    request = ask(gpu(replace(A_SPOT, max_nodes=1)), count=2)
    found = next(v for v in explain(request, pack(request)) if v.reason is Reason.BLOCKED_BY_TYPE_LIMIT)
    assert re.fullmatch(r".* gpu, .* \{CPU: 4\}, .*: a/spot \(1\)", found.detail)


def brute_force(types, count, health):
    """The least price at which `count` machines can be had, one machine per request; None: not so many."""
    units = []
    for known in types:
        own = []
        for each in known.offers:
            if health_key(known.name, each.name) not in health:
                own += [each.price_per_hour] * (known.max_nodes if each.max_nodes is None else each.max_nodes)
        units += sorted(own)[: known.max_nodes]
    return sum(sorted(units)[:count]) if len(units) >= count else None


@pytest.mark.parametrize("seed", range(60))
def test_by_cost_no_other_choice_of_offers_is_cheaper(seed):
    draw = random.Random(seed)
    types, health = [], {}
    for name in ("x", "y", "z")[: draw.randint(1, 3)]:
        pairs = draw.sample(list(itertools.product("abc", ("spot", "on-demand"))), draw.randint(1, 5))
        offers = tuple(
            Offer(
                zone=zone,
                market=market,
                price_per_hour=float(draw.randint(1, 6)),
                max_nodes=draw.choice([None, 1, 2]),
            )
            for zone, market in pairs
        )
        types.append(node_type(name, {"CPU": 4}, offers=offers, max_nodes=draw.randint(1, 5)))
        health |= sold_out(*(health_key(name, o.name) for o in offers if draw.random() < 0.3))
    count = draw.randint(1, 8)
    packing = pack(ask(*types, count=count, health=health))
    least = brute_force(types, count, health)
    if least is None:
        assert packing.demands[0].unplaced > 0
    else:
        assert (packing.demands[0].unplaced, packing.price_per_hour) == (0, pytest.approx(least))
    for known in types:
        amounts = packing.launched_offers.get(known.name, {})
        assert sum(amounts.values()) == packing.launch.get(known.name, 0) <= known.max_nodes
        assert all(known.offer(name).max_nodes in (None, *range(n, 9)) for name, n in amounts.items())


def test_a_machine_found_without_an_offer_counts_for_the_type_only():
    limited = gpu(replace(A_SPOT, max_nodes=1), max_nodes=2)
    found = (pack_node("i-1", limited, available={}),)
    assert launched(limited, count=2, nodes=found) == {"gpu": {"a/spot": 1}}


def test_a_machine_that_works_twice_as_fast_may_cost_nearly_twice_as_much():
    slow = node_type("slow", {"CPU": 4}, price_per_hour=1.0)
    fast = node_type("fast", {"CPU": 4}, price_per_hour=1.5, speed=2.0)
    packing = pack(ask(slow, fast, count=3))
    assert (packing.launch, packing.price_per_hour) == ({"fast": 3}, 4.5)
    assert pack(ask(slow, replace(fast, price_per_hour=2.1), count=3)).launch == {"slow": 3}


def test_offers_of_types_are_compared_by_the_price_of_equal_work():
    fast = replace(gpu(A_PLAIN, speed=4.0), name="fast")
    assert launched(gpu(A_SPOT), fast) == {"fast": {"a/on-demand": 1}}


def test_of_two_offers_at_one_price_the_one_with_shorter_billing_steps_comes_first():
    hourly = Offer(zone="a", price_per_hour=1.0, billing_granularity_s=3600.0)
    exact = Offer(zone="b", price_per_hour=1.2, billing_granularity_s=1.0)
    dear = Offer(zone="c", price_per_hour=1.6)
    states = offer_states(node_type("cpu", {"CPU": 1}, offers=(hourly, exact, dear)), {}, NOW)
    assert [each.offer.zone for each in by_price(states)] == ["b", "a", "c"]


def in_zone(zone, count):
    return demand({"CPU": 4}, count, selectors=(selector(**{"ray.io/availability-zone": zone}),))


@both
def test_requests_for_zones_share_the_room_of_the_type(objective):
    asked = (in_zone("b", 2), in_zone("a", 2), demand({"CPU": 4}, 3))
    packing = pack(replace(ask(gpu(max_nodes=5), objective=objective), demands=asked))
    assert packing.launch == {"gpu": 5}
    assert packing.pinned == {"gpu": {"b/spot": 2, "a/spot": 3}}
    assert packing.launched_offers == packing.pinned
    assert packing.price_per_hour == 7.0
    assert sum(outcome.unplaced for outcome in packing.demands) == 2


@both
def test_the_limit_of_an_offer_holds_for_requests_of_its_zone(objective):
    limited = gpu(A_SPOT, replace(B_SPOT, max_nodes=1))
    packing = pack(replace(ask(limited, objective=objective), demands=(in_zone("b", 3),)))
    assert (packing.pinned, packing.demands[0].unplaced) == ({"gpu": {"b/spot": 1}}, 2)


@both
def test_machines_of_a_minimum_and_of_a_zone_are_launched_together(objective):
    packing = pack(replace(ask(gpu(min_nodes=1), objective=objective), demands=(in_zone("b", 1),)))
    assert (packing.launch, packing.pinned) == ({"gpu": 2}, {"gpu": {"b/spot": 1}})
    assert packing.launched_offers == {"gpu": {"a/spot": 1, "b/spot": 1}}

"""What machines cost, to the second."""

from __future__ import annotations

import pytest
from tests.cluster.worlds import S, following, machine, node, past, record, spec, world
from tests.support.builders import NOW, node_type

from muster.cluster.cost import cost_of, price_per_hour, spend_so_far
from muster.cluster.model import Offer
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory

LIFE = past((S.QUEUED, 0), (S.REQUESTED, 100), (S.ALLOCATED, 200), (S.RAY_RUNNING, 300))


def test_a_machine_costs_from_when_it_was_found():
    running = record("a", S.RAY_RUNNING, history=LIFE, price_per_hour=3.6)
    assert cost_of(running, 200.0) == 0.0
    assert cost_of(running, 1_200.0) == pytest.approx(1.0)


def test_a_machine_that_is_gone_costs_until_it_was_missed():
    ended = record("a", S.TERMINATED, history=(*LIFE, *past((S.TERMINATED, 1_200))), price_per_hour=3.6)
    assert cost_of(ended, 1e9) == pytest.approx(1.0)


@pytest.mark.parametrize("price", [None, 0.0])
def test_machines_without_a_price_cost_nothing(price):
    assert cost_of(record("a", S.RAY_RUNNING, history=LIFE, price_per_hour=price), 1e6) == 0.0


@pytest.mark.parametrize(
    ("terms", "used_s", "paid_s"),
    [
        ({}, 90.0, 90.0),
        ({"billing_minimum_s": 60.0}, 10.0, 60.0),
        ({"billing_minimum_s": 60.0}, 61.5, 61.5),
        ({"billing_granularity_s": 3600.0}, 1.0, 3600.0),
        ({"billing_granularity_s": 3600.0}, 3600.0000001, 3600.0),
        ({"billing_granularity_s": 60.0}, 61.0, 120.0),
        ({"billing_minimum_s": 90.0, "billing_granularity_s": 60.0}, 1.0, 120.0),
        ({"billing_granularity_s": 60.0}, 0.0, 0.0),
    ],
)
def test_a_machine_is_billed_by_the_terms_of_its_offer(terms, used_s, paid_s):
    launched = record("a", S.RAY_RUNNING, history=LIFE, price_per_hour=3600.0, offer=Offer(**terms))
    assert cost_of(launched, 200.0 + used_s) == pytest.approx(paid_s)


def test_wishes_cost_nothing():
    assert cost_of(record("a", S.REQUESTED, price_per_hour=5.0), 1e6) == 0.0


def test_the_sum_has_the_dead_and_the_living():
    living = [record(name, S.ALLOCATED, history=LIFE[:3], price_per_hour=3.6) for name in "ab"]
    waiting = record("q", S.QUEUED, price_per_hour=100.0)
    assert spend_so_far([*living, waiting], Memory(spent=5.0), 1_200.0) == pytest.approx(7.0)
    assert price_per_hour([*living, waiting]) == pytest.approx(7.2)


def test_what_a_machine_cost_is_remembered_in_the_tick_that_ends_it():
    priced = spec(node_type("cpu", price_per_hour=3.6))
    gone = record("a", S.TERMINATING, history=(*LIFE, *past((S.TERMINATING, 900))), price_per_hour=3.6)
    seen = world([gone, record("b", S.ALLOCATED, price_per_hour=3.6)], machines=[machine("b")], spec=priced)
    plan = reconcile(seen)
    assert plan.memory.spent == pytest.approx(3.6 * (NOW - 200.0) / 3600.0)
    later = reconcile(following(seen, plan))
    assert later.memory.spent == plan.memory.spent


def test_a_restarted_runtime_does_not_pay_for_its_machine_twice():
    seen = world(
        [record("a", S.RAY_RUNNING, history=LIFE, price_per_hour=3.6)],
        nodes=[node("new", cloud_id="c-a")],
    )
    plan = reconcile(seen)
    later = following(seen, plan, seconds=1_000.0)
    total = spend_so_far(later.instances.values(), plan.memory, later.now)
    assert total == pytest.approx(3.6 * (NOW + 1_000.0 - 200.0) / 3600.0)


def test_the_price_is_the_one_of_the_day_it_was_bought():
    """A wish may wait; the price that counts is the config's when the machine is asked for."""
    seen = world([record("q", S.QUEUED, price_per_hour=1.0)], spec=spec(node_type("cpu", price_per_hour=2.0)))
    plan = reconcile(seen)
    (launched,) = plan.writes
    assert (launched.state, launched.price_per_hour) == (S.REQUESTED, 2.0)
    dearer = following(seen, plan, spec=spec(node_type("cpu", price_per_hour=9.0)))
    arrived = following(dearer, reconcile(dearer), cloud={**seen.cloud, "c-x": machine("x")})
    (bound,) = reconcile(arrived).writes
    assert (bound.state, bound.price_per_hour) == (S.ALLOCATED, 2.0)

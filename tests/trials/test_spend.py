"""What trials cost: shares of nodes, attempts, prices that come late or change."""

from __future__ import annotations

import pytest

from muster.base.resources import Resources
from muster.trials.model import Trial
from muster.trials.spend import SpendBook, cost_of, share_of, share_of_bundles, total_cost


@pytest.fixture
def book():
    return SpendBook()


def trial(name="t"):
    return Trial("f", trial_id=name)


@pytest.mark.parametrize(
    ("needs", "whole", "share"),
    [
        ({"CPU": 1}, {"CPU": 4, "GPU": 1}, 0.25),
        ({"CPU": 1, "GPU": 1}, {"CPU": 4, "GPU": 1}, 1.0),
        ({"CPU": 0}, {"CPU": 4}, 0.0),
        ({"ghost": 1, "CPU": 1}, {"CPU": 2}, 0.5),
        ({}, {"CPU": 2}, 0.0),
    ],
)
def test_the_largest_share_of_a_resource_counts(needs, whole, share):
    assert share_of(Resources.of(needs), Resources.of(whole)) == share


def test_bundles_that_fit_on_one_node_count_together_and_others_one_by_one():
    node = Resources.of(CPU=4)
    assert share_of_bundles([{"CPU": 1}, {"CPU": 1}], node) == 0.5
    assert share_of_bundles([{"CPU": 3}, {"CPU": 3}], node) == 1.5


def test_a_trial_without_a_price_has_no_cost_rather_than_none(book):
    one = trial()
    assert not book.close(one, 10.0)
    assert (cost_of(one, 10.0), book.spent(10.0), book.is_used) == (None, 0.0, False)


def test_attempts_add_up_and_the_time_between_them_is_free(book):
    one = trial()
    book.price(one, 100.0, 3.6)
    assert cost_of(one, 110.0) == pytest.approx(0.01)
    book.close(one, 110.0)
    book.price(one, 200.0, 7.2)
    assert (cost_of(one, 205.0), book.spent(205.0)) == (pytest.approx(0.02), pytest.approx(0.02))
    book.close(one, 205.0)
    assert (one.cost_usd, book.rate, book.spent(999.0)) == (pytest.approx(0.02), 0.0, pytest.approx(0.02))


def test_a_price_that_changes_counts_from_then_on(book):
    one = trial()
    book.price(one, 0.0, 3.6)
    book.price(one, 10.0, 36.0)
    assert cost_of(one, 11.0) == pytest.approx(0.02)
    assert book.rate == 36.0


def test_what_all_have_spent_is_the_sum_of_all(book):
    many = [trial(str(number)) for number in range(50)]
    for number, one in enumerate(many):
        book.price(one, 1.8e9 + number, 1.0 + number)
    for one in many[::2]:
        book.close(one, 1.8e9 + 100)
    at = 1.8e9 + 200
    assert book.spent(at) == pytest.approx(total_cost(cost_of(one, at) for one in many), rel=1e-9)


def test_an_attempt_without_a_price_makes_the_cost_unknown_once_any_price_is_known(book):
    one, other = trial(), trial("u")
    assert not book.leave_unknown(one)
    assert not one.is_unpriced
    book.price(other, 0.0, 1.0)
    assert book.leave_unknown(one)
    book.price(one, 1.0, 1.0)
    assert cost_of(one, 5.0) is None


def test_a_clock_that_went_back_makes_nothing_cheaper(book):
    one = trial()
    book.price(one, 100.0, 3.6)
    book.close(one, 50.0)
    assert one.cost_usd == 0.0


def test_a_sum_of_nothing_known_is_unknown():
    assert (total_cost([]), total_cost([None]), total_cost([0.25, None, 0.5])) == (None, None, 0.75)

"""Durations, money and long names as users read them."""

from __future__ import annotations

import doctest

import pytest

from muster.base import text as module
from muster.base.text import duration, money, short_duration, shortened, used_of


def test_the_examples_of_the_module_do_what_they_say():
    found = doctest.testmod(module)
    assert (found.failed, found.attempted) == (0, 9)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 ms"), (9.999, "10.00 s"), (59.6, "1 min 0 s"), (3599.9, "1 h 0 min")]
)
def test_a_duration_is_rounded_before_it_is_split(seconds, shown):
    assert duration(seconds) == shown


def test_a_short_duration_keeps_to_seven_characters():
    assert (
        max(len(short_duration(seconds)) for seconds in (0, 89, 90, 5399, 5400, 172_799, 86_400 * 999)) <= 7
    )


def test_cents_do_not_hide_a_price():
    assert [money(amount) for amount in (0.2, 0.0126, 1234.5678)] == ["$0.20", "$0.0126", "$1,234.57"]


def test_no_text_is_longer_than_its_room():
    for text in ("x" * 500, "a/" * 200 + "end", "short", "one/" + "y" * 90):
        for room in (5, 9, 14, 40):
            assert len(shortened(text, room)) <= room


def test_the_end_of_a_nested_key_is_what_stays():
    assert shortened("model/encoder/layers/hidden_size", 20) == "…/layers/hidden_size"


def test_a_little_memory_has_no_exponent():
    total = {"object_store_memory": 4e8}
    assert used_of({"object_store_memory": 1.66e3}, total, tuple(total)) == "object_store_memory <0.01/0.4 GB"
    assert used_of({}, total, tuple(total)) == "object_store_memory 0/0.4 GB"

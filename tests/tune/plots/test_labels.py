"""Short texts."""

from __future__ import annotations

import doctest

import pytest

from muster.tune.plots import labels
from muster.tune.plots.labels import short_number, shortened, value_text


def test_the_examples_of_the_module_do_what_they_say():
    found = doctest.testmod(labels)
    assert (found.failed, found.attempted) == (0, 2)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-3.0, "-3"), (123456.0, "1.23e5"), (0.1 + 0.2, "0.3"), (1e-12, "1e-12")]
)
def test_numbers_are_as_short_as_they_can_be(value, text):
    assert short_number(value) == text


def test_no_text_is_longer_than_its_room():
    for text in ("x" * 500, "a/" * 200 + "end", "short", "one/" + "y" * 90):
        for room in (5, 9, 14, 40):
            assert len(shortened(text, room)) <= room


def test_the_end_of_a_nested_key_is_what_stays():
    assert shortened("model/encoder/layers/hidden_size", 20) == "…/layers/hidden_size"


def test_values_are_shown_on_one_line_without_addresses():
    assert value_text([1, "a"]) == "[1, 'a']"
    assert value_text(object()) == "<object object>"
    assert value_text(len) == "len"
    assert value_text(0.1 + 0.2) == "0.3"

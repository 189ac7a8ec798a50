"""Short texts."""

from __future__ import annotations

import doctest

import pytest

from muster.tune.plots import labels
from muster.tune.plots.labels import short_number, value_text


def test_the_examples_of_the_module_do_what_they_say():
    found = doctest.testmod(labels)
    assert (found.failed, found.attempted) == (0, 1)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-3.0, "-3"), (123456.0, "1.23e5"), (0.1 + 0.2, "0.3"), (1e-12, "1e-12")]
)
def test_numbers_are_as_short_as_they_can_be(value, text):
    assert short_number(value) == text


def test_values_are_shown_on_one_line_without_addresses():
    assert value_text([1, "a"]) == "[1, 'a']"
    assert value_text(object()) == "<object object>"
    assert value_text(len) == "len"
    assert value_text(0.1 + 0.2) == "0.3"

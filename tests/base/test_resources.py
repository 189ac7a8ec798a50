"""Exact fixed-point quantities: what is refused, what is kept, what fits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.base.resources import EMPTY, IMPLICIT_PREFIX, MAX_QUANTITY, SCALE, Resources, to_units

IMPLICIT = f"{IMPLICIT_PREFIX}x"
quantities = st.dictionaries(st.sampled_from(["CPU", "GPU", "memory", IMPLICIT]), st.integers(0, 10**12))


@pytest.mark.parametrize(
    ("quantity", "units"),
    [(0, 0), (1, 10_000), (0.1, 1_000), (0.0001, 1), (1e-9, 1), (2**30, 2**30 * SCALE), ("4", 40_000)],
)
def test_a_quantity_becomes_whole_units_of_a_ten_thousandth(quantity, units):
    assert to_units("CPU", quantity) == units


@pytest.mark.parametrize(
    "quantity", [math.nan, math.inf, -math.inf, -1, -1e-9, MAX_QUANTITY * 1.01, 10**400, None, "many", [1]]
)
def test_a_quantity_that_is_no_sane_amount_is_refused_by_name(quantity):
    with pytest.raises(ValueError, match="GPU"):
        to_units("GPU", quantity)


def test_the_largest_quantity_is_still_allowed_and_fits_64_bits():
    assert to_units("memory", MAX_QUANTITY) == int(MAX_QUANTITY) * SCALE < 2**63


def test_forty_tenths_of_a_cpu_use_up_four_cpus_exactly():
    left, tenth = Resources.of(CPU=4), Resources.of(CPU=0.1)
    for _ in range(40):
        assert left.holds(tenth)
        left = left.minus(tenth)
    assert left == Resources.of(CPU=0)
    assert not left.holds(tenth)


def test_explicit_zeros_are_kept_until_asked_away():
    both = Resources.of({"CPU": 0, "GPU": 1})
    assert dict(both) == {"CPU": 0, "GPU": 10_000}
    assert both != Resources.of(GPU=1)
    assert both.positive() == Resources.of(GPU=1)
    assert both.to_floats() == {"CPU": 0.0, "GPU": 1.0}


def test_an_implicit_resource_counts_one_on_a_node_that_does_not_list_it():
    node = Resources.of(CPU=1)
    assert node.holds(Resources.of({IMPLICIT: 1}))
    assert not node.holds(Resources.of({IMPLICIT: 1.5}))
    assert node.minus(Resources.of({IMPLICIT: 0.25})) == Resources.of({"CPU": 1, IMPLICIT: 0.75})


def test_an_implicit_resource_that_is_listed_counts_what_is_listed():
    node = Resources.of({IMPLICIT: 0})
    assert not node.holds(Resources.of({IMPLICIT: 0.5}))
    assert node.lacks(Resources.of({IMPLICIT: 0.5})) == {IMPLICIT: 5_000}


def test_lacks_names_what_is_short_and_by_how_much():
    node = Resources.of(CPU=2)
    assert node.lacks(Resources.of({"CPU": 3, "GPU": 1, "memory": 0})) == {"CPU": 10_000, "GPU": 10_000}
    assert node.lacks(Resources.of(CPU=2)) == {}


def test_equal_content_is_equal_whatever_the_order():
    one, other = Resources.of({"CPU": 1, "GPU": 2}), Resources.of({"GPU": 2, "CPU": 1})
    assert one == other
    assert hash(one) == hash(other)
    assert one.key == other.key == (("CPU", 10_000), ("GPU", 20_000))
    assert one != {"CPU": 10_000, "GPU": 20_000}


def test_arithmetic_makes_new_values():
    one = Resources.of(CPU=1.5)
    assert one.plus(Resources.of(CPU=1, GPU=1)) == Resources.of(CPU=2.5, GPU=1)
    assert one.times(3) == Resources.of(CPU=4.5)
    assert one == Resources.of(CPU=1.5)
    assert (one.units("CPU"), one.units("GPU"), len(EMPTY)) == (15_000, 0, 0)


def test_it_reads_as_people_write_it():
    assert str(Resources.of({"GPU": 0.5, "CPU": 4})) == "CPU: 4, GPU: 0.5"
    assert repr(Resources.of(CPU=1)) == "Resources(CPU: 1)"


@pytest.mark.slow
@settings(derandomize=True, deadline=None)
@given(quantities, quantities)
def test_it_fits_exactly_when_nothing_is_lacking(have, need):
    node, ask = Resources(have), Resources(need)
    assert node.holds(ask) == (node.lacks(ask) == {})


@settings(derandomize=True, deadline=None)
@given(quantities, quantities)
def test_what_is_taken_and_given_back_leaves_nothing_changed(have, need):
    node, ask = Resources(have), Resources(need)
    back = node.minus(ask).plus(ask)
    assert {name: back.units(name) for name in have} == have


def test_people_read_memory_in_gigabytes():
    assert str(Resources.of({"memory": 2.5e9, "CPU": 4, "GPU": 0.25})) == "CPU: 4, GPU: 0.25, memory: 2.5 GB"
    assert str(Resources.of({"object_store_memory": 40, "memory": 64 * 2**30})) == (
        "memory: 68.719 GB, object_store_memory: 40"
    )

"""Axes: kinds, positions, ticks, short texts."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from muster.tune.plots import axes
from muster.tune.plots.axes import (
    MISSING,
    looks_logarithmic,
    metric_axis,
    metric_range,
    parameter_axis,
    short_number,
    value_text,
)

ABSENT = object()


def axis_of(values):
    return parameter_axis("p", values, ABSENT)


def test_numbers_lie_between_the_ends_of_their_axis():
    axis = axis_of([0, 5, 10, 1, 2, 3, 4])
    assert axis.positions.tolist() == [0.0, 0.5, 1.0, 0.1, 0.2, 0.3, 0.4]
    assert (axis.is_category, axis.is_log) == (False, False)
    assert [label for _, label in axis.ticks] == ["0", "2", "4", "6", "8", "10"]


def test_a_range_over_orders_of_magnitude_gets_a_log_axis():
    axis = axis_of([1e-4, 1e-3, 1e-2, 1e-1, 3e-4, 3e-3, 3e-2])
    assert axis.is_log
    assert [(round(at, 3), label) for at, label in axis.ticks] == [
        (0.0, "0.0001"),
        (0.333, "0.001"),
        (0.667, "0.01"),
        (1.0, "0.1"),
    ]


def test_evenly_spread_values_stay_linear_however_small_the_least_one():
    assert not looks_logarithmic(np.linspace(0.001, 1.0, 50))


def test_a_choice_of_powers_of_two_is_log_by_what_could_be_chosen():
    axis = axis_of([128, 128, 128, 128, 16, 32, 64])
    assert axis.is_log
    assert [label for _, label in axis.ticks] == ["16", "32", "64", "128"]


def test_texts_and_truth_values_are_categories_in_natural_order():
    axis = axis_of(["sgd", "adam", "sgd"])
    assert (axis.is_category, axis.ticks) == (True, ((0.0, "adam"), (1.0, "sgd")))
    assert axis_of([True, False]).ticks == ((0.0, "False"), (1.0, "True"))
    assert [label for _, label in axis_of(["10", "9", 100, "x"]).ticks] == ["9", "10", "100", "x"]


def test_a_parameter_that_some_trials_do_not_have_shows_where_it_is_not_set():
    axis = axis_of([1.0, ABSENT, 3.0, None])
    assert axis.positions.tolist() == [0.0, MISSING, 1.0, MISSING]
    assert axis.ticks[0][0] == MISSING
    assert np.isnan(axis.codes).tolist() == [False, True, False, True]


def test_one_value_that_not_all_trials_have_is_still_worth_an_axis():
    axis = axis_of([0.9, ABSENT, 0.9])
    assert axis.positions.tolist() == [0.5, MISSING, 0.5]


@pytest.mark.parametrize(
    "values",
    [[1, 1, 1], ["a", "a"], [ABSENT, ABSENT], [None, None], [f"name {n}" for n in range(100)], []],
    ids=["constant", "constant text", "absent", "none", "all different", "no trials"],
)
def test_what_tells_nothing_has_no_axis(values):
    assert axis_of(values) is None


def test_values_that_are_neither_number_nor_text_are_shown_without_their_address():
    assert axis_of([(1, 2), (3,), len]).ticks == ((0.0, "(1, 2)"), (0.5, "(3,)"), (1.0, "len"))


def test_outliers_of_the_metric_are_cut_off_and_the_axis_says_so():
    values = np.array([*np.linspace(0, 1, 60), 1e6, np.nan])
    low, high, is_log = metric_range(values[np.isfinite(values)], "min")
    axis = metric_axis("loss", values, "min")
    assert (low, is_log) == (0.0, False)
    assert high < 2
    assert axis.positions[60] == 1.0
    assert np.isnan(axis.positions[61])
    assert axis.ticks[-1][1].startswith("≥ ")


@pytest.mark.parametrize(("mode", "is_log"), [("min", True), ("max", False)])
def test_only_a_metric_to_be_minimized_may_have_a_log_axis(mode, is_log):
    values = np.geomspace(0.01, 0.97, 20)  # accuracies, most of them low
    assert (metric_range(values, mode)[2], metric_axis("acc", values, mode).is_log) == (is_log, is_log)


def test_a_metric_without_a_finite_value_has_an_empty_axis():
    axis = metric_axis("loss", np.array([np.nan, np.inf]), "min")
    assert (axis.ticks, np.isnan(axis.positions).all()) == ((), True)


def test_a_single_value_lies_in_the_middle():
    assert metric_axis("loss", np.array([3.0]), "min").positions.tolist() == [0.5]


def test_the_examples_of_the_module_do_what_they_say():
    found = doctest.testmod(axes)
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

from __future__ import annotations

import pytest

from muster.cluster.model import LabelMatch, LabelOperator
from muster.cluster.planner.demand_classes import first_match, selector_holds

IN, NOT_IN = LabelOperator.IN, LabelOperator.NOT_IN


@pytest.mark.parametrize(
    ("operator", "labels", "holds"),
    [
        (IN, {"zone": "a"}, True),
        (IN, {"zone": "b"}, True),
        (IN, {"zone": "c"}, False),
        (IN, {"other": "a"}, False),
        (IN, {}, False),
        (NOT_IN, {"zone": "a"}, False),
        (NOT_IN, {"zone": "c"}, True),
        (NOT_IN, {}, True),
    ],
)
def test_one_condition_compares_the_nodes_value_with_the_set(operator, labels, holds):
    assert selector_holds((LabelMatch("zone", operator, ("a", "b")),), labels) is holds


def test_the_empty_selector_holds_on_every_node():
    assert selector_holds((), {}) is True
    assert selector_holds((), {"zone": "a"}) is True


def test_every_condition_of_a_selector_must_hold():
    selector = (LabelMatch("zone", IN, ("a",)), LabelMatch("disk", NOT_IN, ("slow",)))
    assert selector_holds(selector, {"zone": "a", "disk": "fast"}) is True
    assert selector_holds(selector, {"zone": "a", "disk": "slow"}) is False
    assert selector_holds(selector, {"disk": "fast"}) is False


def test_an_empty_set_of_values_is_in_nothing():
    assert selector_holds((LabelMatch("zone", IN, ()),), {"zone": ""}) is False
    assert selector_holds((LabelMatch("zone", NOT_IN, ()),), {"zone": ""}) is True


def test_an_empty_label_value_is_a_value():
    assert selector_holds((LabelMatch("_PG_1", IN, ("",)),), {"_PG_1": ""}) is True
    assert selector_holds((LabelMatch("_PG_1", NOT_IN, ("",)),), {"_PG_1": ""}) is False


def test_an_unknown_operator_fails():
    assert selector_holds((LabelMatch("zone", "near", ("a",)),), {"zone": "a"}) is False  # type: ignore[arg-type]


def test_the_first_selector_that_holds_is_named():
    selectors = ((LabelMatch("zone", IN, ("a",)),), (LabelMatch("zone", IN, ("b",)),), ())
    assert first_match(selectors, {"zone": "a"}) == 0
    assert first_match(selectors, {"zone": "b"}) == 1
    assert first_match(selectors, {}) == 2
    assert first_match(selectors[:2], {}) is None
    assert first_match((), {"zone": "a"}) is None

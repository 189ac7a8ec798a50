"""What request_resources makes of its arguments."""

from __future__ import annotations

import pytest

from muster.runtimes.ray.resource_request import count_requests


def test_equal_bundles_are_counted_together() -> None:
    one, two = {"CPU": 1}, {"GPU": 1, "CPU": 2}
    assert count_requests([one, two, {"CPU": 2, "GPU": 1.0}, one, one], []) == {
        ((("CPU", 1.0),), ()): 3,
        ((("CPU", 2.0), ("GPU", 1.0)), ()): 2,
    }


def test_the_same_bundle_on_other_nodes_is_another_wish() -> None:
    made = count_requests([{"CPU": 1}] * 3, [{}, {"tier": "in(a, b)", "region": "!us"}, {}])
    assert made == {
        ((("CPU", 1.0),), ()): 2,
        ((("CPU", 1.0),), (("region", "!us"), ("tier", "in(a,b)"))): 1,
    }


@pytest.mark.parametrize(
    ("bundles", "selectors", "message"),
    [
        ([{"CPU": -1}], [], "bundle 0: resource 'CPU': -1 is not between 0 and 9e+14"),
        ([{"CPU": 1}, {}], [], "bundle 1: {} is not a mapping like {'CPU': 1}"),
        ([{"CPU": "x"}], [], "bundle 0: resource 'CPU': 'x' is not a number"),
        ([{"CPU": 1}], [{}, {}], "2 label selectors for 1 bundles: give one each, {} for any node"),
        ([{"CPU": 1}], ["tier=a"], "label selector 0: 'tier=a' is not a mapping of label to value"),
        (
            [{"CPU": 1}],
            [{"tier": "in(a"}],
            "label selector 0: 'tier': 'in(a' is none of 'value', '!value', 'in(a, b)', '!in(a, b)'",
        ),
    ],
)
def test_nonsense_is_refused_with_its_place(bundles: list, selectors: list, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        count_requests(bundles, selectors)
    assert str(caught.value) == message

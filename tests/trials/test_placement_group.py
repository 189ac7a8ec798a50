from __future__ import annotations

import pytest

from muster.base.resources import Resources
from muster.trials.placement_group import PlacementGroupFactory
from muster.tune.schedulers.resource_allocation import enlarged

GOLD, SILVER = {"tier": "gold"}, {"tier": "silver"}


def test_a_trial_that_gets_more_keeps_its_strategy_and_its_label_selectors():
    one = PlacementGroupFactory([{"CPU": 1}], "SPREAD", bundle_label_selector=[GOLD])
    assert enlarged(one, Resources.of({"CPU": 2}), 1, add_bundles=False) == PlacementGroupFactory(
        [{"CPU": 3}], "SPREAD", bundle_label_selector=[GOLD]
    )
    two = PlacementGroupFactory([{"CPU": 1}, {"GPU": 1}], bundle_label_selector=[GOLD, SILVER])
    assert enlarged(two, Resources.of({"GPU": 1}), 2, add_bundles=True) == PlacementGroupFactory(
        [{"CPU": 1}, {"GPU": 1}, {"GPU": 1}, {"GPU": 1}],
        bundle_label_selector=[GOLD, SILVER, SILVER, SILVER],
    )
    assert two.resized([{"CPU": 1}]) == PlacementGroupFactory([{"CPU": 1}], bundle_label_selector=[GOLD])


def test_without_selectors_nothing_is_added():
    plain = PlacementGroupFactory([{}, {"CPU": 1}])
    assert plain.resized(plain.described()[0]) == plain


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -1, "two"])
def test_an_amount_that_no_machine_can_have_is_refused_with_its_name(amount):
    with pytest.raises(ValueError, match=r"resource 'GPU': .*(between|number)"):
        PlacementGroupFactory([{"CPU": 1}, {"GPU": amount}])

"""What a machine counts for when its price is missing, zero or equal to another's."""

from __future__ import annotations

import pytest
from tests.support.builders import node_type, offer

from muster.cluster.model import NodeType
from muster.cluster.planner.cost.problem import machine_costs


def costs(*types: NodeType) -> list[float]:
    return machine_costs([offer(of) for of in types]).tolist()


def test_a_price_counts_as_it_is() -> None:
    assert costs(node_type("a", {"CPU": 4}, price_per_hour=2.5)) == pytest.approx([2.5], rel=1e-5)


def test_a_missing_price_is_the_highest_known_price_of_its_dominant_resource() -> None:
    cheap = node_type("cheap", {"CPU": 8}, price_per_hour=0.8)
    dear = node_type("dear", {"CPU": 4, "GPU": 1}, price_per_hour=2.0)
    unknown = node_type("unknown", {"CPU": 16})
    assert costs(cheap, dear, unknown) == pytest.approx([0.8, 2.0, 8.0], rel=1e-5)


def test_a_missing_price_of_a_resource_that_no_other_type_has_is_the_highest_price() -> None:
    known = node_type("known", {"CPU": 8}, price_per_hour=3.0)
    assert costs(known, node_type("tpu", {"TPU": 4})) == pytest.approx([3.0, 3.0], rel=1e-5)


def test_without_any_price_machines_count_by_size() -> None:
    assert costs(node_type("a", {"CPU": 2}), node_type("b", {"CPU": 8})) == pytest.approx(
        [0.25, 1.0], rel=1e-5
    )


def test_a_machine_for_nothing_still_counts_a_little() -> None:
    free, paid = costs(node_type("a", {"CPU": 1}, price_per_hour=0.0), node_type("b", price_per_hour=1.0))
    assert 0 < free < 1e-5 < paid


def test_equal_prices_are_ranked_by_order() -> None:
    first, second = costs(node_type("b", price_per_hour=1.0), node_type("a", price_per_hour=1.0))
    assert first < second < first * 1.00001

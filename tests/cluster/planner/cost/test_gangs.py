"""Gangs under the cost objective: whole or not at all, together or apart as asked."""

from __future__ import annotations

import numpy as np
from bench.ours.planner import request_of
from bench.planner_gangs import capped
from msgspec.structs import replace
from tests.cluster.planner.cost.test_solve import LARGE, SMALL, plan
from tests.support.builders import demand, gang, node_type, offer, pack_node, selector

from muster.cluster.model import Objective, Strategy
from muster.cluster.planner.cost.gangs import propose_alone
from muster.cluster.planner.cost.inventory import Inventory, inventory_of
from muster.cluster.planner.cost.problem import ask_of
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import DemandKind, PackProblem, Placement, Unplaced

ONE = {"CPU": 1}


def of_gang(item: int, node: int, name: str, amount: int) -> Placement:
    return Placement(DemandKind.DEMAND, True, item, node, name, amount)


def test_pack_is_served_like_ordinary_requests() -> None:
    solution = plan([SMALL, LARGE], gangs=(gang([ONE] * 16),))
    assert (solution.launch, solution.placements) == ({"large": 1}, (of_gang(0, -1, "large", 16),))


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    solution = plan([SMALL], room=1, gangs=(gang([ONE] * 5),))
    assert (solution.launch, solution.unplaced) == ({}, (Unplaced(DemandKind.DEMAND, True, 0, 5),))


def test_room_that_a_failed_gang_leaves_goes_to_demands() -> None:
    solution = plan([SMALL], room=1, gangs=(gang([{"CPU": 2}] * 3),), demands=(demand(ONE, 4),))
    assert solution.launch == {"small": 1}
    assert solution.unplaced == (Unplaced(DemandKind.DEMAND, True, 0, 3),)


def test_strict_pack_needs_one_node_for_all() -> None:
    solution = plan([SMALL, LARGE], gangs=(gang([{"CPU": 3}] * 2, Strategy.STRICT_PACK),))
    assert (solution.launch, solution.placements) == ({"large": 1}, (of_gang(0, -1, "large", 2),))


def test_strict_pack_larger_than_any_machine_is_unplaced() -> None:
    solution = plan([SMALL], gangs=(gang([{"CPU": 3}] * 2, Strategy.STRICT_PACK),))
    assert (solution.launch, solution.unplaced) == ({}, (Unplaced(DemandKind.DEMAND, True, 0, 2),))


def test_strict_spread_takes_a_node_each() -> None:
    solution = plan([SMALL, LARGE], gangs=(gang([ONE] * 3, Strategy.STRICT_SPREAD),))
    assert solution.launch == {"small": 3}


def test_equal_gangs_share_the_nodes_they_spread_over() -> None:
    gangs = tuple(gang([ONE] * 3, Strategy.STRICT_SPREAD, f"g-{i}") for i in range(4))
    solution = plan([SMALL, LARGE], gangs=gangs)
    assert solution.launch == {"small": 3}
    assert set(solution.placements) == {of_gang(i, -1, "small", 3) for i in range(4)}


def test_unlike_bundles_spread_too() -> None:
    gangs = tuple(gang([ONE, ONE, {"CPU": 2}], Strategy.STRICT_SPREAD, f"g-{i}") for i in range(3))
    assert plan([SMALL], gangs=gangs).launch == {"small": 3}


def test_strict_spread_stays_off_nodes_that_already_hold_a_bundle() -> None:
    held = gang([ONE] * 2, Strategy.STRICT_SPREAD)
    nodes = [pack_node("i-1", LARGE, labels={held.label: ""}), pack_node("i-2", LARGE)]
    solution = plan([SMALL], nodes, gangs=(held,))
    assert solution.launch == {"small": 1}
    assert set(solution.placements) == {of_gang(0, 1, "large", 1), of_gang(0, -1, "small", 1)}


def test_spread_prefers_different_nodes_when_that_is_free() -> None:
    nodes = [pack_node(f"i-{i}", LARGE) for i in range(3)]
    solution = plan([SMALL], nodes, gangs=(gang([ONE] * 3, Strategy.SPREAD),))
    assert set(solution.placements) == {of_gang(0, node, "large", 1) for node in range(3)}


def test_spread_shares_a_node_when_apart_would_cost() -> None:
    solution = plan([SMALL], [pack_node("i-1", LARGE)], gangs=(gang([ONE] * 3, Strategy.SPREAD),))
    assert (solution.launch, solution.placements) == ({}, (of_gang(0, 0, "large", 3),))


def test_the_first_option_that_can_be_served_is_taken() -> None:
    options = ((demand({"TPU": 1}),), (demand({"CPU": 4}), demand({"CPU": 4})), (demand({"CPU": 1}),))
    solution = plan([SMALL], gangs=(replace(gang(), options=options),))
    assert (solution.launch, solution.placements) == ({"small": 2}, (of_gang(0, -1, "small", 2),))


def test_a_later_option_is_tried_when_limits_stop_the_first() -> None:
    options = ((demand({"CPU": 4}), demand({"CPU": 4})), (demand({"CPU": 2}), demand({"CPU": 2})))
    solution = plan([offer(SMALL, room=1)], gangs=(replace(gang(), options=options),))
    assert (solution.launch, solution.placements) == ({"small": 1}, (of_gang(0, -1, "small", 2),))


def test_locality_puts_all_bundles_under_one_value() -> None:
    a = node_type("a", {"CPU": 4}, price_per_hour=1.0, labels={"zone": "a"})
    b = node_type("b", {"CPU": 4}, price_per_hour=1.2, labels={"zone": "b"})
    together = replace(gang([{"CPU": 4}] * 3), locality_label="zone")
    assert plan([offer(a, room=2), b], gangs=(together,)).launch == {"b": 3}
    assert plan([a, b], gangs=(together,)).launch == {"a": 3}


def test_locality_without_any_such_label_is_unplaced() -> None:
    solution = plan([SMALL], gangs=(replace(gang(), locality_label="zone"),))
    assert (solution.launch, solution.unplaced) == ({}, (Unplaced(DemandKind.DEMAND, True, 0, 2),))


def test_bundle_selectors_are_kept() -> None:
    here = node_type("here", {"CPU": 4}, price_per_hour=9.0, labels={"zone": "a"})
    bundles = [demand(ONE, selectors=(selector(zone="a"),)), demand(ONE)]
    solution = plan([SMALL, here], gangs=(gang(bundles),))
    assert (solution.launch, solution.placements) == ({"here": 1}, (of_gang(0, -1, "here", 2),))


def test_as_many_equal_gangs_as_fit_are_served() -> None:
    gangs = tuple(gang([{"CPU": 2}] * 2, gang_id=f"g-{i}") for i in range(5))
    solution = plan([offer(SMALL, room=3)], gangs=gangs)
    assert solution.launch == {"small": 3}
    assert solution.unplaced == tuple(Unplaced(DemandKind.DEMAND, True, i, 2) for i in (3, 4))


def test_options_go_before_places_when_both_are_to_be_chosen() -> None:
    """The first option fits only the dear zone, the second also the cheap one: the first is still taken."""
    cheap = node_type("cheap", {"CPU": 2}, price_per_hour=0.1, labels={"zone": "a"})
    dear = node_type("dear", {"CPU": 4}, price_per_hour=5.0, labels={"zone": "b"})
    options = ((demand({"CPU": 4}),), (demand({"CPU": 2}),))
    asked = replace(gang(), options=options, locality_label="zone")
    assert plan([cheap, dear], gangs=(asked,)).launch == {"dear": 1}


def test_gangs_under_binding_caps_need_few_searches(monkeypatch) -> None:
    searches = []
    propose = Inventory.propose
    monkeypatch.setattr(Inventory, "propose", lambda *given: searches.append(1) or propose(*given))
    packing = pack(request_of(capped(0), Objective.COST))
    assert len(searches) < 40  # 167 when every single gang was searched a place for, in four orders
    # 123 of 235 bundles have no place; 143 when all gangs were planned jointly
    assert sum(outcome.unplaced for outcome in packing.gangs) <= 125


def test_one_gang_alone_takes_the_fullest_nodes_that_hold_it_or_nothing() -> None:
    nodes = (pack_node("roomy", LARGE), pack_node("tight", SMALL))
    ask = ask_of(demand(ONE))
    inventory = inventory_of(PackProblem(nodes=nodes, offers=(), room=None), DemandKind.DEMAND, [ask])
    found = [propose_alone(inventory, [ask], np.array([amount])) for amount in (3.0, 17.0, 21.0)]
    assert [dict(zip(p.rows.tolist(), p.amounts.tolist(), strict=True)) for p in found if p] == [
        {1: 3},
        {0: 13, 1: 4},
        {},
    ]

"""Check gangs; alternatives and locality, which Ray ignores."""

from __future__ import annotations

import pytest
from tests.cluster.planner.utilization.asking import ask, launched, lost_gangs, on_nodes
from tests.support.builders import demand, gang, node_type, offer, pack_node, pack_nodes, selector

from muster.cluster.model import Gang, Strategy
from muster.cluster.planner.request import DemandKind, Placement, Unplaced

CPU2 = node_type("cpu2", {"CPU": 2})
ZONES = [
    node_type("a", {"CPU": 2}, labels={"zone": "a"}),
    node_type("b", {"CPU": 2}, labels={"zone": "b"}),
]


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        (Strategy.STRICT_PACK, 1),
        (Strategy.PACK, 1),
        (Strategy.SPREAD, 1),
        (Strategy.STRICT_SPREAD, 2),
    ],
)
def test_sd17_only_strict_spread_needs_a_node_per_bundle(strategy, nodes):
    solution = ask([CPU2], gangs=[gang([{"CPU": 1}] * 2, strategy)])
    assert solution.launch == {"cpu2": nodes}
    assert solution.placements == (Placement(DemandKind.DEMAND, True, 0, -1, "cpu2", 2),)
    assert solution.unplaced == ()


def test_sd17_bundles_that_must_share_a_node_and_do_not_fit_one_are_refused_whole():
    solution = ask([CPU2], gangs=[gang([{"CPU": 1}, {"CPU": 2}], Strategy.STRICT_PACK)])
    assert (solution.launch, solution.placements) == ({}, ())
    assert solution.unplaced == (Unplaced(DemandKind.DEMAND, True, 0, 2),)


def test_a_gang_that_does_not_fit_whole_leaves_nothing_behind():
    node = pack_node("i", CPU2)
    solution = ask([], [node], gangs=[gang([{"CPU": 1}] * 3)], demands=[demand({"CPU": 1}, 2)])
    assert lost_gangs(solution) == {0: 3}
    assert on_nodes(solution) == {0: 2}


def test_nodes_that_hold_a_bundle_of_the_gang_already_are_avoided():
    nodes = [pack_node("holds", CPU2, labels={"_PG_g-1": ""}), pack_node("free", CPU2)]
    solution = ask([], nodes, gangs=[gang([{"CPU": 1}], Strategy.STRICT_SPREAD)])
    assert on_nodes(solution) == {1: 1}


def test_other_gangs_may_share_the_nodes_of_a_spread_gang():
    gangs = [gang([{"CPU": 1}] * 2, Strategy.STRICT_SPREAD, f"g-{n}") for n in range(2)]
    assert ask([CPU2], gangs=gangs).launch == {"cpu2": 2}


def test_most_constrained_gangs_go_first_then_larger_ones_then_as_they_came():
    gangs = [
        gang([{"CPU": 1}], gang_id="small"),
        gang([{"CPU": 1}] * 2, gang_id="large"),
        gang([{"CPU": 1}] * 2, gang_id="later"),
        gang([{"CPU": 1}], Strategy.STRICT_SPREAD, "strict"),
    ]
    for room, lost in [(1, [0, 1, 2]), (2, [1, 2]), (3, [0, 2]), (4, [2]), (5, [0]), (6, [])]:
        full = pack_nodes(room, node_type("one", {"CPU": 1}))
        assert sorted(lost_gangs(ask([], full, gangs=gangs))) == lost, room


def test_sd28_bundles_with_different_selectors_are_not_merged():
    bundles = [demand({"CPU": 2}, selectors=(selector(zone=zone),)) for zone in "ab"]
    solution = ask(ZONES, gangs=[gang(bundles, Strategy.STRICT_PACK)])
    assert solution.launch == {"a": 1, "b": 1}
    assert sorted(p.node_type for p in solution.placements) == ["a", "b"]


def test_sd28_merged_bundles_that_are_too_big_together_are_refused():
    bundles = [demand({"CPU": 2}, selectors=(selector(zone="a"),))] * 2
    assert lost_gangs(ask(ZONES, gangs=[gang(bundles, Strategy.STRICT_PACK)])) == {0: 2}


def test_the_alternatives_of_a_gang_are_tried_in_order():
    options = tuple((demand({"CPU": 2}, 2, selectors=(selector(zone=zone),)),) for zone in "xb")
    wanted = Gang(gang_id="g", strategy=Strategy.PACK, options=options)
    assert ask(ZONES, gangs=[wanted]).launch == {"b": 2}


def test_a_local_gang_stays_where_one_value_of_the_label_can_hold_all_of_it():
    wanted = gang([{"CPU": 2}] * 3, locality_label="zone")
    node = pack_node("i", ZONES[0])
    solution = ask([offer(ZONES[0], room=1), ZONES[1]], [node], gangs=[wanted])
    assert (solution.launch, on_nodes(solution)) == ({"b": 3}, {-1: 3})
    solution = ask([offer(ZONES[0], room=2), ZONES[1]], [node], gangs=[wanted])
    assert (solution.launch, on_nodes(solution)) == ({"a": 2}, {-1: 2, 0: 1})


def test_a_local_gang_finds_no_place_where_nothing_has_the_label():
    assert lost_gangs(ask([CPU2], gangs=[gang([{"CPU": 1}], locality_label="rack")])) == {0: 1}


def test_equal_gangs_that_cannot_be_placed_are_all_reported_and_later_ones_still_placed():
    gangs = [gang([{"CPU": 3}, {"CPU": 3}], gang_id=f"big-{n}") for n in range(3)]
    gangs += [gang([{"CPU": 1}], gang_id="small")]
    solution = ask([CPU2], gangs=gangs)
    assert (solution.launch, lost_gangs(solution)) == ({"cpu2": 1}, {0: 2, 1: 2, 2: 2})


def test_a_refusal_is_forgotten_once_the_fleet_has_changed():
    def follows(gang_id):
        bundle = demand({"CPU": 1}, selectors=(selector(_PG_opens=""),))
        return gang([bundle], Strategy.STRICT_PACK, gang_id)

    opens = gang([{"CPU": 1}], Strategy.STRICT_SPREAD, "opens")
    solution = ask([CPU2], gangs=[follows("early"), opens, follows("late")])
    assert (solution.launch, lost_gangs(solution)) == ({"cpu2": 1}, {0: 1})


def test_many_equal_gangs_fill_nodes_one_after_the_other():
    gangs = [gang([{"CPU": 1}] * 3, gang_id=f"g-{n}") for n in range(5)]
    assert launched([node_type("cpu4", {"CPU": 4})], gangs=gangs) == ({"cpu4": 4}, 0)


def test_what_a_gang_took_is_not_there_for_demands():
    node = pack_node("i", CPU2)
    solution = ask([], [node], gangs=[gang([{"CPU": 1}])], demands=[demand({"CPU": 1}, 2)])
    assert (on_nodes(solution), [u[1:] for u in solution.unplaced]) == ({0: 2}, [(False, 0, 1)])

"""Check that equal demands are merged and split again, in the original order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import demand, gang, node_type, pack_nodes, pack_request, selector

from muster.cluster.model import Constraint
from muster.cluster.planner.demand_classes import CountedGangs, MergedDemands, PlacementTally
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import DemandKind, ItemOutcome, PackSolution, Placement, Unplaced


def tally(placed=None, coming=None, launched=None, unplaced=0, place=0):
    counted = PlacementTally()
    counted.placed[place] = placed or {}
    counted.coming[place] = coming or {}
    counted.launched[place] = launched or {}
    counted.unplaced[place] = unplaced
    return counted


def test_demands_that_differ_in_anything_that_matters_stay_apart():
    zone = (selector(zone="z"),)
    asked = (
        demand(name="first"),
        demand({"CPU": 2}),
        demand(selectors=zone),
        demand(avoid=("a", "b")),
        demand(count=4, name="second"),
        demand(selectors=zone, count=2),
        demand(count=0),
    )
    assert MergedDemands(asked).demands == (
        demand(count=5, name="first"),
        demand({"CPU": 2}),
        demand(selectors=zone, count=3),
        demand(avoid=("a", "b")),
    )


def test_running_nodes_go_to_those_who_asked_first_and_the_last_wait():
    merged = MergedDemands((demand(count=3), demand(count=2), demand(count=4)))
    found = merged.outcomes(tally({"i-1": 2, "i-2": 2}, {"i-3": 1}, {"a": 2}, 2))
    assert found == (
        ItemOutcome(index=0, placed={"i-1": 2, "i-2": 1}),
        ItemOutcome(index=1, placed={"i-2": 1}, coming={"i-3": 1}),
        ItemOutcome(index=2, launched={"a": 2}, unplaced=2),
    )


def test_demands_of_one_request_each_are_parted_too():
    merged = MergedDemands((demand(),) * 5)
    found = merged.outcomes(tally({"i-1": 2}, {"i-3": 1}, {"a": 1}, 1))
    assert found == (
        ItemOutcome(index=0, placed={"i-1": 1}),
        ItemOutcome(index=1, placed={"i-1": 1}),
        ItemOutcome(index=2, coming={"i-3": 1}),
        ItemOutcome(index=3, launched={"a": 1}),
        ItemOutcome(index=4, unplaced=1),
    )


def test_empty_demands_between_others_have_empty_outcomes():
    merged = MergedDemands((demand(count=0), demand(), demand(count=0), demand()))
    assert merged.outcomes(tally(unplaced=2)) == (
        ItemOutcome(index=0),
        ItemOutcome(index=1, unplaced=1),
        ItemOutcome(index=2),
        ItemOutcome(index=3, unplaced=1),
    )


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 1)])
def test_a_request_that_an_engine_lost_has_no_place(counts):
    merged = MergedDemands([demand(count=count) for count in counts])
    found = merged.outcomes(tally({"i-1": 1}, unplaced=1))
    assert [outcome.index for outcome in found] == list(range(len(counts)))
    assert sum(outcome.unplaced for outcome in found) == 2


def test_gangs_keep_their_places_when_empty_ones_are_left_out():
    counted = CountedGangs((gang((), gang_id="empty"), gang(gang_id="full"), gang(options=())))
    assert [each.gang_id for each in counted.gangs] == ["full"]
    assert counted.outcomes(tally(launched={"a": 2})) == (
        ItemOutcome(index=0),
        ItemOutcome(index=1, launched={"a": 2}),
        ItemOutcome(index=2),
    )


def test_the_engine_sees_each_kind_of_demand_once():
    seen = []

    def engine(problem):
        if not problem.demands:  # could the constraints be met alone?
            return PackSolution(launch={}, placements=(), unplaced=())
        seen.append((problem.demands, problem.constraints))
        return PackSolution(
            launch={},
            placements=(Placement(DemandKind.DEMAND, False, 0, 0, "a", 2),),
            unplaced=(Unplaced(DemandKind.DEMAND, False, 0, 1), Unplaced(DemandKind.CONSTRAINT, False, 0, 3)),
        )

    request = pack_request(
        [node_type("a")],
        nodes=pack_nodes(1, "a"),
        demands=(demand(),) * 3,
        constraints=(Constraint(demands=(demand(count=2),)), Constraint(demands=(demand(),))),
    )
    packing = pack(request, engine)
    assert seen == [((demand(count=3),), (demand(count=3),))]
    assert [outcome.unplaced for outcome in packing.demands] == [0, 0, 1]
    assert [outcome.unplaced for outcome in packing.constraints] == [2, 1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.lists(st.integers(1, 5), max_size=4),
)
def test_parted_counts_add_up(counts, parts):
    merged = MergedDemands([demand(count=count) for count in counts])
    left = sum(counts)
    placed = {}
    for index, amount in enumerate(parts):
        if left:
            placed[f"i-{index}"] = min(amount, left)
            left -= placed[f"i-{index}"]
    found = merged.outcomes(tally(placed, unplaced=left))
    assert [sum(o.placed.values()) + o.unplaced for o in found] == counts
    for key, amount in placed.items():
        assert sum(outcome.placed.get(key, 0) for outcome in found) == amount
    assert all(count > 0 for outcome in found for count in outcome.placed.values())
